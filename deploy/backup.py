"""Backups of the history and of the datasets: `make` one, `list` them, `restore NAME`, `check`.

A backup is a folder named by its time in UTC: `history.dump`, by pg_dump, and `data`, the raw files
and the store. A file that is as it was in the backup before, by its size and the time of its last
change, is a hard link to that one: a backup takes the space of what is new.

The environment names the database (TOKFLOW_POSTGRES_URL), the folders (DATA, BACKUPS), and how many
backups stay (KEEP). pg_dump has to be of the server's version or a later one.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

NAME = "%Y-%m-%dT%H-%M-%SZ"

PASSES = 5
"""Times that data is looked through while it changes, until nothing more has."""

CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


def main() -> None:
    """Do what the arguments say; end with status 1 and a message where it cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make", help="make a backup, and remove the oldest beyond KEEP")
    commands.add_parser("list", help="print the names of the backups, oldest first")
    commands.add_parser("check", help="fail if the last backup is older than 26 hours")
    restoring = commands.add_parser("restore", help="put a backup in place of what is there")
    restoring.add_argument("name", choices=[path.name for path in find_backups()])
    arguments = parser.parse_args()
    match arguments.command:
        case "make":
            make_backup(keep=int(os.environ["KEEP"]))
        case "restore":
            restore(arguments.name)
        case "list":
            print(*(path.name for path in find_backups()), sep="\n")
        case "check":
            check_age()


def find_backups() -> list[Path]:
    """Return the backups that are whole, oldest first."""
    return sorted(path for path in _folder("BACKUPS").glob("20*Z") if path.is_dir())


def make_backup(*, keep: int) -> None:
    """Write a backup. The history goes first: what it names as built is in the data then."""
    backups = find_backups()
    new = _folder("BACKUPS") / ".new"
    new.mkdir(exist_ok=True)  # one that was interrupted goes on
    _postgres("pg_dump", "--format=custom", f"--file={new}/history.dump")
    before = backups[-1] / "data" if backups else None
    for _ in range(PASSES):
        if not copy_changes(_folder("DATA"), new / "data", before):
            break
    while (whole := new.with_name(datetime.now(UTC).strftime(NAME))).exists():
        time.sleep(0.1)  # two made within a second would have one name
    new.rename(whole)
    for old in [*backups, whole][:-keep]:
        shutil.rmtree(old)
    print(f"{whole}: made", flush=True)


def restore(name: str) -> None:
    """Make history and data those of a backup. One that was interrupted is done again.

    The services have to be stopped: what they write meanwhile would be lost.
    """
    connected = int(_postgres("psql", "--no-align", "--tuples-only", f"--command={CONNECTED}"))
    if connected > 1:
        sys.exit(
            f"the database: expected no connection, found {connected - 1}; "
            "stop the services first: docker compose stop code webserver daemon retention backup"
        )
    backup = _folder("BACKUPS") / name
    how = ("--clean", "--if-exists", "--no-owner", "--single-transaction")
    _postgres("pg_restore", *how, str(backup / "history.dump"))
    for damaged in _folder("DATA").iterdir():
        _remove(damaged)
    copy_changes(backup / "data", _folder("DATA"))
    print(f"{backup}: restored", flush=True)


def check_age() -> None:
    """End with status 1 unless there is a backup of the last 26 hours."""
    limit = (datetime.now(UTC) - timedelta(hours=26)).strftime(NAME)
    if not any(path.name > limit for path in find_backups()):
        sys.exit(f"{_folder('BACKUPS')}: expected a backup after {limit}, found none")


def copy_changes(source: Path, target: Path, before: Path | None = None) -> int:
    """Make `target` like `source`, with links into `before` where that has the same file.

    Returns the number of files that were copied, linked or removed. What vanishes meanwhile is left
    out, and counts.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        entries = {entry.name: entry for entry in os.scandir(source)}
    except FileNotFoundError:
        return 1
    changes = 0
    for own in target.iterdir():
        there = entries.get(own.name)
        if not there or own.is_symlink() != there.is_symlink() or own.is_dir() != there.is_dir():
            _remove(own)
            changes += 1
    for name, entry in entries.items():
        path, old = Path(entry.path), before and before / name
        if entry.is_dir(follow_symlinks=False):
            changes += copy_changes(path, target / name, old)
        else:
            changes += _copy_file(path, target / name, old)
    return changes


def _copy_file(source: Path, target: Path, before: Path | None) -> int:
    """Copy or link a file unless it is there; return 1 if it was not."""
    if _is_same(source, target):
        return 0
    target.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        if before and not source.is_symlink() and _is_same(source, before):
            target.hardlink_to(before)
        else:
            shutil.copy2(source, target, follow_symlinks=False)
    return 1


def _is_same(path: Path, other: Path) -> bool:
    try:
        one, two = path.lstat(), other.lstat()
    except FileNotFoundError:
        return False
    if path.is_symlink():
        return other.is_symlink() and path.readlink() == other.readlink()
    return (one.st_size, one.st_mtime_ns) == (two.st_size, two.st_mtime_ns)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _postgres(program: str, *arguments: str) -> str:
    """Run one of PostgreSQL's programs on the database; return what it prints."""
    _, rest = os.environ["TOKFLOW_POSTGRES_URL"].split("://")  # the driver is Python's
    own = [program, f"--dbname=postgresql://{rest}", *arguments]
    return subprocess.run(own, check=True, stdout=subprocess.PIPE, text=True).stdout


def _folder(name: str) -> Path:
    return Path(os.environ[name])


if __name__ == "__main__":
    main()
