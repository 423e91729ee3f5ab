"""Another format of an export, made from its files, without tokenizing again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tokflow.catalog import Found, find_output
from tokflow.errors import ConfigError, MissingOutputError, four_parts
from tokflow.exports import ExportConfig, Part, export_fingerprint, write_export
from tokflow.gathered import gather_parts
from tokflow.manifest import is_intact
from tokflow.packing import PackingConfig
from tokflow.storage import new_folder, point_latest_to

CONVERTED_DETAILS = ("dtype", "vocab_size", "eos_id", "bos_id", "tokenizer_fingerprint")
"""What holds of an export in any format."""


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
    left out. `packing` is asked of formats of sequences; by default it is the export's own, or
    where it has none PackingConfig's defaults. Without `output` the folder stands beside the
    export's and is found again by its fingerprint; what is there already is not made again.

    Raises: MissingOutputError where there is no export; ConfigError where its format cannot be
    read, where it lost what the new one keeps, or where `output` is in use.
    """
    found = find_output(path)
    _check_export(found, path)
    _check_kept(found, config)
    packing = packing or own_packing(found) or PackingConfig()
    parents = {"export": found.manifest.fingerprint}
    fingerprint = export_fingerprint(config, packing, parents)
    folder = output or _folder_beside(found, config, fingerprint)
    if output is None and is_intact(folder):
        point_latest_to(folder)
        return folder
    if output is not None and output.exists() and any(output.iterdir()):
        raise ConfigError(
            four_parts(
                where="--output",
                expected="a folder that is empty or not there",
                found=str(output),
                remedy="name another, or remove it",
            )
        )
    with parts_of(found, config, packing, beside=folder) as parts, new_folder(folder) as temporary:
        write_export(
            parts,
            config,
            temporary,
            dataset=found.manifest.dataset,
            parents=parents,
            details={name: found.manifest.details[name] for name in CONVERTED_DETAILS},
        )
    if output is None:
        point_latest_to(folder)
    return folder


@contextmanager
def parts_of(
    found: Found, config: ExportConfig, packing: PackingConfig, *, beside: Path | None = None
) -> Iterator[list[Part]]:
    """Yield the parts of an export as those of another, kept in a temporary folder meanwhile.

    Of `beside` it is a neighbour, since it takes as much room as the tokens.
    """
    is_packed = config.layout.made_of == "sequences"
    if beside is not None:
        beside.parent.mkdir(parents=True, exist_ok=True)
    where = None if beside is None else beside.parent
    with TemporaryDirectory(dir=where, prefix=".gathered.", suffix=".tmp") as temporary:
        yield gather_parts(found, packing if is_packed else None, Path(temporary))


def own_packing(found: Found) -> PackingConfig | None:
    """Return how the sequences of an export were packed; None for a stream."""
    packing = found.manifest.config.get("packing")
    return None if packing is None else PackingConfig(**packing)


def _check_export(found: Found, path: Path) -> None:
    if found.manifest.stage != "export":
        raise MissingOutputError(
            four_parts(
                where=path,
                expected="an export",
                found=found.name,
                remedy="name a folder under <store>/<dataset>/exports",
            )
        )


def _check_kept(found: Found, config: ExportConfig) -> None:
    """Refuse a format that would say of a chat that every token is learnt."""
    lost = set(found.manifest.details.get("lost", ()))
    if config.layout.made_of == "texts":
        raise ConfigError(
            four_parts(
                where=f"--to {config.format}",
                expected="a format that holds tokens",
                found="one that holds the texts of the raw files",
                remedy="declare it in the dataset's YAML and run `tokflow run`",
            )
        )
    if lost & set(config.layout.keeps):
        raise ConfigError(
            four_parts(
                where=found.folder,
                expected=f"the loss mask of the chats, which {config.format} keeps",
                found=f"none: {found.manifest.details['format']} does not hold it",
                remedy="convert an export that keeps it, such as parquet",
            )
        )


def _folder_beside(found: Found, config: ExportConfig, fingerprint: str) -> Path:
    """Return `<exports>/<format>-from-<name>/<fingerprint>`, no folder of a declared export."""
    exports, name = found.folder.parents[1], found.folder.parent.name
    return exports / f"{config.name}-from-{name}" / fingerprint[:16]
