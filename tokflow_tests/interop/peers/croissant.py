"""mlcroissant: validates croissant.json, and reads the records that it describes."""

import os

import mlcroissant
import numpy as np
from peer_command import run


def read(folder, part):
    """Read the records of a part, by the description beside the export."""
    dataset = mlcroissant.Dataset(folder / "_tokflow/croissant.json")  # raises for what is wrong
    rows = [*dataset.records(part)]
    names = [name.removeprefix(f"{part}/") for name in rows[0]]
    columns = {of: np.array([row[f"{part}/{of}"] for row in rows]) for of in names}
    issues = dataset.metadata.ctx.issues
    return columns | {"warnings": np.array(sorted(str(of) for of in issues.warnings))}


run(read=read)
os._exit(0)  # threads that Arrow has left would abort the end of the interpreter, now and then
