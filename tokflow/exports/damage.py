"""Damage of the files of an export, as an error that names the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokflow.errors import ConfigError, CorruptOutputError, MissingOutputError
from tokflow.store.requests import RemoteStoreError


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Let whatever a library finds wrong with the content of a file, or of a folder, be an error
    that names it. What the system refuses is none of it, but for a file that is gone.

    Raises: CorruptOutputError; MissingOutputError.
    """
    try:
        yield
    except MissingOutputError:
        raise
    except FileNotFoundError as error:
        raise MissingOutputError(
            where=path,
            expected="the files that the export was opened with",
            found="a file was deleted",
            remedy="keep exports that are read; run `tokflow run` again, and open it anew",
        ) from error
    except Exception as error:
        is_of_system = isinstance(error, OSError) and error.errno is not None
        known = CorruptOutputError | ConfigError | MemoryError | ImportError | RemoteStoreError
        if is_of_system or isinstance(error, known):
            raise
        found = f"{type(error).__name__}: {error}"
        raise damaged_file(path, expected="what its format says", found=found) from error


def damaged_file(path: Path, *, expected: str, found: str) -> CorruptOutputError:
    """Return the error of a file that is not what its format says."""
    return CorruptOutputError(
        where=path,
        expected=expected,
        found=found,
        remedy="delete the export and run `tokflow run` again",
    )
