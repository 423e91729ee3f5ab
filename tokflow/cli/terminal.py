"""Output of the command line: results on stdout, errors on stderr, JSON alone if asked for.

rich colours what goes to a terminal; everything else gets the same text, plain.
"""

import functools
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tokflow.errors import ConfigError, MissingOutputError, explained, shortened
from tokflow.formatting import printable, redacted, shown_text, size

if TYPE_CHECKING:
    from rich.console import Console

    from tokflow.audit.token_texts import ChatSpan
    from tokflow.pipeline.results import Notice
    from tokflow.raw import LeftOut
    from tokflow.store.store import Store

DONE, FAILED, WRONG_USAGE = 0, 1, 2
"""Exit status."""

INTERRUPTED, TERMINATED = 130, 143
"""Exit statuses that shells expect after Ctrl-C and after SIGTERM."""

IDS_SHOWN = 16
"""Token ids shown in a row."""

KEPT = "\n\t"
"""Control characters that are printed."""

NUMBER = re.compile(r"([\d,.]+( ([kMG]?B|%))?)?")
"""Pattern of cells that are right-aligned: numbers, sizes, empty."""


def exit_status(errors: Iterable[BaseException]) -> int:
    """Return DONE without errors, WRONG_USAGE if all are config errors, else FAILED."""
    is_usage = [isinstance(error, ConfigError) for error in errors]
    if not is_usage:
        return DONE
    return WRONG_USAGE if all(is_usage) else FAILED


class _TerminatedError(KeyboardInterrupt):
    """The process received SIGTERM."""


def _terminate(number: int, frame: object) -> None:
    raise _TerminatedError


