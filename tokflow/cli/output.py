"""How the command line speaks: results on stdout, errors on stderr, JSON alone where asked."""

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from tokflow.errors import ConfigError, TokflowError, explained

DONE, FAILED, WRONG_USAGE = 0, 1, 2
"""Exit status."""

INTERRUPTED = 130
"""What shells expect of a command that Ctrl-C ended."""


IDS_SHOWN = 16
"""Token ids shown in a row."""


class UsageError(TokflowError, ValueError):
    """The command line asks for something that cannot be meant."""


@contextmanager
def as_usage() -> Iterator[None]:
    """Let a ConfigError in the block be wrong usage: of the command line, or of a YAML file."""
    try:
        yield
    except ConfigError as error:
        raise UsageError(**error.fields()) from error


def reports_errors(command: Callable[..., int]) -> Callable[..., None]:
    """Let a command return its exit status, and print what it raises as one block, not a trace.

    With TOKFLOW_DEBUG=1 the traceback comes along.
    """

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            code = command(*arguments, **options)
        except BrokenPipeError:
            # Nobody reads on, as with `| head`; Python must not complain of that at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = FAILED
        except KeyboardInterrupt:
            print_error("interrupted; what is finished stays, run again to go on")
            code = INTERRUPTED
        except SystemExit:
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            problem = explained(error, where=f"tokflow {command.__name__}")
            if options.get("json"):
                print_json({"error": problem.fields()})
            print_error(str(problem), error)
            code = WRONG_USAGE if isinstance(error, UsageError) else FAILED
        raise typer.Exit(code)

    return run


def print_error(message: str, error: BaseException | None = None) -> None:
    """Print one block on stderr, red on a terminal.

    With TOKFLOW_DEBUG=1 the traceback of `error` follows.
    """
    is_red = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    text = f"error: {message}"
    print(f"\033[31m{text}\033[0m" if is_red else text, file=sys.stderr, flush=True)
    if error is not None and os.environ.get("TOKFLOW_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)


def print_json(document: object) -> None:
    """Print the one JSON document of a command; file names that are no UTF-8 as JSON escapes."""
    text = json.dumps(document, indent=1, ensure_ascii=False, default=str)
    sys.stdout.write(text.encode(errors="backslashreplace").decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their columns' names, numbers to the right; nothing is ever cut off."""
    cells = [tuple(columns), *(tuple(row) for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    is_number = [all(_is_number(row[index]) for row in cells[1:]) for index in range(len(columns))]
    for number, row in enumerate(cells):
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        line = "  ".join(padded).rstrip()
        print(styled(line, "bold") if number == 0 else line)


def styled(text: str, style: str) -> str:
    """Return `text` in a style of STYLES on a terminal, and as it is elsewhere."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{STYLES[style]}m{text}\033[0m"


STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def size(num_bytes: float) -> str:
    """Return `12.3 MB`: powers of 1,000, as speeds are."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {unit}"
    return f"{num_bytes:,.0f} B"


def counted(number: int, noun: str) -> str:
    """Return `1 file`, `2 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def of_asked(number: int, asked: int | None) -> str:
    """Return `427 of 1,024` where another number was asked for than came out, else `427`."""
    return f"{number:,}" if asked in (None, number) else f"{number:,} of {asked:,}"


def shown_ids(token_ids: Sequence[int]) -> str:
    """Return the first token ids, and how many there are more."""
    shown = " ".join(str(token_id) for token_id in token_ids[:IDS_SHOWN])
    rest = len(token_ids) - IDS_SHOWN
    return shown + (f" ... {rest:,} more" if rest > 0 else "")


def _is_number(cell: str) -> bool:
    number = cell.removesuffix(" B").removesuffix(" kB").removesuffix(" MB").removesuffix(" GB")
    return not cell or number.replace(",", "").replace(".", "").isdigit()


def shown_path(path: Path) -> str:
    """Return a path as a person here would type it: relative if it is below this folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
