"""`tokflow rejects`: the bad documents that builds set aside, with what is wrong with each."""

from collections.abc import Iterator
from typing import Any

from tokflow.cli.options import Configs, Json, Names, Partitions, ProjectFolder, StoreName
from tokflow.cli.selection import Words, select
from tokflow.cli.terminal import print_json
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.plan import make_plan
from tokflow.shown import counted, printable
from tokflow.tokens.shard_files import REJECTS_NAME, rejects_in


def main(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    partitions: Partitions = None,
    json: Json = False,
) -> None:
    """Print a line for each reject of the datasets."""
    datasets = select(names, configs, store, is_one=bool(partitions))
    found = {dataset.name: _rejects(dataset, partitions) for dataset in datasets}
    if json:
        documents = [{"dataset": name, "rejects": [*of]} for name, of in found.items()]
        print_json({"datasets": documents})
        return
    for name, rejects in found.items():
        num = 0
        for num, reject in enumerate(rejects, start=1):  # noqa: B007  # counted after the loop
            of_line = reject["line"] is not None
            place = f"line {reject['line']:,}" if of_line else f"row {reject['row']:,}"
            print(printable(f"{reject['raw_file']}, {place}: {reject['reason']}"))
        print(f"{name}: {counted(num, 'reject')}")


def _rejects(dataset: Dataset, partitions: Words) -> Iterator[dict[str, Any]]:
    """Yield the rejects of existing token shards, in the order of their files."""
    for planned in make_plan(dataset, partitions=partitions).planned:
        if not planned.output.step.has_engine or not planned.is_made:
            continue
        if planned.output.counts["num_rejects"]:
            lines = planned.output.open().file(REJECTS_NAME).read_bytes()
            yield from rejects_in(lines, planned.name)
