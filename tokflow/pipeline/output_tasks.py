"""The tasks that one output is made by, and what came of them."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokflow.documents import DocumentSource, ranges
from tokflow.errors import BadDocumentError, CorruptOutputError, MissingOutputError, TokflowError
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import Output
from tokflow.pipeline.results import StageResult
from tokflow.pools.pool import Advance, LostWorkerError, Shared
from tokflow.stage import Share, Writer
from tokflow.store.atomic import segment_folder
from tokflow.store.integrity import (
    Reading,
    Whole,
    check_files,
    check_made_again,
    known_whole,
    trust_files,
)
from tokflow.store.listed_files import arrived
from tokflow.store.manifest import FileEntry, is_complete, read_run
from tokflow.store.store import Store
from tokflow.tokenizers.chat.renderer import open_renderer

KEPT_HERE_BYTES = 10_000_000_000
"""Of an output that is made of no more text all segments stay on the disk of the one machine that
makes them, and it is put at its URL once; a larger one goes there as it is made, by all workers."""


@dataclass(frozen=True, slots=True)
class Common:
    """Data that all tasks of one output share, such as the manifests an export is made from."""

    writer: Writer
    shares: Sequence[Share]
    """What it is joined of; none where it is made as a whole."""
    whole: Whole
    """Files that it reads and need not hash again."""
    dropped: Mapping[str, FileEntry]
    """Files that were dropped of it, which it must have again."""


@dataclass(frozen=True, slots=True)
class Task:
    """One output to be made, or one segment of it, or one to be joined of its segments; goes to
    another process as it is."""

    name: str
    store: Store
    """The store of the output."""
    folder: Path
    common: Shared[Common]
    num_bytes: int
    """Approximate bytes of text it is made from."""
    number: int | None = None
    """Ordinal of the segment; None: the task makes the whole output."""
    shard: Path | None = None
    """Folder of the output that a segment belongs to, which another machine may make meanwhile;
    None where a damaged or disallowed one is there and must be made again."""
    joined: Sequence[Path] = ()
    """The folders of the segments that are to be joined."""
    segments_store: Store | None = None
    """Store of the segments, which may stay on this disk while the output goes to a URL."""
    whole: Whole = field(default_factory=dict)
    """Files of the segments that need not be hashed again."""

    @property
    def own_store(self) -> Store:
        """The store to write to."""
        if self.number is None or self.segments_store is None:
            return self.store
        return self.segments_store

    def write(self, folder: Path, advance: Advance) -> None:
        """Write the files into an empty folder."""
        common = self.common.value
        arrived.update({**common.whole, **self.whole})
        with Reading():
            if not self.joined:
                share = None if self.number is None else common.shares[self.number]
                common.writer.write(share, folder, advance)
            else:
                store = self.segments_store or self.store
                store.refresh_outputs(self.joined)  # one of an earlier run may be here
                store.fetch_runs(self.joined)
                common.writer.join([store.read(of) for of in self.joined], folder)
            if self.number is None:
                check_made_again(folder, self.folder.parent, common.dropped)


class OutputTasks:
    """An output that is being made: by one task or by one for each of its segments, which are of a
    large raw file or of the files of an export."""

    def __init__(self, graph: BuildGraph, output: Output, *, is_here: bool) -> None:
        """`is_here`: all tasks are done on this machine."""
        self.graph, self.output = graph, output
        self._num_bytes = bytes_read(graph, output)
        self._stays_here = is_here and self._num_bytes <= KEPT_HERE_BYTES
        self.num_left = 0
        """Number of tasks under way or waiting."""
        self.is_told = False
        """True once its result was yielded."""
        self._folder = Path()
        """The folder of the output, as it is begun."""
        self._segments: Sequence[Share] = []
        self._joining: Task | None = None
        """The task that joins them, until it is handed out."""
        self.errors: dict[Path, Exception] = {}
        """Errors by task folder; the first in order becomes the error of the output. With one no
        later task need be done."""
        self.use = ExitStack()
        """Marks of the folder of segments as in use."""

    def tasks(self) -> list[Task]:
        """Return the tasks to do; an error that prevents them becomes the result."""
        output = self.output
        try:
            with Reading():
                writer = output.step.writer(output)
                self._segments = writer.shares()
            begun = writer.begun
            folder = output.folder if begun is None else output.place / begun.fingerprint[:16]
            self._folder = folder
            whole, dropped = known_whole(writer.inputs()), dict[str, FileEntry]()
            if not output.is_first_of_kind:
                with suppress(MissingOutputError, CorruptOutputError):  # of what it has no more
                    dropped = output.graph.store.read(output.folder).manifest.dropped
            common = Common(writer, self._segments, whole, dropped)
            shared = Shared(common, num_tasks=len(self._segments))
            task = Task(output.title, output.graph.store, folder, shared, self._num_bytes)
            if not self._segments:
                self.num_left = 1
                return [task]
            task = replace(task, shard=None if is_complete(folder) else folder)
            store, kept = output.graph.store.segments(folder, stay_here=self._stays_here)
            self.use.enter_context(store.in_use(kept))
            folders = [segment_folder(kept, of.number) for of in self._segments]
            task = replace(task, segments_store=store)
            self._joining = replace(task, joined=folders)
            tasks = [
                replace(task, folder=folder, number=of.number)
                for of, folder in zip(self._segments, folders, strict=True)
                if not _is_there(output, of, folder, store)
            ]
        except Exception as error:
            self.errors[Path()] = error
            return []
        self.num_left = len(tasks)
        return tasks or list(filter(None, [self.next_task()]))

    def next_task(self) -> Task | None:
        """Return the task that joins all segments, once, when they are there; else None."""
        task = self._joining
        if task is None or self.errors or self.num_left:
            return None
        try:
            _ = self.output.fingerprint  # known to whoever joins them: raw files are read by now
        except Exception as error:
            self.errors[Path()] = error
            return None
        self._joining, self.num_left, here = None, 1, []
        for folder in filter(is_complete, task.joined):
            with suppress(TokflowError):  # whoever joins them tells of it
                here.append((task.segments_store or task.store).read(folder))
        return replace(task, whole=known_whole(here))

    def done(self, task: Task, error: Exception | None) -> None:
        """Record the outcome of a task."""
        self.num_left -= 1
        try:
            if error is not None:
                raise error
            if self._segments and is_complete(task.folder):  # else on another machine
                made = task.own_store.read(task.folder)
                trust_files(made)
                if self.graph.ahead is not None and self.output.step.has_engine:
                    self.graph.ahead.add(made, self.output.key, task.number)
        except LostWorkerError as lost:
            fields = {**lost.fields(), "where": f"{self.output.title}, in a worker process"}
            self.errors[task.folder] = LostWorkerError(**fields)
        except Exception as found:
            self.errors[task.folder] = found

    def result(self) -> StageResult | Exception:
        """Return the output as it is in the store now, joined of its segments, or the error."""
        output, error = self.output, self.errors[min(self.errors)] if self.errors else None
        if not self._segments:
            return error or result_of(self.graph, output, is_new=True)
        if error is not None:  # another machine may have made it meanwhile
            output.graph.store.look_for([output.folder])
        is_there = error is None or (output.is_made and not self.graph.lacks_tokens(output))
        if is_there or isinstance(self.errors.get(self._folder), CorruptOutputError):
            stayed_here = self._stays_here and error is None
            output.graph.store.remove_segments(self._folder, stayed_here=stayed_here)
        if error is None or is_there:
            return result_of(self.graph, output, is_new=error is None)
        documents = self.graph.dataset.documents
        if not isinstance(error, BadDocumentError) or documents.on_bad_document == "error":
            return error  # each range has its own
        try:  # how many may be set aside is counted from the beginning of the whole file
            render = open_renderer(documents, self.graph.tokenizer)
            paths = self.graph.raw(output.name).paths
            for _ in DocumentSource(paths, documents).batches(render=render):
                pass
        except Exception as first:
            return first
        return error


def _is_there(output: Output, segment: Share, folder: Path, store: Store) -> bool:
    """Return whether a killed run, or another, has made the segment, and it is allowed now.

    Its files are read here, and not once more when it is joined. One that is damaged is removed,
    since a new one takes no name of one that has the right sizes.
    """
    try:
        found = store.read(folder)
        check_files(found, fetches=False)
    except CorruptOutputError:
        shutil.rmtree(folder, ignore_errors=True)
        return False
    except TokflowError:
        return False
    is_same = found.manifest.recipe.fingerprint == segment.recipe.fingerprint
    return is_same and not output.step.refused(found.manifest.counts, output.graph.dataset)


def result_of(graph: BuildGraph, output: Output, *, is_new: bool) -> StageResult | Exception:
    """Return an output that was made, or looked for, as it is in the store now."""
    try:
        output.graph.store.look_for([output.folder])
        if is_new:
            for name in ("known", "stored"):  # of an output of which files were dropped
                output.__dict__.pop(name, None)
        stored = output.open()
        made = StageResult(output, stored, is_new, read_run(output.folder))
        if output.step.has_latest:
            output.graph.store.point_latest(output.folder)
        elif is_new:  # nothing else of a run is made from what people read
            trust_files(made)
    except Exception as error:
        return error
    return made


def bytes_read(graph: BuildGraph, output: Output) -> int:
    """Return the approximate bytes of text an output is made from; 0 for a tokenizer."""
    of_all = graph.partitions if output.is_of_all_files else ()
    partitions = map(graph.raw, [output.key] if output.step.is_of_file else of_all)
    documents = graph.dataset.documents
    return sum(
        ranges.text_bytes_of(*size, documents) for raw in partitions for size in raw.sizes.items()
    )
