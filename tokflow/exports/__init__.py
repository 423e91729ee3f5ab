"""Files in somebody else's format, made from the parts of a split."""

import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import pydantic
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tokflow.errors import ConfigError, CorruptOutputError, nearest
from tokflow.exports import (
    archai,
    arrow_,
    bin_,
    datatrove,
    easydel,
    hf_dataset,
    jsonl,
    lance_,
    levanter,
    litdata,
    llmc,
    mds,
    megatron,
    modalities,
    npy,
    olmo,
    parquet_,
    pickle_,
    webdataset_,
)
from tokflow.exports.extras import check_extra
from tokflow.exports.format import Arrays, Counts, Declared, Format, Layout, index_of
from tokflow.exports.index import write_index
from tokflow.exports.part import Part, check_eos_first, inputs_of
from tokflow.exports.source_names import SourceNames
from tokflow.sequences.packing import PackingConfig
from tokflow.store.atomic import check_name
from tokflow.store.config import Config
from tokflow.store.config_errors import check_keys
from tokflow.store.integrity import checked
from tokflow.store.manifest import Manifest, Recipe, checksums, write_manifest
from tokflow.store.versions import known_changes

FORMATS: dict[str, Format] = {
    "archai": archai.FORMAT,
    "arrow": arrow_.FORMAT,
    "bin": bin_.FORMAT,
    "datatrove": datatrove.FORMAT,
    "easydel": easydel.FORMAT,
    "hf_dataset": hf_dataset.FORMAT,
    "jsonl": jsonl.FORMAT,
    "lance": lance_.FORMAT,
    "levanter": levanter.FORMAT,
    "litdata": litdata.FORMAT,
    "llmc": llmc.FORMAT,
    "mds": mds.FORMAT,
    "megatron": megatron.FORMAT,
    "modalities": modalities.FORMAT,
    "npy": npy.FORMAT,
    "olmo": olmo.FORMAT,
    "parquet": parquet_.FORMAT,
    "pickle": pickle_.FORMAT,
    "webdataset": webdataset_.FORMAT,
}

INDEX_NAME = "index.parquet"


class ExportConfig(Config):
    """One export: a format and its options. In YAML the options stand beside `format`, which
    alone is enough."""

    section: ClassVar[str] = "exports"

    format: str
    """One of FORMATS."""
    name: str
    """Its folder in the store and its asset; the format's name unless the YAML gives another."""
    options: Any
    """Those of the format."""

    @property
    def layout(self) -> Layout:
        """What stands in its files."""
        return FORMATS[self.format].layout(self.options)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_yaml(cls, entry: Any) -> Any:
        """Return the fields that a format's name, or a mapping with its options, stands for."""
        given = {"format": entry} if isinstance(entry, str) else entry
        if not isinstance(given, Mapping) or not isinstance(given.get("format"), str):
            raise ConfigError(
                where="",
                expected="a format's name, or a mapping with `format:` and its options",
                found=repr(entry),
                remedy=f"name one of {', '.join(sorted(FORMATS))}",
            )
        if isinstance(given.get("options"), Config):
            return given
        name = given["format"]
        format_ = check_format(name, where="")
        if format_.extra is not None:
            check_extra(format_.extra, where="")
        check_keys(given, [*format_.options.model_fields, "name", "format"], where="")
        options = {key: given[key] for key in given if key not in ("name", "format")}
        called = given.get("name", name)
        check_name(called, where="name", becomes="a folder", marks="-_")
        return {"format": name, "name": called, "options": format_.options.read(options, where="")}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return what a YAML may hold: a name, or one of the formats with its options."""
        named = {"type": "string", "description": cls.model_fields["name"].description}
        return {"anyOf": [{"enum": sorted(FORMATS)}, *(_schema_of(f, named) for f in FORMATS)]}


def _schema_of(name: str, named: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of one format: its options beside `format` and `name`."""
    format_ = FORMATS[name]
    schema = format_.options.model_json_schema()
    own = {"format": {"const": name, "description": format_.description}, "name": named}
    properties = {**own, **schema.get("properties", {})}
    return {**schema, "properties": properties, "required": ["format"]}


def layout_of(manifest: Manifest) -> Layout:
    """Return what stands in the files of the export with this manifest."""
    return FORMATS[manifest.details["format"]].layout(options_of(manifest))


def options_of(manifest: Manifest) -> Any:
    """Return the options that the export with this manifest was written with."""
    return FORMATS[manifest.details["format"]].options(**manifest.config["options"])


def with_names(config: ExportConfig, names: SourceNames) -> ExportConfig:
    """Return the export with the names in its options that the user left to the dataset.

    They decide what is written, and so the fingerprint.
    """
    options = FORMATS[config.format].named(config.options, names)
    return config.model_copy(update={"options": options})


def export_recipe(
    config: ExportConfig, packing: PackingConfig, parents: Mapping[str, str]
) -> Recipe:
    """Return what decides an export made from `parents` (partition key to fingerprint)."""
    return Recipe(
        stage="export",
        version=FORMATS[config.format].version_of_export,
        config={**_deciding_config(config, packing), **known_changes("export", config.format)},
        parents=parents,
    )


