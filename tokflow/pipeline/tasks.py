"""Outputs made by a pool: each is a task, with all that a worker needs to make it alone."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from tokflow.errors import TokflowError
from tokflow.exports.growing_bin import MOST_PARTITIONS, TokensAhead
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import Output
from tokflow.pipeline.output_tasks import OutputTasks, Task, bytes_read, result_of
from tokflow.pipeline.results import StageResult
from tokflow.pools import SMALL_BYTES
from tokflow.pools.pool import Advance, InProcess, LostWorkerError, Pool, ignore
from tokflow.raw import RawPartition
from tokflow.split.rule import PartConfig
from tokflow.stage import stages_giving
from tokflow.store.atomic import NewFolders
from tokflow.store.integrity import ReadAgainError, Reading
from tokflow.store.manifest import is_complete
from tokflow.store.requests import AT_ONCE
from tokflow.tokenizers.engines.gate import EngineDiffersError, GatedEngine
from tokflow.tokens.encoder import engine_for
from tokflow.tokens.shard_files import may_have_segments

BYTES_OF_OUTPUT = 200_000
"""Text that takes gigatoken 2 ms, as long as an output takes that holds next to none."""

SMALL_BYTES_OF_SLOW_ENGINES = 10_000_000
"""The same where another engine makes the tokens."""

SMALL_BYTES_OF_TRANSFORMS = 100_000_000
"""The same with a function of the user, which may be slow; to read with one that returns its text
does 530 MB/s of documents of 14 kB, 50 MB/s of lines of 37 bytes."""

FAST_ENGINES = ("gigatoken", "bytes")

MADE_TOGETHER = 64
"""Small outputs that wait for the disk together: 0.3 to 0.8 ms for each; one by one, 1 to 4 ms."""

MADE_TOGETHER_BYTES = 1_000_000
"""Outputs of more text than this, one or several, are not made together with others."""


def make_tasks(tasks: Sequence[Task], advance: Advance) -> list[Exception | None]:
    """Make the outputs of tasks, each whole or not at all; return what kept each from it.

    Raises: EngineDiffersError, and makes none of them.
    """
    errors: dict[Path, Exception] = {}
    with NewFolders() as new:
        for task in tasks:
            try:
                if task.shard is not None:
                    task.store.look_for([task.shard])
                    if is_complete(task.shard):
                        continue
                # Else the output gets its name from the manifest that is written.
                is_named = task.number is not None or task.common.value.writer.begun is None
                with new.writing(task.folder, task.own_store, is_named=is_named) as folder:
                    task.write(folder, advance)
            except EngineDiffersError:
                raise
            except Exception as error:
                errors[task.folder] = error
        errors |= new.commit()
    return [errors.get(task.folder) for task in tasks]


Results: TypeAlias = Generator[tuple[Output, StageResult | Exception], None, None]


def make_outputs(
    graph: BuildGraph, outputs: Iterable[Output], pool: Pool, *, advance: Advance = ignore
) -> Results:
    """Yield outputs of one stage with what came of each: first those that are there already, then
    what the pool makes of the others, as it is done.

    Long tasks begin first, so that no worker ends long before the last. Few bytes are done in this
    process. What cannot be made has its error, and stops no other. Outputs that read a damaged copy
    of a file, which is gone now, are made once more, from the start. Counts are those of the
    manifests in the store, not of a worker.
    """
    missing = []
    for output in outputs:
        try:
            if output.find() is None or graph.lacks_tokens(output):
                missing.append(output)
                continue
        except Exception as error:
            yield output, error
            continue
        yield output, result_of(graph, output, is_new=False)
    sizes = {of: bytes_read(graph, of) for of in missing}
    num_bytes = sum(sizes.values())
    is_quick = is_small(num_bytes, num_outputs=len(missing))
    if is_quick and num_bytes > SMALL_BYTES_OF_SLOW_ENGINES and missing[0].step.has_engine:
        is_quick = not graph.dataset.documents.transform or num_bytes <= SMALL_BYTES_OF_TRANSFORMS
        with suppress(TokflowError):  # of which each output tells
            is_quick = is_quick and engine_of(graph).name in FAST_ENGINES
    if is_quick:
        pool = InProcess()
    else:
        missing.sort(key=lambda of: -of.step.largest_task(of, sizes[of]))
    again = []
    for output, result in _make(graph, missing, pool, advance):
        if isinstance(result, ReadAgainError):
            again.append(output)
        else:
            yield output, result
    if again:
        yield from _make(graph, again, pool, advance)


def is_small(num_bytes: int, *, num_outputs: int) -> bool:
    """Return whether a fast engine is done with outputs before other processes have started."""
    return num_bytes + num_outputs * BYTES_OF_OUTPUT <= SMALL_BYTES


def engine_of(graph: BuildGraph) -> GatedEngine:
    """Return the engine that makes the tokens of a dataset. Raises: as `engine_for`."""
    with Reading():
        return engine_for(graph.encoding, graph.dataset.documents)


@contextmanager
def tokens_ahead(
    graph: BuildGraph, partitions: Mapping[str, RawPartition], pool: Pool
) -> Iterator[None]:
    """Let the tokens of all `partitions` be copied as they are made in the block, where they are
    large, new and made here, and an export consists of them."""
    dataset, files = graph.dataset, partitions.values()
    is_all_tokens = any(of.format == "bin" for of in dataset.exports) and not (
        dataset.shuffle.documents or stages_giving(dataset, "selection", "strata")
    )
    parts = [*dataset.split.parts.values()]
    is_all_tokens &= parts in ([PartConfig(start=0)], [PartConfig(fraction=1.0)])
    is_elsewhere = graph.store.is_cached or not pool.is_here
    is_large = not is_small(sum(of.num_bytes for of in files), num_outputs=0)
    has_several = len(files) > 1 or any(may_have_segments(of, dataset.documents) for of in files)
    with ExitStack() as stack:
        if (
            is_large
            and has_several
            and len(files) <= MOST_PARTITIONS
            and not (is_elsewhere or graph.of_sources or graph.limited)
            and is_all_tokens
            and not any(graph.tokens(key).is_made for key in partitions)
        ):
            graph.ahead = stack.enter_context(TokensAhead(graph.folder, list(partitions)))
            stack.callback(setattr, graph, "ahead", None)
        yield


def _make(graph: BuildGraph, missing: Iterable[Output], pool: Pool, advance: Advance) -> Results:
    under_way = {of.title: OutputTasks(graph, of, is_here=pool.is_here) for of in missing}
    joins: deque[Task] = deque()
    """Of outputs whose segments are there."""

    def tasks() -> Iterator[Task]:
        for output in under_way.values():
            for task in output.tasks():
                if output.errors:
                    output.num_left -= 1
                else:
                    yield task
                    while joins:
                        yield joins.popleft()

    with ExitStack() as stack:
        for output in under_way.values():
            stack.push(output.use)
        waiting: Iterable[Task] = tasks()
        while waiting:
            for task, error in _make_all(waiting, pool, advance, is_cached=graph.store.is_cached):
                output = under_way[task.name]
                output.done(task, error)
                if isinstance(error, EngineDiffersError):
                    yield output.output, error
                elif (join := output.next_task()) is not None:
                    joins.append(join)
                elif output.num_left == 0:
                    output.is_told = True
                    yield output.output, output.result()
            waiting = list(joins)
            joins.clear()
        for output in under_way.values():
            if not output.is_told:  # the pool has had nothing of it, or nothing more
                yield output.output, output.result()


def _make_all(
    tasks: Iterable[Task], pool: Pool, advance: Advance, *, is_cached: bool
) -> Iterator[tuple[Task, Exception | None]]:
    """Yield tasks, each with what kept it from being made, as they are done.

    `is_cached`: the store is at a URL, and its manifests come to this disk. Where several were lost
    with their worker, each is tried once more alone, after all others: one of them may have ended
    it.
    """
    batches: Iterable[list[Task]] = _together(tasks)
    while batches:
        lost: list[list[Task]] = []
        made: Iterable[Made] = pool.map(make_tasks, batches, advance=advance)
        if is_cached:
            made = _with_manifests(made)
        for together, errors in made:
            if isinstance(errors, LostWorkerError) and len(together) > 1:
                lost += [[task] for task in together]
                continue
            each = [errors] * len(together) if isinstance(errors, Exception) else errors
            yield from zip(together, each, strict=True)
        batches = lost


Made: TypeAlias = tuple[list[Task], list[Exception | None] | Exception]


def _with_manifests(made: Iterable[Made]) -> Iterator[Made]:
    """Yield them in order, when the manifests and logs of what other machines have made are on this
    disk: each takes as long as a server's answer, so that several are fetched at once."""
    waiting: deque[tuple[Made, Future[None]]] = deque()

    def fetch(tasks: Sequence[Task]) -> None:
        store, folders = tasks[0].store, [task.folder for task in tasks]
        with suppress(TokflowError):  # the reader retries and reports
            store.look_for(folders)
            store.fetch_runs(folders)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for each in made:
            # Segments are joined where they were made.
            away = [of for of in each[0] if of.number is None and not is_complete(of.folder)]
            if not (away or waiting):
                yield each
                continue
            waiting.append((each, threads.submit(fetch, away)))
            while len(waiting) > AT_ONCE or (waiting and waiting[0][1].done()):
                wait([waiting[0][1]])
                yield waiting.popleft()[0]
        for each, fetching in waiting:
            wait([fetching])
            yield each


def _together(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Yield tasks in order, small ones with others; none waits here for what comes after it."""
    together: list[Task] = []
    num_bytes = 0
    for task in tasks:
        num_bytes += task.num_bytes
        if together and num_bytes > MADE_TOGETHER_BYTES:
            yield together
            together, num_bytes = [], task.num_bytes
        together.append(task)
        if len(together) == MADE_TOGETHER or num_bytes > MADE_TOGETHER_BYTES:
            yield together
            together, num_bytes = [], 0
    if together:
        yield together
