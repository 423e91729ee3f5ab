"""`tokflow gc`: remove what no current config refers to."""

from collections.abc import Sequence

from tokflow.build.gc import find_garbage, remove
from tokflow.cli.output import DONE, counted, print_json, size
from tokflow.cli.selection import Selected


def collect_garbage(
    selected: Sequence[Selected], *, keep: int, is_dry_run: bool, as_json: bool
) -> int:
    """Remove, or with `is_dry_run` only list, the outputs that are not needed.

    Nothing is removed unless every dataset is built.
    """
    documents = []
    found = [(one.dataset, find_garbage(one.dataset, keep=keep)) for one in selected]
    for dataset, garbage in found:
        num_bytes = sum(output.num_bytes for output in garbage)
        for output in garbage:
            if not as_json:
                print(f"{output.folder.relative_to(dataset.folder)}  {size(output.num_bytes)}")
            if not is_dry_run:
                remove(output)
        documents.append(
            {
                "dataset": dataset.name,
                "is_dry_run": is_dry_run,
                "num_bytes": num_bytes,
                "folders": [str(output.folder) for output in garbage],
            }
        )
        if not as_json:
            verb = "would be removed by --yes" if is_dry_run else "removed"
            outputs = f"{counted(len(garbage), 'output')} of {size(num_bytes)} {verb}"
            print(f"{dataset.name}: {outputs if garbage else 'nothing to remove'}")
    if as_json:
        print_json({"datasets": documents})
    return DONE
