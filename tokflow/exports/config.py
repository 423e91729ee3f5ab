"""One export as a dataset declares it: its format, its options, and what decides its files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic import Field
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tokflow.errors import ConfigError
from tokflow.exports.columns import LABELS_VERSION
from tokflow.exports.format import Declared, Layout, SourceNames
from tokflow.exports.formats import FORMATS, check_format
from tokflow.exports.index import INDEX_VERSION
from tokflow.exports.part import check_eos_first
from tokflow.exports.presets import PRESETS, in_one_line, with_options
from tokflow.exports.shuffled_documents import GROUP_TOKENS
from tokflow.sequences.config import PackingChanges, PackingConfig, Packings
from tokflow.split.shuffle import ExportOrder, shuffle_fields
from tokflow.store.atomic import check_name
from tokflow.store.config import Config, check_keys, relocated, within
from tokflow.store.manifest import Recipe
from tokflow.store.versions import known_changes


class ExportConfig(Config):
    """One export: a format and its options. In YAML the options stand beside `format`, which
    alone is enough, or beside `preset`, the name of a trainer, which they override."""

    section: ClassVar[str] = "exports"

    format: str
    """One of FORMATS."""
    name: str
    """Its folder in the store and its asset; the format's name unless the YAML gives another."""
    options: Any
    """The options of the format."""
    packing: Annotated[PackingChanges | None, Field(exclude_if=lambda of: of is None)] = None
    """Fields in which its packing differs from the dataset's, for formats of sequences. Exports of
    equal packing share their sequences."""

    @classmethod
    def has_key(cls, key: object) -> bool:
        """Return whether it, or one of the formats, has a key."""
        return key in BESIDE_OPTIONS or any(
            key in of.options.model_fields for of in FORMATS.values()
        )

    def check(self) -> None:
        """Refuse packing where nothing is packed."""
        if self.packing is not None and not self.layout.is_packed:
            raise ConfigError(
                where="packing",
                expected="none, for nothing is packed in a stream",
                found=repr(self.packing),
                remedy=f"leave it out, or name a format of sequences in place of {self.format}",
            )

    @property
    def plain(self) -> dict[str, Any]:
        """Its entry in a YAML: the format, and the options that are not as usual."""
        options, packing = self.options, self.packing
        own = {name: of for name, of in options if not options.is_as_usual(name)}
        own = {name: [*of] if isinstance(of, tuple) else of for name, of in own.items()}
        named = {"name": self.name} if self.name != self.format else {}
        packed = {"packing": dict(packing)} if packing else {}
        return {**named, "format": self.format, **own, **packed}

    @property
    def layout(self) -> Layout:
        """The content of its files."""
        return FORMATS[self.format].layout(self.options)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_yaml(cls, entry: Any) -> Any:
        """Return the fields that a format's name, or a mapping with its options, stands for."""
        given = {"format": entry} if isinstance(entry, str) else entry
        given = with_options(given) if isinstance(given, Mapping) and "preset" in given else given
        if not isinstance(given, Mapping) or not isinstance(given.get("format"), str):
            raise ConfigError(
                where="",
                expected="a format's name, or a mapping with `format:` or `preset:`, and options",
                found=repr(entry),
                remedy=f"name one of {', '.join(sorted(FORMATS))}",
            )
        if isinstance(given.get("options"), Config):
            return given
        name = given["format"]
        format_ = check_format(name, where="")
        if format_.extra is not None:
            format_.extra.check(where="")
        known = [*format_.options.model_fields, *BESIDE_OPTIONS]
        check_keys(given, known, where="", remedy_of=partial(_remedy_of, options=format_.options))
        options = {key: given[key] for key in given if key not in BESIDE_OPTIONS}
        own = {key: given[key] for key in given if key in BESIDE_OPTIONS}
        called = given.get("name", name)
        check_name(called, where="name", becomes="a folder", marks="-_")
        return {**own, "name": called, "options": format_.options.read(options, where="")}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return what a YAML may hold: a name, or one of the formats with its options."""
        descriptions = cls.descriptions()
        named = {"type": "string", "description": descriptions["name"]}
        packed = pydantic.TypeAdapter(PackingChanges).json_schema()
        packed |= {"description": descriptions["packing"]}
        beside = {"name": named, "packing": packed}
        of_formats = [_schema_of(name, beside) for name in FORMATS]
        of_presets = [_schema_of_preset(name, beside) for name in PRESETS]
        names = {"type": "string", "enum": sorted(FORMATS)}
        return {"anyOf": [names, *of_formats, *of_presets]}


BESIDE_OPTIONS = ("name", "format", "packing", "preset")
"""The keys of an export in YAML that are no options of its format."""


def _remedy_of(key: object, *, options: type[Config]) -> str | None:
    """Return what to do about a key that other formats have, or packing; None for any other."""
    own = options.model_fields
    if key == "attention_mask" and "columns" in own:
        return "write `columns:` without attention_mask"
    if key == "columns" and "attention_mask" in own:
        return "remove it; `attention_mask: false` leaves out that column"
    if key in PackingConfig.model_fields:
        return f"write `packing: {{{key}: ...}}`, for it is a field of packing"
    others = sorted(name for name, of in FORMATS.items() if key in of.options.model_fields)
    return f"remove it, or name a format that has it: {', '.join(others)}" if others else None


def _schema_of(name: str, beside: Mapping[str, JsonSchemaValue]) -> JsonSchemaValue:
    """Return the schema of one format: its options, `format` and the fields of every export."""
    format_ = FORMATS[name]
    schema = format_.options.model_json_schema()
    own = {"format": {"const": name, "description": format_.description}, **beside}
    properties = {**own, **schema.get("properties", {})}
    return {**schema, "properties": properties, "required": ["format"]}


def _schema_of_preset(name: str, beside: Mapping[str, JsonSchemaValue]) -> JsonSchemaValue:
    """Return the schema of one preset: the options of its format, which it has values for."""
    stands_for = in_one_line(PRESETS[name])
    preset = {"const": name, "description": f"The same as `{stands_for}`."}
    schema = _schema_of(PRESETS[name]["format"], beside)
    return {
        **schema,
        "properties": {"preset": preset, **schema["properties"]},
        "required": ["preset"],
    }


@dataclass(frozen=True, kw_only=True)  # without slots, since it keeps its packings
class DeclaredExports:
    """The exports of a dataset, with what its other sections say of their packing and order."""

    configs: tuple[ExportConfig, ...]
    packing: PackingConfig
    """The packing of the dataset."""
    parts: tuple[str, ...]
    is_in_one_order: bool
    """True where the documents of all partitions are shuffled together."""

    def config(self, name: str) -> ExportConfig:
        """Return the config of the export with this name."""
        return next(of for of in self.configs if of.name == name)

    def packing_of(self, export: ExportConfig) -> PackingConfig:
        """Return the packing of an export. Raises: ConfigError."""
        try:
            return self.packing.changed(export.packing or {}).for_parts(self.parts)
        except ConfigError as error:
            with export_named(export):
                raise within("packing", error) from error.__cause__

    def is_made_of_sequences(self, export: ExportConfig) -> bool:
        """Return whether partitions are packed one by one for an export; else splits make it."""
        return export.layout.is_packed and not self.is_in_one_order

    @cached_property
    def packings(self) -> Packings:
        """Each packing once: that of the dataset, called "", then those of exports that differ, by
        the first such export; none where no partition is packed by itself."""
        is_stream = [not export.layout.is_packed for export in self.configs]
        if self.is_in_one_order or (is_stream and all(is_stream)):
            return Packings()
        found = Packings({"": self.packing})
        own = {export.name: self.packing_of(export) for export in self.configs}
        for name, packing in own.items():
            if all(packing.fields_of_file() != of.fields_of_file() for of in found.values()):
                found[name] = packing
        found.exports = {name: [] for name in found}
        for export in filter(self.is_made_of_sequences, self.configs):
            found.exports[_name_of(own[export.name], found)].append(export.name)
        return found

    def packing_name(self, export: ExportConfig) -> str:
        """Return which of `packings` has the sequences that an export is made of."""
        return _name_of(self.packing_of(export), self.packings)


def _name_of(packing: PackingConfig, packings: Packings) -> str:
    """Return the name of the packing that packs each partition as one does."""
    fields = packing.fields_of_file()
    return next(name for name, of in packings.items() if of.fields_of_file() == fields)


def with_names(config: ExportConfig, names: SourceNames) -> ExportConfig:
    """Return the export with the names in its options that the user left to the dataset.

    They decide what is written, and so the fingerprint.
    """
    options, named = config.options, FORMATS[config.format].named
    left = {option: name for option, name in named.items() if getattr(options, option) is None}
    if not left:
        return config
    known = {option: getattr(names, name) for option, name in left.items()}
    with export_named(config):
        options = type(options)(**{**options.model_dump(), **known})
    return config.model_copy(update={"options": options})


def export_recipe(
    config: ExportConfig,
    packing: PackingConfig,
    parents: Mapping[str, str],
    *,
    order: ExportOrder,
) -> Recipe:
    """Return what decides an export made from `parents` (partition key to fingerprint)."""
    fields: dict[str, Any] = {"format": config.format, "options": config.options.model_dump()}
    if config.layout.is_packed:
        fields["packing"] = packing.fields_of_export()
        fields |= {} if order.documents is None else {"group_tokens": GROUP_TOKENS}
        fields |= shuffle_fields(order.sequences)
    fields |= order.document_fields()
    fields |= known_changes("export", config.format)
    version = FORMATS[config.format].version + INDEX_VERSION
    version += LABELS_VERSION if "labels" in config.layout.columns else 0
    return Recipe(stage="export", version=version, config=fields, parents=parents)


def check_exports(exports: Sequence[ExportConfig], declared: Declared) -> None:
    """Make sure that each export has a name of its own, and can be made of such a dataset.

    Raises: ConfigError.
    """
    for first, second in combinations([export.name for export in exports], 2):
        if first.replace("-", "_") == second.replace("-", "_"):
            same = "twice" if first == second else f"and {second!r}, which are one name in Dagster"
            raise ConfigError(
                where="exports",
                expected="a name of its own for each export",
                found=f"{first!r} {same}",
                remedy="give one a `name:`",
            )
    fields: dict[str, Any] = {"packing": declared.packing, "parts": tuple(declared.parts)}
    of_all = DeclaredExports(configs=tuple(exports), is_in_one_order=False, **fields)
    for export in exports:
        packing = of_all.packing_of(export)
        format_ = FORMATS[export.format]
        known = format_.part_names or declared.parts
        with export_named(export):
            if others := [part for part in declared.parts if part not in known]:
                raise ConfigError(
                    where="",
                    expected=f"no parts but {', '.join(known)}, the files that {export.format} has",
                    found=", ".join(others),
                    remedy="rename them in `split.parts`, or name another format",
                )
            if export.layout.eos_first:
                check_eos_first(has_eos=declared.has_eos, has_bos=declared.has_bos, where="")
            is_by_file = getattr(export.options, "is_by_file", False)
            if is_by_file and not format_.shard_names:
                raise ConfigError(
                    where="shards",
                    expected="a number, for files of this format are not divided by raw files",
                    found="'by_file'",
                    remedy="leave it out, or name "
                    + ", ".join(sorted(name for name, of in FORMATS.items() if of.shard_names)),
                )
            format_.file_names(export.options, declared.parts)
            format_.check(export.options, replace(declared, packing=packing))


@contextmanager
def export_named(export: ExportConfig) -> Iterator[None]:
    """Let a ConfigError say which export it is about; `where` is an option of it."""
    try:
        yield
    except ConfigError as error:
        where = ": ".join(filter(None, [f"exports: {export.name}", error.where]))
        raise relocated(error, where) from error.__cause__
