"""`tokflow tokenizers`: what tokenizers are, side by side."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokflow.build.dataset import Dataset, make_dataset
from tokflow.build.tokenizer_report import SAMPLE_BYTES, TokenizerReport, report_tokenizer
from tokflow.cli.output import (
    DONE,
    FAILED,
    UsageError,
    as_usage,
    of_asked,
    print_error,
    print_json,
    print_table,
    shown_path,
    size,
)
from tokflow.cli.selection import select
from tokflow.errors import explained
from tokflow.tokenizers.tokenizer import fields_of_name


@dataclass(frozen=True, slots=True)
class Column:
    """One tokenizer, or why there is none."""

    title: str
    found: TokenizerReport | Exception


def print_tokenizers(
    names: Sequence[str] | None,
    *,
    configs: Sequence[Path] | None,
    tokenizers: Sequence[str] | None,
    file: Path | None,
    store: Path | None,
    trust_remote_code: bool,
    as_json: bool,
) -> int:
    """Print the tokenizers of datasets, and those named; return the exit status.

    `trust_remote_code` is for those named: of a dataset its YAML says so.

    Raises: UsageError.
    """
    if file is not None and not file.is_file():
        raise UsageError(
            where="--file",
            expected="a raw file on this disk",
            found=f"{str(file)!r}, which is {'a folder' if file.is_dir() else 'missing'}",
            remedy="correct the path",
        )
    with tempfile.TemporaryDirectory(prefix="tokflow-tokenizers-") as folder:
        columns = [
            *_of_datasets(names, configs, store, has_others=bool(tokenizers), file=file),
            *(
                _of_name(name, Path(folder) / str(i), file, trust_remote_code=trust_remote_code)
                for i, name in enumerate(tokenizers or [])
            ),
        ]
    if as_json:
        print_json({"tokenizers": [_document_of(column) for column in columns]})
    else:
        _print(columns)
    has_failed = any(isinstance(column.found, Exception) for column in columns)
    return FAILED if has_failed else DONE


def _of_datasets(
    names: Sequence[str] | None,
    configs: Sequence[Path] | None,
    store: Path | None,
    *,
    has_others: bool,
    file: Path | None,
) -> Iterator[Column]:
    """Yield a column for each dataset; all declared ones where nothing is named at all."""
    selected = select(names, store=store) if names or not (configs or has_others) else []
    for config in configs or ():
        selected += select(None, configs=[config], store=store)
    for of in selected:
        yield _column(of.dataset.name, of.dataset, file, is_measured=True)


def _of_name(name: str, store: Path, file: Path | None, *, trust_remote_code: bool) -> Column:
    tokenizer: dict[str, Any] = dict(fields_of_name(name))
    if tokenizer["kind"] == "huggingface":
        tokenizer["trust_remote_code"] = trust_remote_code
    with as_usage():
        dataset = make_dataset(
            {"name": "none", "raw": {"files": ["none"]}, "tokenizer": tokenizer},
            base=Path.cwd(),
            store=store,
            where=f"--tokenizer {name}",
        )
    return _column(name, dataset, file, is_measured=False)


def _column(title: str, dataset: Dataset, file: Path | None, *, is_measured: bool) -> Column:
    try:
        return Column(title, report_tokenizer(dataset, file=file, is_measured=is_measured))
    except Exception as error:  # whatever it is, the others are shown
        return Column(title, error)


def _document_of(column: Column) -> dict[str, Any]:
    if isinstance(column.found, Exception):
        problem = explained(column.found, where=column.title)
        return {"title": column.title, "error": problem.fields()}
    return {"title": column.title, **column.found.as_document()}


def _print(columns: Sequence[Column]) -> None:
    reports = [(c.title, c.found) for c in columns if isinstance(c.found, TokenizerReport)]
    if reports:
        rows = [_rows(report) for _, report in reports]
        print_table(
            ("", *(title for title, _ in reports)),
            [(label, *(row.get(label, "") for row in rows)) for label in _labels(rows)],
        )
        print()
    for title, report in reports:
        print(f"{title}: {report.engine}: {report.engine_reason}")
        if report.splitting != "none":
            print(f"{title}: splits text by {report.splitting}")
        if report.auto_tokenizer is not None:
            print(f"{title}: {report.auto_tokenizer}")
        if report.sample is not None:
            print(f"{title}: measured on {_measured_on(report)}")
    for column in columns:
        if isinstance(column.found, Exception):
            message = explained(column.found, where="its tokenizer")
            print_error(f"{column.title}: {message}", column.found)


def _labels(rows: Sequence[dict[str, str]]) -> list[str]:
    """Return the labels in which some tokenizer has something to show."""
    return [label for label in rows[0] if any(row[label] for row in rows)]


def _rows(report: TokenizerReport) -> dict[str, str]:
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


def _measured_on(report: TokenizerReport) -> str:
    sample = report.sample
    if sample is None:
        return "nothing"
    is_full = sample.num_bytes > SAMPLE_BYTES - 4  # a character that did not fit has up to 4 bytes
    first = "the first " if is_full else ""
    return f"{first}{size(sample.num_bytes)} of text of {shown_path(sample.path)}"
