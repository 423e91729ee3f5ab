"""`tokflow tokenizers`: tokenizers side by side."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tokflow.cli.options import (
    Configs,
    Json,
    Names,
    ProjectFolder,
    StoreName,
    TokenizerNames,
    Trust,
)
from tokflow.cli.selection import select
from tokflow.cli.terminal import exit_status, print_error, print_json, print_table, shown_path
from tokflow.errors import ConfigError, explained
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declarations.loading import make_dataset
from tokflow.pipeline.lines import of_asked
from tokflow.pipeline.tokenizer_report import SAMPLE_BYTES, TokenizerReport, report_tokenizer
from tokflow.shown import size
from tokflow.store.store import Store
from tokflow.tokenizers.tokenizer import fields_of_name

Column = tuple[str, TokenizerReport | Exception]
"""The title of one tokenizer, and its report or why there is none."""


def main(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    tokenizer: TokenizerNames = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A raw file to measure on, its first 4 MB of text at most; by default the first "
            "of each dataset.",
        ),
    ] = None,
    text: Annotated[
        str,
        typer.Option(
            metavar="FIELD",
            help="With --tokenizer: the field or column of --file that holds the text.",
        ),
    ] = "text",
    store: StoreName = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> int:
    """Print the tokenizers of datasets, and those named; return the exit status.

    `text` and `trust_remote_code` are for those named: of a dataset its YAML says so.

    Raises: ConfigError.
    """
    if file is not None and not file.is_file():
        raise ConfigError(
            where="--file",
            expected="a raw file on this disk",
            found=f"{str(file)!r}, which is {'a folder' if file.is_dir() else 'missing'}",
            remedy="correct the path; of a file elsewhere, download it first",
        )
    # All declared ones where nothing is named at all.
    datasets = select(names, configs, store) if names or configs or not tokenizer else []
    columns = [_column(of.name, of, file, is_measured=True) for of in datasets]
    with tempfile.TemporaryDirectory(prefix="tokflow-tokenizers-") as folder:
        for number, name in enumerate(tokenizer or ()):
            own = Store(Path(folder, str(number)))
            dataset = _dataset_of(name, own, text, trusts=trust_remote_code)
            columns.append(_column(name, dataset, file, is_measured=False))
    if json:
        print_json({"tokenizers": [_document(*column) for column in columns]})
    else:
        _print([(title, of) for title, of in columns if isinstance(of, TokenizerReport)])
    errors = [(title, error) for title, error in columns if isinstance(error, Exception)]
    for title, error in () if json else errors:
        print_error(f"{title}: {explained(error, where='its tokenizer')}", error)
    return exit_status(error for _, error in errors)


def _dataset_of(name: str, store: Store, text: str, *, trusts: bool) -> Dataset:
    tokenizer: dict[str, Any] = dict(fields_of_name(name))
    if tokenizer["kind"] == "huggingface":
        tokenizer["trust_remote_code"] = trusts
    attributes = {
        "name": "none",
        "raw": {"files": ["none"]},
        "documents": {"text": text},
        "tokenizer": tokenizer,
    }
    return make_dataset(attributes, base=Path.cwd(), store=store, where=f"--tokenizer {name}")


def _column(title: str, dataset: Dataset, file: Path | None, *, is_measured: bool) -> Column:
    try:
        return title, report_tokenizer(dataset, file=file, is_measured=is_measured)
    except Exception as error:  # whatever it is, the others are shown
        return title, error


def _document(title: str, report: TokenizerReport | Exception) -> dict[str, Any]:
    if isinstance(report, Exception):
        return {"title": title, "error": explained(report, where=title).fields()}
    return {"title": title, **report.as_document()}


def _print(reports: Sequence[tuple[str, TokenizerReport]]) -> None:
    if not reports:
        return
    cells = [_cells(report) for _, report in reports]
    rows = [(label, *(of[label] for of in cells)) for label in cells[0]]
    print_table(("", *(title for title, _ in reports)), [row for row in rows if any(row[1:])])
    print()
    for title, report in reports:
        for note in _notes(report):
            print(f"{title}: {note}")


def _cells(report: TokenizerReport) -> dict[str, str]:
    """Return what is to be shown of a tokenizer by label; nothing where there is nothing."""
    tokenizer, sample = report.tokenizer, report.sample
    rate = sample.bytes_per_token if sample else None
    share = sample.tokens_per_character if sample else None
    return {
        "kind": tokenizer.kind,
        "name": report.name or "",
        "revision": report.revision or "",
        "commit": str(report.origin.get("commit", ""))[:12],
        "vocab_size": of_asked(tokenizer.vocab_size, report.vocab_size_asked),
        "dtype": tokenizer.dtype.name,
        "EOS": _token(tokenizer.eos_token, tokenizer.eos_id),
        "BOS": _token(tokenizer.bos_token, tokenizer.bos_id),
        "special tokens": f"{len(tokenizer.special_tokens):,}",
        "engine": report.engine,
        "bytes per token": f"{rate:.3f}" if rate else "",
        "tokens per character": f"{share:.3f}" if share else "",
        "tokens": f"{sample.num_tokens:,}" if sample else "",
        "MB/s": f"{sample.megabytes_per_second:.1f}" if sample else "",
    }


def _token(name: str | None, token_id: int | None) -> str:
    return "none" if token_id is None else f"{name} {token_id:,}"


def _notes(report: TokenizerReport) -> Iterator[str]:
    yield f"{report.engine}: {report.engine_reason}"
    if report.splitting != "none":
        yield f"splits text by {report.splitting}"
    if report.auto_tokenizer is not None:
        yield report.auto_tokenizer
    if (sample := report.sample) is not None:
        is_full = sample.num_bytes >= SAMPLE_BYTES
        first = "the first " if is_full else ""
        yield f"measured on {first}{size(sample.num_bytes)} of text of {shown_path(sample.path)}"
