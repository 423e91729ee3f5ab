"""The tasks that one output is made by, and what came of them."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tokflow.build.output import Output, Stage
from tokflow.build.results import StageResult
from tokflow.build.writers import WRITERS, ExportWriter, Write
from tokflow.documents import DocumentSource, ranges
from tokflow.errors import BadDocumentError, CorruptOutputError, TokflowError
from tokflow.exports.export_segments import ExportSegment, segments_of_export
from tokflow.exports.part import inputs_of
from tokflow.pools.pool import LostWorkerError
from tokflow.store.atomic import new_folder, point_latest_to
from tokflow.store.integrity import Whole, check_files, known_whole, trust_files
from tokflow.store.manifest import is_complete, read_run
from tokflow.store.segments import segments_folder
from tokflow.store.stored_outputs import read_output
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokens.shard import refused
from tokflow.tokens.shard_segments import (
    ShardSegment,
    join_segments,
    may_have_segments,
    segments_of,
)


@dataclass(frozen=True, slots=True)
class Task:
    """One output to be made, or one segment of it; goes to another process as it is."""

    stage: Stage
    name: str
    folder: Path
    write: Write
    whole: Whole
    """Files that it reads and need not hash again."""
    num_bytes: int
    """About how much text it is made from."""
    shard: Path | None = None
    """Of a segment: the folder of its output, which another machine may make meanwhile; None where
    one is there that is damaged, or not allowed now, and must be made again."""


class OutputTasks:
    """An output that is being made: by one task or by one for each of its segments, which are of a
    large raw file or of the files of an export."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.num_left = 0
        """Tasks that are not done."""
        self.is_told = False
        """True once its result was yielded."""
        self._write: Write | None = None
        self._segments: Sequence[ShardSegment | ExportSegment] = []
        self._errors: dict[Path, Exception] = {}
        """By the folder of their task, of which the first in order is that of the output."""

    def tasks(self) -> list[Task]:
        """Return what is to be done; what makes that impossible is the result."""
        output = self.output
        try:
            make_write = WRITERS[output.stage]
            folder, write = output.folder, make_write(output.graph, output.name, output.packing)
            inputs = _whole_inputs(write), bytes_read(output)
            task = Task(output.stage, output.name, folder, write, *inputs)
            self._segments = _segments_of(output, write)
            self._write = write
            task_of = partial(replace, task, shard=None if is_complete(folder) else folder)
            tasks = [
                task_of(folder=of.folder(folder), write=partial(write, segment=of))
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
            return result_of(self.output, is_new=error is None)
        if self._segments and isinstance(error, BadDocumentError):
            return self._first_error() or error
        return error or result_of(self.output, is_new=True)

    def _join(self) -> None:
        output = self.output
        segments = [read_output(segment.folder(output.folder)) for segment in self._segments]
        with new_folder(output.folder) as folder:
            if isinstance(self._write, ExportWriter):
                self._write.join(segments, folder)
                return
            join_segments(
                segments,
                folder,
                raw=output.graph.raw(output.name),
                documents=output.graph.dataset.documents,
                recipe=output.recipe,
            )

    def _first_error(self) -> Exception | None:
        """Return the error that reading the whole file ends with: how many documents may be set
        aside is counted from its beginning."""
        graph = self.output.graph
        documents, paths = graph.dataset.documents, graph.raw(self.output.name).paths
        if documents.on_bad_document == "error":
            return None  # each range has its own
        try:
            render = open_renderer(documents, graph.tokenizer)
            for _ in DocumentSource(paths, documents).batches(render=render):
                pass
        except Exception as error:
            return error
        return None


def _whole_inputs(write: Write) -> Whole:
    """Return what is known of the token shards that an export is made from; other stages read
    small files alone."""
    return known_whole(inputs_of(write.parts)) if isinstance(write, ExportWriter) else {}


def _is_there(segment: ShardSegment | ExportSegment, output: Output) -> bool:
    """Return whether a killed run, or another, has made the segment, and it is allowed now.

    Its files are read here, and not once more when it is joined. One that is damaged is removed,
    since a new one takes no name of one that has the right sizes.
    """
    dataset, folder = output.graph.dataset, segment.folder(output.folder)
    try:
        found = read_output(folder)
        check_files(found)
    except CorruptOutputError:
        shutil.rmtree(folder, ignore_errors=True)
        return False
    except TokflowError:
        return False
    if found.manifest.fingerprint != segment.recipe.fingerprint:
        return False
    counts = found.manifest.counts
    return output.stage == "export" or not refused(counts, dataset.documents, dataset.tokenizer)


def _segments_of(output: Output, write: Write) -> Sequence[ShardSegment | ExportSegment]:
    """Return the segments that an export, or the token shard of a large raw file, is made of; else
    none."""
    if isinstance(write, ExportWriter):
        return segments_of_export(write.parts, write.config, output.recipe)
    if output.stage != "tokens":
        return []
    raw, documents = output.graph.raw(output.name), output.graph.dataset.documents
    return segments_of(raw, documents, output.recipe)


def result_of(output: Output, *, is_new: bool) -> StageResult | Exception:
    """Return an output that was made, or looked for, as it is in the store now."""
    try:
        made = StageResult(output, output.manifest(), is_new, read_run(output.folder))
        if output.stage == "export":
            point_latest_to(output.folder)
        elif is_new:  # nothing else of a run is made from an export
            trust_files(made)
    except Exception as error:
        return error
    return made


def bytes_read(output: Output) -> int:
    """Return about how much text an output is made from, that of a tokenizer aside."""
    graph = output.graph
    of_all = graph.partitions if output.stage == "export" else ()
    partitions = map(graph.raw, [output.name] if output.is_of_file else of_all)
    documents = graph.dataset.documents
    return sum(
        ranges.text_bytes_of(*size, documents) for raw in partitions for size in raw.sizes.items()
    )


def longest_task(output: Output) -> int:
    """Return about how much text the largest task of an output is made from."""
    graph, num_bytes = output.graph, bytes_read(output)
    if output.stage != "tokens":
        return num_bytes
    is_cut = may_have_segments(graph.raw(output.name), graph.dataset.documents)
    return min(num_bytes, ranges.RANGE_BYTES) if is_cut else num_bytes
