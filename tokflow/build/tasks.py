"""Outputs made by a pool: each is a task, with all that a worker needs to make it alone."""

import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tokflow.build.graph import BuildGraph
from tokflow.build.output import Output, Stage
from tokflow.build.results import StageResult
from tokflow.documents import ranges, read_documents
from tokflow.errors import BadDocumentError, TokflowError
from tokflow.exports import write_export
from tokflow.exports.part import inputs_of
from tokflow.pools.pool import Advance, InProcess, LostWorkerError, Pool, ignore
from tokflow.sequences.segments import write_sequences
from tokflow.split.cut_tokens import CutEncoder, write_cut_tokens
from tokflow.split.spans import write_split
from tokflow.store.atomic import new_folder, point_latest_to
from tokflow.store.integrity import Whole, known_whole, take_as_whole, trust_files
from tokflow.store.manifest import check_sizes, is_complete, read_run
from tokflow.store.stored_outputs import read_output
from tokflow.store.verdicts import spread_verdict
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.engines import EngineDiffersError
from tokflow.tokenizers.sources import write_tokenizer
from tokflow.tokens.encoder import engine_for
from tokflow.tokens.shard import refused, write_token_shard
from tokflow.tokens.shard_segments import (
    ShardSegment,
    join_segments,
    may_have_segments,
    segments_folder,
    segments_of,
)

Write: TypeAlias = Callable[..., None]
"""The function that writes an output's files into an empty folder, but for that folder."""


@dataclass(frozen=True, slots=True)
class Task:
    """One output to be made, or one segment of it; goes to another process as it is."""

    stage: Stage
    name: str
    folder: Path
    write: Write
    whole: Whole
    """Files that it reads and need not hash again."""
    shard: Path | None = None
    """Of a segment: the folder of its shard, which another machine may make meanwhile."""


SMALL_BYTES = 250_000_000
"""Raw files that hold no more text together are done in this process: to start others, and to load
an engine in each, takes as long as gigatoken does for them."""

SMALL_BYTES_OF_SLOW_ENGINES = 10_000_000
"""The same where another engine makes the tokens."""

FAST_ENGINES = ("gigatoken", "bytes")

MAX_FILES_SENT = 2_000
"""A task of an export carries the manifests of all files, 2 kB each; with more it stays here."""


def make_task(task: Task, advance: Advance) -> None:
    """Make the output of a task, whole or not at all."""
    if task.shard is not None and is_complete(task.shard):
        return
    take_as_whole(task.whole)
    with new_folder(task.folder) as folder:
        if task.stage == "tokens":
            task.write(folder, progress=advance)
        else:
            task.write(folder)


Results: TypeAlias = Generator[tuple[Output, StageResult | Exception], None, None]


def make_outputs(outputs: Iterable[Output], pool: Pool, *, advance: Advance = ignore) -> Results:
    """Yield outputs of one stage with what came of each: first those that are there already, then
    what the pool makes of the others, as it is done.

    Long tasks begin first, so that no worker ends long before the last. Few bytes are done in this
    process. What cannot be made has its error, and stops no other. Counts are those of the
    manifests in the store, not of a worker.
    """
    missing = []
    for output in outputs:
        try:
            if output.find() is None:
                missing.append(output)
                continue
        except Exception as error:
            yield output, error
            continue
        yield output, _result(output, is_new=False)
    if _is_small(missing):
        pool = InProcess()
    else:
        missing.sort(key=_longest_task, reverse=True)
    yield from _make_missing(missing, pool, advance)


def _is_small(missing: Sequence[Output]) -> bool:
    """Return whether other processes would not be worth their start."""
    if any(of.stage == "export" and len(of.graph.sources) > MAX_FILES_SENT for of in missing):
        return True
    num_bytes = sum(map(_bytes_read, missing))
    if num_bytes > SMALL_BYTES:
        return False
    if num_bytes > SMALL_BYTES_OF_SLOW_ENGINES and missing[0].stage == "tokens":
        graph = missing[0].graph
        with suppress(TokflowError):  # of which each output tells
            return engine_for(graph.encoding, graph.dataset.documents).name in FAST_ENGINES
    return True


