"""What a dataset takes on the disk, and what a change of it writes.

    python -m benchmarks disk --sizes 1000 --files 100

Files are counted once, whatever names they have, as `du` does. After the first build an export is
added, then a raw file, which sorts last; two formats of many files follow, and another raw file;
then what is not needed any more is removed.
"""

import json
import os
import subprocess

from benchmarks.formats import build
from benchmarks.programs import ROOT, TOKFLOW

PARTS = {
    "one part": {"train": {"fraction": 1.0}},
    "0.9 and 0.1": {"train": {"fraction": 0.9}, "validation": {"fraction": 0.1}},
}
ADDED_BYTES = 500_000
OPTIONS = ("--keep", "0", "--yes", "--json")


def measure_disk(pattern, parts, folder):
    """Yield what was measured of a dataset of the files of `pattern`: a text, a number of bytes,
    and the bytes that they are to be compared with."""
    raw, store = folder / "raw", folder / "store"
    raw.mkdir()
    for path in pattern.parent.iterdir():
        os.link(path, raw / path.name)
    files = raw / pattern.name
    for exports in (["bin"], ["bin", "megatron"]):
        build(files, exports, folder, store, parts=parts)
        tokens = sum(files_below(store, "tokens", "*.bin").values())
        yield " and ".join(exports), sum(files_below(store).values()), tokens
    build(files, ["bin"], folder, folder / "kept", parts=parts, keep="exports")
    yield "bin, keep: exports", sum(files_below(folder / "kept").values()), tokens
    text = next(raw.iterdir()).read_bytes()[:ADDED_BYTES]
    for number, exports in enumerate((["bin", "megatron"], ["mds", "parquet"])):
        build(files, exports, folder, store, parts=parts)
        before = files_below(store)
        (raw / f"zz{number}.jsonl").write_bytes(text[: text.rindex(b"\n") + 1])
        build(files, exports, folder, store, parts=parts)
        found = files_below(store)
        new = sum(map(found.get, {*found} - {*before}))
        export = sum(sum(files_below(store, f"exports/{of}/latest").values()) for of in exports)
        yield f"{' and '.join(exports)}, {ADDED_BYTES / 1e6:g} MB more", new, export
    command = [*TOKFLOW, "gc", "--config", folder / "formats.yaml", "--store", store, *OPTIONS]
    [said] = json.loads(subprocess.check_output(command, cwd=ROOT))["datasets"]
    yield "freed, as gc says", said["num_bytes"], tokens
    yield "freed", sum(found.values()) - sum(files_below(store).values()), tokens


def files_below(store, stage="", pattern="*"):
    """Return the bytes of the files of a stage, or of all, by their numbers on the disk."""
    paths = (store / "benchmark" / stage).resolve().rglob(pattern)
    found = [path.stat() for path in paths if path.is_file() and not path.is_symlink()]
    return {of.st_ino: of.st_size for of in found}


def table(found):
    for text, num_bytes, compared in found:
        yield f"  {text:32}{num_bytes / 1e6:10.1f} MB{num_bytes / compared:8.3f}"
