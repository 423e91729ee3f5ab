"""One export as a dataset declares it: its format, its options, and what decides its files."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic import Field
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tokflow.errors import ConfigError, nearest
from tokflow.exports.format import Layout, SourceNames
from tokflow.exports.formats import FORMATS, check_format
from tokflow.exports.part import check_eos_first
from tokflow.sequences import PackingChanges, PackingConfig, Packings
from tokflow.store.config import Config, check_keys, check_name, relocating, within

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "axolotl": {
        "format": "parquet",
        "columns": ["attention_mask", "labels"],
        "padding": "none",
        "packing": {"strategy": "one_document"},
    },
    "megatron-bridge": {
        "format": "parquet",
        "columns": ["next_loss_mask", "seq_start_id"],
        "rename": {"next_loss_mask": "loss_mask"},
        "padding": "none",
    },
    "torchtitan": {"format": "npy", "layout": "sequences", "packing": {"label_token": True}},
    "torchtune": {
        "format": "parquet",
        "columns": ["labels"],
        "rename": {"input_ids": "tokens"},
        "padding": "none",
        "packing": {"strategy": "one_document"},
    },
    "trl": {"format": "hf_dataset", "columns": ["labels", "seq_lengths"], "padding": "none"},
}
"""The options that each preset, the name of a trainer, stands for: they take its place where the
config is read, so that nothing else knows of it. axolotl and torchtune pack by themselves, and
would take a row of several documents for one; the others are told where each begins."""


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
        given = _with_options(given) if isinstance(given, Mapping) and "preset" in given else given
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
        packed = pydantic.TypeAdapter(PackingChanges).json_schema()
        beside = {
            "name": {"type": "string", "description": descriptions["name"]},
            "packing": packed | {"description": descriptions["packing"]},
        }
        found: dict[str, JsonSchemaValue] = {}
        for name, format_ in FORMATS.items():
            schema = format_.options.model_json_schema()
            own = {"format": {"const": name, "description": format_.description}, **beside}
            properties = {**own, **schema.get("properties", {})}
            found[name] = {**schema, "properties": properties, "required": ["format"]}
        of_presets = []
        for name, options in PRESETS.items():
            schema = found[options["format"]]
            stands_for = f"The same as `{in_one_line(options)}`."
            properties = {"preset": {"const": name, "description": stands_for}}
            properties |= schema["properties"]
            of_presets.append({**schema, "properties": properties, "required": ["preset"]})
        names = {"type": "string", "enum": sorted(FORMATS)}
        return {"anyOf": [names, *found.values(), *of_presets]}


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


def _with_options(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an export of a YAML with the options of its preset in place of that.

    Options beside the preset, and fields of packing, override its own; its name, unless there is
    another, becomes that of the export.

    Raises: ConfigError for a preset that does not exist.
    """
    given = dict(entry)
    name = given.pop("preset")
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(
            where="preset",
            expected=f"one of {', '.join(PRESETS)}",
            found=repr(name),
            remedy=nearest(name, [*PRESETS]) or "name one of them, or a `format:`",
        )
    options = {"name": name, **PRESETS[name], **given}
    packing, own = given.get("packing"), PRESETS[name].get("packing")
    if own and isinstance(packing, Mapping):
        options["packing"] = {**own, **packing}
    return options


def in_one_line(options: Mapping[str, Any]) -> str:
    """Return options as a line of YAML: `{format: parquet, padding: none}`."""
    import yaml  # late: no worker needs it

    text: str = yaml.safe_dump(dict(options), default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip()


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
        with export_named(export), relocating("packing", within):
            own = self.packing.changed(export.packing) if export.packing else self.packing
            return own.for_parts(self.parts)

    @cached_property
    def packings(self) -> Packings:
        """Each packing once: that of the dataset, called "", then those of exports that differ, by
        the first such export; none where no partition is packed by itself."""
        found = Packings()
        found.exports = {}
        is_packed = [export.layout.is_packed for export in self.configs]
        if self.is_in_one_order or (is_packed and not any(is_packed)):
            return found
        found[""] = self.packing
        for export in self.configs:
            packing = self.packing_of(export)
            fields = packing.fields_of_file()
            same = [name for name, of in found.items() if of.fields_of_file() == fields]
            [name, *_] = [*same, export.name]
            found.setdefault(name, packing)
            if export.layout.is_packed:
                found.exports.setdefault(name, []).append(export.name)
        return found


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


def check_exports(exports: DeclaredExports, *, has_eos: bool, has_bos: bool) -> None:
    """Make sure that each export has a name of its own, and can be made of a dataset whose
    documents end with EOS, or begin with BOS.

    Raises: ConfigError.
    """
    for first, second in combinations([export.name for export in exports.configs], 2):
        if first.replace("-", "_") == second.replace("-", "_"):
            same = "twice" if first == second else f"and {second!r}, which are one name in Dagster"
            raise ConfigError(
                where="exports",
                expected="a name of its own for each export",
                found=f"{first!r} {same}",
                remedy="give one a `name:`",
            )
    parts = exports.parts
    for export in exports.configs:
        packing, format_ = exports.packing_of(export), FORMATS[export.format]
        known = format_.part_names or parts
        with export_named(export):
            if others := [part for part in parts if part not in known]:
                raise ConfigError(
                    where="",
                    expected=f"no parts but {', '.join(known)}, the files that {export.format} has",
                    found=", ".join(others),
                    remedy="rename them in `split.parts`, or name another format",
                )
            if export.layout.eos_first:
                check_eos_first(has_eos=has_eos, has_bos=has_bos, where="")
            format_.file_names(export.options, parts)
            format_.check(export.options, {packing.of_part(part).stored_length for part in parts})


def export_named(export: ExportConfig) -> AbstractContextManager[None]:
    """Let a ConfigError say which export it is about; `where` is an option of it."""
    return relocating(f"exports: {export.name}")
