"""`tokflow convert`: another format of an export."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tokflow.audit.convert import convert_export, own_packing
from tokflow.cli.terminal import (
    print_json,
    shown_path,
    size,
)
from tokflow.errors import ConfigError
from tokflow.exports import ExportConfig, check_format
from tokflow.pipeline.lines import described_tokens
from tokflow.sequences.config import PackingConfig
from tokflow.split.shuffle import shuffled_by
from tokflow.store.config_errors import relocated
from tokflow.store.manifest import read_manifest
from tokflow.store.stored_outputs import find_export


def main(
    export: Path,
    *,
    to: str,
    options: Sequence[str] | None,
    packing: Sequence[str] | None,
    output: Path | None,
    json: bool,
) -> None:
    """Convert, and say what was written where."""
    check_format(to, where="--to")
    fields = _fields(options, "--option")
    for name, remedy in NO_OPTIONS.items():
        if name in fields:
            expected = f"options of {to} alone"
            raise ConfigError(where="--option", expected=expected, found=repr(name), remedy=remedy)
    config = ExportConfig.read({**fields, "format": to}, where="--option")
    of_packing = _fields(packing, "--packing")
    if of_packing and config.layout.made_of != "sequences":
        raise ConfigError(
            where="--packing",
            expected="none, for nothing is packed in a stream",
            found=", ".join(of_packing),
            remedy=f"leave it out, or name a format of sequences in place of {to}",
        )
    packed = _packing(export, of_packing) if of_packing else None
    folder = convert_export(export, config, packing=packed, output=output)
    _print_folder(folder, to, as_json=json)


def _packing(export: Path, fields: dict[str, Any]) -> PackingConfig:
    """Return the export's own packing, or the default one, with these fields changed."""
    own = own_packing(find_export(export)) or PackingConfig()
    try:
        return own.changed(fields)
    except ConfigError as error:
        raise relocated(error, f"--packing: {error.where}") from None


def _print_folder(folder: Path, format_: str, *, as_json: bool) -> None:
    manifest = read_manifest(folder)
    left_out = manifest.details.get("left_out", {})
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "format": format_,
                "counts": manifest.counts,
                "left_out": left_out,
                "num_bytes": manifest.num_bytes,
                "fingerprint": manifest.fingerprint,
            }
        )
        return
    counts = manifest.counts
    for part in manifest.details["parts"]:
        print(f"{format_}: {part} {described_tokens(counts, part)}")
    if packing := manifest.config.get("packing"):
        said = ", ".join(f"{name}: {value}" for name, value in packing.items() if value)
        print(f"packing: {{{said}}}")
    for name, seed in shuffled_by(manifest).items():
        print(f"{name} in the order of seed {seed}, as in the export it is made from")
    for name, num in left_out.items():
        part, _, what = name.partition(".num_")
        print(f"not in the export it is made from: {part} {num:,} {what.replace('_', ' ')}")
    print(f"{size(manifest.num_bytes)}: {shown_path(folder)}")


NO_OPTIONS = {
    "format": "name the format with --to",
    "packing": "give its fields by --packing KEY=VALUE",
}
EXAMPLES = {"--option": "shard_size=500MB", "--packing": "strategy=best_fit"}


def _fields(given: Sequence[str] | None, where: str) -> dict[str, Any]:
    """Return KEY=VALUE as a mapping, each value read as YAML reads it."""
    fields: dict[str, Any] = {}
    for entry in given or ():
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise ConfigError(
                where=where,
                expected="KEY=VALUE",
                found=repr(entry),
                remedy=f"write it as {where} {EXAMPLES[where]}",
            )
        try:
            fields[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            fields[key] = value
    return fields
