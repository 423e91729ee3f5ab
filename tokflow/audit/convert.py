"""Another format of an export, made from its files, without tokenizing again."""

from functools import partial
from pathlib import Path
from typing import Any

from tokflow.audit.regather import gather_parts
from tokflow.errors import ConfigError
from tokflow.exports.config import ExportConfig, check_parts, export_recipe, with_names
from tokflow.exports.format import SourceNames
from tokflow.exports.writing import write_export
from tokflow.sequences.config import PackingConfig
from tokflow.split.shuffle import order_of
from tokflow.store.atomic import new_folder, point_latest_to, scratch_folder
from tokflow.store.integrity import check_files, checked, once_more
from tokflow.store.listed_files import is_intact
from tokflow.store.manifest import MANIFEST_NAME, OWN_FOLDER, Manifest
from tokflow.store.remote.keys import CLAIM_NAME
from tokflow.store.remote.mirror import fetch_manifest
from tokflow.store.remote.places import place_of
from tokflow.store.stored_outputs import StoredOutput, find_export

DETAILS_OF_FORMAT = {"format", "keeps", "sequence_length", "pad_id", "padding_side", "left_out"}
"""Details of an export that do not hold of it in any format."""

LEFT_OUT = ("num_dropped_tokens", "num_dropped_documents", "num_truncated_documents")
"""Counts of what is not in an export, and so in nothing that is made from it."""


def convert_export(
    path: Path,
    config: ExportConfig,
    *,
    packing: PackingConfig | None = None,
    output: Path | None = None,
) -> Path:
    """Write the tokens of the export at `path` in another format; return the folder.

    Tokens, documents and their order are those of the export, so that the files are the ones
    that `tokflow run` makes of this format, but for documents without tokens and what the export
    left out, which `details.left_out` of the manifest counts. Two more differences: documents that
    were shuffled within a group of raw files are shuffled within each file here, for an export does
    not tell its groups; and sequences made of a stream are in its order, for a stream does not tell
    of the dataset's `shuffle.sequences`. A mixture whose documents are not in one order over all
    files comes pass by pass. `packing` is for formats of sequences; by default it is the export's
    own, or where it has none PackingConfig's defaults, with `config.packing`. Without `output` the
    folder stands beside the export's and is found again by its fingerprint; what is there already
    is not made again. Checksums are compared before the export is read, and where that changed.

    Raises: MissingOutputError where there is no export; CorruptOutputError where it is damaged;
    ConfigError where its format cannot be read, where it lost what the new one keeps, where it has
    parts that the new one has no file for, or where `output` cannot be written.
    """
    found = find_export(path)
    _check_kept(found, config)
    if names := found.manifest.details.get("names"):
        config = with_names(config, SourceNames(**names))
    used = packing or (own_packing(found) or PackingConfig()).changed(config.packing or {})
    if output is not None:
        _check_output(found, output)
        once_more(partial(_write, found, config, used, output))
        return output
    packed = used.for_parts(found.manifest.details["parts"])
    recipe = export_recipe(config, packed, _parents(found), order=order_of(found.manifest))
    folder = _folder_beside(found, config, recipe.fingerprint)
    if not is_intact(folder):
        once_more(partial(_write, found, config, used, folder))
    point_latest_to(folder)
    return folder


def _write(found: StoredOutput, config: ExportConfig, packing: PackingConfig, folder: Path) -> None:
    """Write the tokens of an export in another format to `folder`."""
    check_files(found)
    is_packed = config.layout.made_of == "sequences"
    # The tokens gathered are gone before the folder takes its name: a kill never leaves both.
    with new_folder(folder) as temporary, checked(found), scratch_folder(folder) as scratch:
        write_export(
            gather_parts(
                found,
                packing if is_packed else None,
                scratch,
                order=order_of(found.manifest),
            ),
            config,
            temporary,
            dataset=found.manifest.dataset,
            parents=_parents(found),
            details=_details(found.manifest),
        )


def _parents(found: StoredOutput) -> dict[str, str]:
    return {"export": found.manifest.fingerprint}


def _details(manifest: Manifest) -> dict[str, Any]:
    """Return what holds of an export in any format, and the counts of what it lacks."""
    details = {name: of for name, of in manifest.details.items() if name not in DETAILS_OF_FORMAT}
    left_out = _left_out(manifest)
    return {**details, "left_out": left_out} if left_out else details


def own_packing(found: StoredOutput) -> PackingConfig | None:
    """Return how the sequences of an export were packed; None for a stream."""
    packing = found.manifest.config.get("packing")
    return None if packing is None else PackingConfig(**packing)


def _left_out(manifest: Manifest) -> dict[str, int]:
    """Return what an export lacks of its split, and what the one lacked it was converted from."""
    counts = {name: num for name, num in manifest.counts.items() if num and name.endswith(LEFT_OUT)}
    for name, num in manifest.details.get("left_out", {}).items():
        counts[name] = counts.get(name, 0) + num
    return counts


def _check_kept(found: StoredOutput, config: ExportConfig) -> None:
    """Refuse a format without files for all parts, and one that would say of a chat that every
    token is a loss token."""
    check_parts(config, found.manifest.details["parts"])
    lost = set(found.manifest.details.get("lost", ()))
    if lost & set(config.layout.keeps):
        raise ConfigError(
            where=found.folder,
            expected=f"the loss mask of the chats, which {config.format} keeps",
            found=f"none: {found.manifest.details['format']} does not hold it",
            remedy="convert an export that keeps it, such as parquet",
        )


def _check_output(found: StoredOutput, output: Path) -> None:
    place = place_of(output)
    is_taken = output.is_file() or (output.is_dir() and any(output.iterdir()))
    if place is not None:
        names = place.objects.names("")
        own = [f"{OWN_FOLDER}/{name}" for name in place.objects.names(OWN_FOLDER)] if names else []
        # A writer that was killed has left a claim.
        is_taken = bool(names) and (MANIFEST_NAME in own or CLAIM_NAME not in own)
    is_inside = output.resolve().is_relative_to(found.folder)
    if is_taken or is_inside:
        raise ConfigError(
            where="--output",
            expected="a folder that is empty or not there"
            + (", outside of the export" if is_inside else ""),
            found=str(output),
            remedy="name another, or remove it",
        )


def _folder_beside(found: StoredOutput, config: ExportConfig, fingerprint: str) -> Path:
    """Return `<exports>/<format>-from-<name>/<fingerprint>`, no folder of a declared export, with
    the manifest that is at its URL.

    Raises: ConfigError where the export is in no store.
    """
    exports, name = found.folder.parents[1], found.folder.parent.name
    if exports.name != "exports" or found.folder.name != found.manifest.fingerprint[:16]:
        raise ConfigError(
            where=found.folder,
            expected="<store>/<dataset>/exports/<name>/<fingerprint>, to stand beside it",
            found="an export outside of a store",
            remedy="name the folder to write: --output DIR",
        )
    folder = exports / f"{config.name}-from-{name}" / fingerprint[:16]
    fetch_manifest(folder)
    return folder