def _bytes_read(output: Output) -> int:
    """Return about how much text an output is made from, that of a tokenizer aside."""
    graph = output.graph
    of_all = graph.sources if output.stage == "export" else ()
    raw_files = map(graph.raw_file, [output.name] if output.is_of_file else of_all)
    documents = graph.dataset.documents
    return sum(ranges.text_bytes_of(raw.path, raw.num_bytes, documents) for raw in raw_files)


def _longest_task(output: Output) -> int:
    """Return about how much text the largest task of an output is made from."""
    graph, num_bytes = output.graph, _bytes_read(output)
    if output.stage != "tokens":
        return num_bytes
    is_cut = may_have_segments(graph.raw_file(output.name), graph.dataset.documents)
    return min(num_bytes, ranges.RANGE_BYTES) if is_cut else num_bytes


def _make_missing(missing: Iterable[Output], pool: Pool, advance: Advance) -> Results:
    under_way = {output.name: _UnderWay(output) for output in missing}
    known: list[_UnderWay] = []
    """Those of which the pool has nothing more to tell."""

    def tasks() -> Iterator[Task]:
        for output in under_way.values():
            for task in output.tasks():
                if output.has_failed:
                    output.num_left -= 1
                else:
                    yield task
            if output.num_left == 0 and not output.is_told:
                known.append(output)

    for task, error in pool.map(make_task, tasks(), advance=advance):
        output = under_way[task.name]
        output.done(task, error)
        if isinstance(error, EngineDiffersError):
            yield output.output, error
        elif output.num_left == 0:
            output.is_told = True
            yield output.output, output.result()
    for output in known:
        yield output.output, output.result()


