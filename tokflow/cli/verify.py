"""`tokflow verify`: a line per output, and every problem."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from tokflow.audit.verify.verification import Verification, verify_dataset, verify_path
from tokflow.cli.options import Configs, Json, ProjectFolder, StoreName, Trust
from tokflow.cli.selection import select
from tokflow.cli.terminal import FAILED, exit_status, print_error, print_json, print_styled
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import list_declared
from tokflow.shown import counted, size
from tokflow.store.stored_outputs import path_of
from tokflow.store.urls import is_url


def main(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH | URL | NAME]",
            help="An output, a folder of outputs, or a declared dataset.",
        ),
    ] = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference", help="Compare the tokens of all documents with the reference's."
        ),
    ] = False,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> int:
    """Print the result of each output as soon as it is known; return the exit status."""
    results: list[Verification] = []
    broken: dict[str, ConfigError] = {}
    if target is None or configs or target in (declared := list_declared()):
        datasets = select([target] if target else None, configs, store, broken=broken)
        found = _verify_datasets(datasets, all_documents=reference)
    else:
        found = _verify_at(target, declared, is_reference=reference, trust=trust_remote_code)
    for verified in found:
        results.append(verified)
        if not json:
            _print(verified)
    num_problems = sum(len(verified.problems) for verified in results)
    if json:
        print_json({"num_problems": num_problems, "outputs": results})
    else:
        print(f"{size(sum(verified.num_bytes for verified in results))} compared with checksums")
        outputs = counted(len(results), "output")
        print(f"{outputs}: {counted(num_problems, 'problem') if num_problems else 'all well'}")
    return FAILED if num_problems else exit_status(broken.values())


def _verify_at(
    target: str, declared: Iterable[str], *, is_reference: bool, trust: bool
) -> Iterator[Verification]:
    """Yield what is found at a path or URL. Raises: ConfigError where there is none."""
    if is_reference:
        raise ConfigError(
            where="option --reference",
            expected="a declared dataset, whose raw files are read",
            found=f"the path {target}",
            remedy="name the dataset, or its YAML file by --config",
        )
    if not is_url(target) and not path_of(target).exists():
        raise ConfigError(
            where=f"argument {target!r}",
            expected=f"a path in a store or a declared dataset: {', '.join(declared) or '(none)'}",
            found="neither",
            remedy="correct it, or name a YAML file by --config",
        )
    return verify_path(target, trust_remote_code=trust)


def _verify_datasets(datasets: Sequence[Dataset], *, all_documents: bool) -> Iterator[Verification]:
    for dataset in datasets:
        of_it = f"{dataset.name}: " if len(datasets) > 1 else ""
        for verified in verify_dataset(dataset, all_documents=all_documents):
            yield replace(verified, name=f"{of_it}{verified.name}")


def _print(verified: Verification) -> None:
    note = f" ({'; '.join(verified.notes)})" if verified.notes else ""
    state = ("failed", "red") if verified.problems else ("ok", "green")
    print_styled(state, f"  {verified.name}  {verified.folder.name}{note}")
    for problem in verified.problems:
        print_error(problem)
