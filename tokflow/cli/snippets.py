"""Python that loads a batch from an export, to be copied and run as it is."""

import re
from collections.abc import Sequence
from pathlib import Path

from tokflow.build.results import StageResult
from tokflow.cli.output import shown_path
from tokflow.exports.bin_ import file_of
from tokflow.store.atomic import LATEST

BATCH_ROWS = 8


def loading_code(exports: Sequence[StageResult], *, sequence_length: int) -> str | None:
    """Return three lines of Python for the bin export if there is one, else for the first that
    has some text; None where no export holds a token."""
    by_preference = sorted(exports, key=lambda made: made.manifest.details["format"] != "bin")
    for made in by_preference:
        counts = made.manifest.counts
        parts = [p for p in made.manifest.details["parts"] if counts[f"{p}.num_tokens"]]
        if parts:
            return _code(made, parts[0], sequence_length)
    return None


def _code(made: StageResult, part: str, sequence_length: int) -> str:
    folder = made.output.folder.parent / LATEST
    details, counts = made.manifest.details, made.manifest.counts
    of_part = re.compile(rf"{part}(/dump-0\.pkl|-\d+-of-\d+\.parquet)")
    files = filter(of_part.fullmatch, sorted(made.manifest.files))
    first = shown_path(folder / next(files, ""))
    if details["format"] == "bin":
        first = shown_path(folder / file_of(made.manifest, part))
        length = min(sequence_length, counts[f"{part}.num_tokens"])
        rows = min(BATCH_ROWS, counts[f"{part}.num_tokens"] // length)
        return (
            "import numpy as np\n"
            f'tokens = np.memmap({first!r}, dtype="{details["dtype"]}", mode="r")\n'
            f"batch = tokens[: {rows} * {length}].reshape({rows}, {length})"
        )
    if details["format"] == "parquet":
        return (
            "import numpy as np, pyarrow.parquet as pq\n"
            f'table = pq.read_table({first!r}, columns=["input_ids"])\n'
            f'batch = np.array(table["input_ids"][:{BATCH_ROWS}].to_pylist())'
        )
    if details["format"] == "pickle":
        return (
            "import pickle, pathlib, numpy as np\n"
            f"rows = pickle.loads(pathlib.Path({first!r}).read_bytes())\n"
            f"batch = np.array(rows[:{BATCH_ROWS}])"
        )
    return _through_tokflow(folder, part)


def _through_tokflow(folder: Path, part: str) -> str:
    """Return code that reads any format that has a reader."""
    return (
        "from pathlib import Path; from tokflow.exports import FORMATS; "
        "from tokflow.store.manifest import read_manifest\n"
        f"folder = Path({shown_path(folder)!r}); manifest = read_manifest(folder)\n"
        f'arrays = next(FORMATS[manifest.details["format"]].read(folder, manifest, {part!r}))'
        f"\nbatch = next(iter(arrays.values()))[:{BATCH_ROWS}]"
    )