def write_export(
    parts: Sequence[Part],
    config: ExportConfig,
    folder: Path,
    *,
    dataset: str,
    parents: Mapping[str, str],
    details: Mapping[str, Any],
) -> None:
    """Write one export with its index into the empty `folder`, manifest last.

    Raises: CorruptOutputError where a file that the parts are read from is damaged.
    """
    started = time.perf_counter()
    format_, layout = FORMATS[config.format], config.layout
    with checked(*inputs_of(parts)):
        counts = format_.write(parts, config.options, folder)
        _check_accounting(parts, counts, config)
        write_index(folder / INDEX_NAME, (index_of(part, layout) for part in parts))
    packing = parts[0].packing
    manifest = Manifest(
        recipe=export_recipe(config, packing, parents),
        dataset=dataset,
        partition=None,
        counts=counts,
        details={
            **details,
            "format": config.format,
            "parts": [part.name for part in parts],
            "keeps": list(layout.keeps),
            **({"lost": lost} if (lost := _lost(parts, layout, details)) else {}),
            **(
                {"sequence_length": parts[0].sequence_length, "pad_id": parts[0].pad_id}
                if layout.made_of == "sequences"
                else {}
            ),
        },
        files=checksums(folder, known=format_.known_checksums(parts, config.options)),
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def _lost(parts: Sequence[Part], layout: Layout, details: Mapping[str, Any]) -> list[str]:
    """Return what a training loop must know and does not find in the files, nor found in those
    that they were converted from."""
    has_loss_mask = any(part.has_loss_mask for part in parts)
    is_lost = has_loss_mask and "loss_mask" not in layout.keeps
    return ["loss_mask"] if is_lost or "loss_mask" in details.get("lost", ()) else []


def _check_accounting(parts: Sequence[Part], counts: Counts, config: ExportConfig) -> None:
    """Make sure that every token of every part was written, or dropped as the config says."""
    for part in parts:
        written = counts[f"{part.name}.num_tokens"]
        repeated = counts.get(f"{part.name}.num_repeated_tokens", 0)
        dropped = counts[f"{part.name}.num_dropped_tokens"]
        if written - repeated + dropped != part.num_tokens or dropped < 0:
            raise CorruptOutputError(
                where=f"export {config.name}: {part.name}",
                expected=f"{part.num_tokens:,} tokens, as in the split",
                found=f"{written - repeated:,} written and {dropped:,} dropped",
                remedy="run `tokflow verify` on the dataset, and delete what is damaged",
            )


def check_format(name: str, *, where: str) -> Format:
    """Return the format called `name`.

    Raises: ConfigError that lists the formats.
    """
    if name not in FORMATS:
        raise ConfigError(
            where=where,
            expected=f"one of {', '.join(sorted(FORMATS))}",
            found=repr(name),
            remedy=nearest(name, list(FORMATS)) or "name one of them",
        )
    return FORMATS[name]


def check_exports(exports: Sequence[ExportConfig], declared: Declared) -> None:
    """Make sure that each export has a name of its own, and can be made of such a dataset.

    Raises: ConfigError.
    """
    _check_names([export.name for export in exports])
    for export in exports:
        _check_export(export, declared)


def _check_names(names: Sequence[str]) -> None:
    for first, second in combinations(names, 2):
        if first.replace("-", "_") == second.replace("-", "_"):
            same = "twice" if first == second else f"and {second!r}, which are one name in Dagster"
            raise ConfigError(
                where="exports",
                expected="a name of its own for each export",
                found=f"{first!r} {same}",
                remedy="give one a `name:`",
            )


def _check_export(export: ExportConfig, declared: Declared) -> None:
    check_parts(export, declared.parts)
    if export.layout.eos_first:
        check_eos_first(has_eos=declared.has_eos, has_bos=declared.has_bos, where=export.name)
    FORMATS[export.format].check(export.options, declared)


def check_parts(export: ExportConfig, parts: Sequence[str]) -> None:
    """Make sure that the format has a file for each of these parts.

    Raises: ConfigError.
    """
    known = FORMATS[export.format].part_names or parts
    if others := [part for part in parts if part not in known]:
        raise ConfigError(
            where=f"exports: {export.name}",
            expected=f"no parts but {', '.join(known)}, the files that {export.format} has",
            found=", ".join(others),
            remedy="rename them in `split.parts`, or name another format",
        )


def _deciding_config(config: ExportConfig, packing: PackingConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {"format": config.format, "options": config.options.model_dump()}
    if config.layout.made_of == "sequences":
        fields["packing"] = packing.fields_of_export()
    return fields


__all__ = [
    "FORMATS",
    "INDEX_NAME",
    "Arrays",
    "Counts",
    "Declared",
    "ExportConfig",
    "Format",
    "Layout",
    "Part",
    "check_exports",
    "check_format",
    "check_parts",
    "export_recipe",
    "index_of",
    "inputs_of",
    "layout_of",
    "options_of",
    "with_names",
    "write_export",
]
