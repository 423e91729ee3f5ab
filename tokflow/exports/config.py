"""One export as a dataset declares it: its format, its options, and what decides its files."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

from tokflow.errors import ConfigError
from tokflow.exports.format import Declared, Layout
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import INDEX_VERSION
from tokflow.exports.part import check_eos_first
from tokflow.exports.source_names import SourceNames
from tokflow.sequences.packing import PackingConfig
from tokflow.store.manifest import Recipe
from tokflow.store.versions import known_changes


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """One export: a format and its options."""

    format: str
    """One of FORMATS."""
    name: str
    """Its folder in the store and its asset; the format's name unless the YAML gives another."""
    options: Any
    """The format's own dataclass."""

    @property
    def layout(self) -> Layout:
        """What stands in its files."""
        return FORMATS[self.format].layout(self.options)


def with_names(config: ExportConfig, names: SourceNames) -> ExportConfig:
    """Return the export with the names in its options that the user left to the dataset.

    They decide what is written, and so the fingerprint.
    """
    return replace(config, options=FORMATS[config.format].named(config.options, names))


def export_recipe(
    config: ExportConfig, packing: PackingConfig, parents: Mapping[str, str]
) -> Recipe:
    """Return what decides an export made from `parents` (partition key to fingerprint)."""
    fields: dict[str, Any] = {"format": config.format, "options": asdict(config.options)}
    if config.layout.is_packed:
        fields["packing"] = packing.fields_of_export()
    fields |= known_changes("export", config.format)
    version = FORMATS[config.format].version + INDEX_VERSION
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
    for export in exports:
        check_parts(export, declared.parts)
        if export.layout.eos_first:
            check_eos_first(has_eos=declared.has_eos, has_bos=declared.has_bos, where=export.name)
        format_ = FORMATS[export.format]
        format_.file_names(export.options, declared.parts)
        format_.check(export.options, declared)


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