@contextmanager
def reports_errors(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Print an exception of a command as one block without a traceback.

    An output that is missing is wrong usage where it was one of the `options`. With TOKFLOW_DEBUG=1
    the traceback comes along. SIGTERM, by which batch systems end a job, is an interruption, so
    that nothing half-written is left.

    Raises: typer.Exit in place of whatever it was.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
        return
    except BrokenPipeError:
        # Nobody reads on, as with `| head`; Python must not complain of that at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    except KeyboardInterrupt as interruption:
        print_error("interrupted; finished outputs stay, run again to go on")
        code = TERMINATED if isinstance(interruption, _TerminatedError) else INTERRUPTED
    except BaseException as error:  # also SystemExit, and the panic of a library in Rust
        problem = explained(error, where=f"tokflow {name}")
        if options.get("json"):
            print_json({"error": problem.fields()})
        print_error(str(problem), error)
        is_missing = isinstance(error, MissingOutputError)
        typed = (str(value).rstrip("/") for value in options.values())
        is_argument = is_missing and problem.where.rstrip("/") in typed
        code = WRONG_USAGE if is_argument else exit_status([error])
    finally:
        signal.signal(signal.SIGTERM, before)
    raise typer.Exit(code)


@functools.cache
def console(*, is_stderr: bool = False) -> "Console":
    """Return a rich console for stdout or stderr that interprets no markup."""
    from rich.console import Console

    return Console(stderr=is_stderr, soft_wrap=True, markup=False, highlight=False, emoji=False)


def print_styled(*fragments: str | tuple[str, str]) -> None:
    """Print one line made of texts, some of them with a style: `("small", "bold"), ": 3 files"`.

    What would steer the terminal is escaped, as in tables, paths and errors.
    """
    texts = [of if isinstance(of, str) else of[0] for of in fragments]
    texts = [printable(of, keep=KEPT) for of in texts]
    if sys.stdout.isatty():
        from rich.text import Text

        styles = ["" if isinstance(of, str) else of[1] for of in fragments]
        console().print(Text.assemble(*zip(texts, styles, strict=True)))
    else:
        print("".join(texts), flush=True)


def print_error(message: str, error: BaseException | None = None) -> None:
    """Print one block on stderr, red on a terminal.

    With TOKFLOW_DEBUG=1 the traceback of `error` follows.
    """
    message = printable(redacted(shown_text(message)), keep=KEPT)
    if sys.stderr.isatty():
        console(is_stderr=True).print(f"error: {message}", style="red")
    else:
        print(f"error: {message}", file=sys.stderr, flush=True)
    if error is not None and os.environ.get("TOKFLOW_DEBUG") == "1":
        trace = redacted("".join(traceback.format_exception(error)))
        print(printable(trace, keep=KEPT), end="", file=sys.stderr)


def print_json(document: object) -> None:
    """Print the JSON document of a command, with unprintable characters as JSON escapes."""
    text = shown_text(json.dumps(document, indent=1, ensure_ascii=False, default=_plain))
    unshown = {of for of in set(text) - {"\n"} if printable(of) != of}
    print(text.translate({ord(of): json.dumps(of)[1:-1] for of in unshown}), flush=True)


def _plain(value: Any) -> object:
    is_one = is_dataclass(value) and not isinstance(value, type)
    return asdict(value) if is_one else str(value)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, max_rows: int | None = None
) -> None:
    """Print rows, the first `max_rows` of them, under their columns' names, numbers to the right.

    A row is one line, however long.
    """
    from rich.cells import cell_len

    rows = list(rows)
    shown = [[printable(cell) for cell in row] for row in (columns, *rows[:max_rows])]
    widths = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
    are_numbers = [all(map(NUMBER.fullmatch, column[1:])) for column in zip(*shown, strict=True)]
    for index, row in enumerate(shown):
        pads = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = zip(row, pads, are_numbers, strict=True)
        line = "  ".join(pad + cell if to_right else cell + pad for cell, pad, to_right in cells)
        print_styled((line.rstrip(), "" if index else "bold"))
    if len(rows) > len(shown) - 1:
        print(f"and {len(rows) - len(shown) + 1:,} more")


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of values by name as a table, each written as everywhere."""
    from tokflow.pipeline.describe import formatted_rows

    print_table(*formatted_rows(rows))


def print_chat(spans: "Sequence[ChatSpan]") -> None:
    """Print the spans of a chat, each behind whose it is and, with a tick, why it is supervised;
    what is supervised is green on a terminal."""
    from tokflow.audit.token_texts import drawn

    labels = [
        f"{'✓' if of.is_supervised else ' '} {of.role}{f': {of.reason}' if of.reason else ''}"
        for of in spans
    ]
    width = max(map(len, labels), default=0)
    for label, of in zip(labels, spans, strict=True):
        style = "green" if of.is_supervised else "dim"
        for number, line in enumerate(drawn(of.text).removesuffix("\n").split("\n")):
            print_styled((f"  {'' if number else label:{width}} │ ", "dim"), (line, style))


def shown_ids(token_ids: Sequence[int]) -> str:
    """Return the first token ids, and how many there are more."""
    return " ".join(shortened(token_ids, IDS_SHOWN))


def shown_path(path: Path, store: "Store | None" = None) -> str:
    """Return a path as a user would type it: relative to the current folder, or the URL of a
    store."""
    shown = str(path) if store is None else store.shown(path)
    return printable(shown.removeprefix(f"{Path.cwd()}{os.sep}"))


def described_left_out(left_out: "Sequence[LeftOut]") -> str:
    """Return the line that lists files that match a pattern and are not read."""
    named = [
        f"{shown_path(Path(of.path)) if of.path.startswith('/') else of.path} ({of.found})"
        for of in left_out
    ]
    return printable(f"matched, but not read: {', '.join(shortened(named))}")


def described_dropped(num_bytes: int) -> str:
    """Return the line about tokens that went since the exports stand."""
    return f"tokens dropped, as `keep: exports` says: {size(num_bytes)}"


def print_notices(notices: "Sequence[Notice]", before: str = "") -> None:
    """Print the notices of a dataset, one per line; nothing if there are none."""
    if notices:
        print_styled("\n".join([f"{before}notices:", *(f"  {of.text}" for of in notices)]))