class _UnderWay:
    """An output that is being made: by one task or, of a large raw file, by one for each range."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.num_left = 0
        """Tasks that are not done."""
        self.is_told = False
        """True once its result was yielded."""
        self._segments: list[ShardSegment] = []
        self._errors: dict[Path, Exception] = {}
        """By the folder of their task, of which the first in order is that of the output."""

    def tasks(self) -> list[Task]:
        """Return what is to be done; what makes that impossible is the result."""
        output = self.output
        try:
            folder, write = output.folder, WRITERS[output.stage](output.graph, output.name)
            task = Task(output.stage, output.name, folder, write, _whole_inputs(output, write))
            self._segments = _segments_of(output)
            tasks = [
                replace(
                    task, folder=of.folder(folder), write=partial(write, segment=of), shard=folder
                )
                for of in self._segments
                if not _is_there(of, output)
            ]
        except Exception as error:
            self._errors[Path()] = error
            return []
        if not self._segments:
            tasks = [task]
        self.num_left = len(tasks)
        return tasks

    @property
    def has_failed(self) -> bool:
        """True if a task has failed, so that no later one need be done."""
        return bool(self._errors)

    def done(self, task: Task, error: Exception | None) -> None:
        """Take what came of a task."""
        self.num_left -= 1
        try:
            if error is not None:
                raise error
            if self._segments:
                trust_files(read_output(task.folder))
        except LostWorkerError as lost:
            fields = {**lost.fields(), "where": f"{self.output.title}, in a worker process"}
            self._errors[task.folder] = LostWorkerError(**fields)
        except Exception as found:
            self._errors[task.folder] = found

    def result(self) -> StageResult | Exception:
        """Return the output as it is in the store now, joined of its segments, or the error."""
        error = self._errors[min(self._errors)] if self._errors else None
        if self._segments and error is None:
            try:
                self._join()
            except Exception as found:
                error = found
        if self._segments and (error is None or self.output.is_made):  # by another machine
            shutil.rmtree(segments_folder(self.output.folder), ignore_errors=True)
            return _result(self.output, is_new=error is None)
        if self._segments and isinstance(error, BadDocumentError):
            return self._first_error() or error
        return error or _result(self.output, is_new=True)

    def _join(self) -> None:
        output = self.output
        with new_folder(output.folder) as folder:
            join_segments(
                [read_output(segment.folder(output.folder)) for segment in self._segments],
                folder,
                raw=output.graph.raw_file(output.name),
                documents=output.graph.dataset.documents,
                recipe=output.recipe,
            )

    def _first_error(self) -> Exception | None:
        """Return the error that reading the whole file ends with: how many documents may be set
        aside is counted from its beginning."""
        graph = self.output.graph
        documents, path = graph.dataset.documents, graph.raw_file(self.output.name).path
        if documents.on_bad_document == "error":
            return None  # each range has its own
        try:
            for _ in read_documents(
                path, documents, render=open_renderer(documents, graph.tokenizer)
            ):
                pass
        except Exception as error:
            return error
        return None


def _whole_inputs(output: Output, write: Any) -> Whole:
    """Return what is known of the token shards that an export is made from; other stages read
    small files alone."""
    return known_whole(inputs_of(write.args[0])) if output.stage == "export" else {}


def _is_there(segment: ShardSegment, output: Output) -> bool:
    """Return whether a killed run, or another, has made the segment, and it is allowed now."""
    dataset = output.graph.dataset
    try:
        found = read_output(segment.folder(output.folder))
        check_sizes(found.folder, found.manifest)
    except TokflowError:
        return False
    is_allowed = refused(found.manifest.counts, dataset.documents, dataset.tokenizer) is None
    return is_allowed and found.manifest.fingerprint == segment.recipe.fingerprint


def _segments_of(output: Output) -> list[ShardSegment]:
    """Return the segments that the token shard of a large raw file is made of; else none."""
    if output.stage != "tokens":
        return []
    raw, documents = output.graph.raw_file(output.name), output.graph.dataset.documents
    return segments_of(raw, documents, output.recipe)


def _result(output: Output, *, is_new: bool) -> StageResult | Exception:
    try:
        made = StageResult(output, output.manifest(), is_new, read_run(output.folder))
        if output.stage == "export":
            point_latest_to(output.folder)
        elif is_new:  # nothing else of a run is made from an export
            trust_files(made)
    except Exception as error:
        return error
    return made


def _tokenizer(graph: BuildGraph, _: str) -> Write:
    return partial(write_tokenizer, graph.tokenizer_source(), dataset=graph.dataset.name)


def _tokens(graph: BuildGraph, key: str) -> Write:
    dataset, tokenizer = graph.dataset, graph.tokenizer
    spread_verdict(tokenizer.folder, tokenizer.fingerprint)
    raw, documents = graph.raw_file(key), dataset.documents
    return partial(write_token_shard, raw, documents, graph.encoding, dataset=dataset.name)


def _split(graph: BuildGraph, key: str) -> Write:
    dataset = graph.dataset
    return partial(
        write_split,
        graph.open_tokens(key),
        dataset.split,
        dataset=dataset.name,
        position=graph.position(key),
        encode_cut=cut_encoder(graph, key),
    )


def cut_encoder(graph: BuildGraph, key: str) -> CutEncoder:
    """Return the encoder of what the split of one file cuts."""
    return partial(
        write_cut_tokens,
        raw=graph.raw_file(key),
        documents=graph.dataset.documents,
        encoding=graph.encoding,
    )


def _sequences(graph: BuildGraph, key: str) -> Write:
    dataset = graph.dataset
    return partial(write_sequences, graph.open_split(key), dataset.packing, dataset=dataset.name)


def _export(graph: BuildGraph, name: str) -> Write:
    config = graph.export_config(name)
    return partial(
        write_export,
        graph.parts(config),
        config,
        dataset=graph.dataset.name,
        parents=graph.export(config).recipe.parents,
        details=graph.export_details(),
    )


WRITERS: Mapping[Stage, Callable[[BuildGraph, str], Write]] = {
    "tokenizer": _tokenizer,
    "tokens": _tokens,
    "split": _split,
    "sequences": _sequences,
    "export": _export,
}
"""The function that writes each stage's outputs, with what it is given."""
