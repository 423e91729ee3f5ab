"""Verify whole outputs: one at a path, all below a folder, or all of a dataset."""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from tokflow.audit.verify.verifier import Verification, Verifier, unreadable
from tokflow.errors import TokflowError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.stages import STAGES
from tokflow.raw.hashes import CACHE_NAME
from tokflow.stage import RAW, Stage, stage_of
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import Unreadable, opened, output_at, output_in, walk


def verify_path(
    path: str | Path,
    *,
    trust_remote_code: bool = False,
    stages: tuple[Stage, ...] = STAGES,
    jobs: int | None = 1,
) -> Iterator[Verification]:
    """Yield what is found of the output at `path`, or of everything below it.

    Outputs come in the order of the stages, before them those that cannot be read. What an output
    was made from is compared with it only if its own files are whole; else that is yielded, too,
    with what is wrong with it. Of a store at a URL what is there is read, whatever is in the cache.
    A tokenizer that is Python code is loaded only with `trust_remote_code`. `stages`: those that
    made the outputs, parents first. `jobs`: so many processes compare large outputs; None is one
    for each core.

    Raises: MissingOutputError where there is no output.
    """
    store, path = opened(path)
    verifier = Verifier(store, stages, jobs, trust_remote_code=trust_remote_code)
    try:
        at = output_at(store, path)
    except (TokflowError, OSError) as error:
        yield unreadable(path, error)
        return
    below = (
        [] if at is not None else sorted(walk(store, path.resolve()), key=partial(_ordinal, stages))
    )
    if at is not None:
        yield verifier.verify_any(at)
        yield from (unreadable(at.folder, error) for error in verifier.unreadable_parents)
    elif not below:
        output_in(store, path)  # says what is there
    yield from verifier.verify_all(below)
    yield from verifier.damaged_parents()


def _ordinal(stages: tuple[Stage, ...], found: StoredOutput | Unreadable) -> int:
    """Return by what is sorted: what cannot be read, the stages in their order."""
    step = stage_of(stages, found.manifest) if isinstance(found, StoredOutput) else None
    return 1 + stages.index(step) if step else 0


def verify_dataset(
    dataset: Dataset, *, all_documents: bool = False, jobs: int | None = 1
) -> Iterator[Verification]:
    """Yield what is found of every output that the dataset must have now.

    Raw files are hashed, whatever is remembered of them, and token shards compared with them; the
    tokens of a sample, or of `all_documents`, are compared with the reference's. An output that is
    not there is a problem, and so is a wrong sha256 in the cache of checksums, which is put right.
    Tokens of gigatoken that are not the reference's are kept as a verdict, so that the next run
    makes all tokens of that tokenizer again. `jobs`: as of `verify_path`.

    Raises: TokflowError where the raw files or the tokenizer cannot be found.
    """
    graph = graph_of(dataset, rehash=True)
    for key, reason in graph.bad_files.items():
        note = f"it is left out of all outputs (raw.on_bad_file): {reason}"
        yield Verification(name=f"raw file {key}", folder=dataset.folder, notes=(note,))
    verifier = Verifier(
        dataset.store,
        dataset.known_stages,
        jobs,
        trust_remote_code=dataset.tokenizer.trust_remote_code,
        graph=graph,
        all_documents=all_documents,
    )
    # The copies of raw files that were fetched, before a damaged one is fetched anew.
    for found in walk(dataset.store, dataset.folder / RAW):
        is_copy = isinstance(found, StoredOutput) and found.manifest.partition in graph.sources
        if isinstance(found, Unreadable) or is_copy:
            yield verifier.verify_any(found)
    graph.read_raw_files(list(graph.partitions))
    for source in chain(*graph.partitions.values()):
        yield from _verify_remembered(graph, source.key)
    outputs = list[Output]()
    for output in graph.outputs():
        outputs.append(output)
        if output.step.decides_all and not output.is_made:  # what all others are is not known
            break
    yield from verifier.verify_all(outputs)


def _verify_remembered(graph: BuildGraph, key: str) -> Iterator[Verification]:
    """Yield what is wrong in the cache of checksums with that of a raw file."""
    try:
        raw = graph.raw_file(key)
    except (TokflowError, OSError):
        return  # a problem of its outputs
    if raw.remembered is None:
        return
    cache = graph.dataset.folder / CACHE_NAME
    problem = TokflowError(
        where=cache,
        expected=f"sha256 {raw.sha256[:16]}… of {raw.path}, as the file is now",
        found=f"{raw.remembered[:16]}… for a file of its size and times",
        remedy="the cache is right again; if it was the file that changed, restore it, else run "
        "`tokflow run` to build what is missing",
    )
    yield Verification(name=f"raw file {key}", folder=cache.parent, problems=(str(problem),))
