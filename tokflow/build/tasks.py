"""Outputs made by a pool: each is a task, with all that a worker needs to make it alone."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tokflow.build.graph import BuildGraph
from tokflow.build.output import Output, Stage
from tokflow.build.results import StageResult
from tokflow.exports import write_export
from tokflow.pools.pool import Advance, InProcess, Pool, ignore
from tokflow.sequences.segments import write_sequences
from tokflow.split.cut_tokens import CutEncoder, write_cut_tokens
from tokflow.split.spans import write_split
from tokflow.store.atomic import new_folder, point_latest_to
from tokflow.store.integrity import trust_files
from tokflow.store.manifest import read_run
from tokflow.store.verdicts import spread_verdict
from tokflow.tokenizers.sources import write_tokenizer
from tokflow.tokens.shard import write_token_shard

Write: TypeAlias = Callable[..., None]
"""The function that writes an output's files into an empty folder, but for that folder."""


@dataclass(frozen=True, slots=True)
class Task:
    """One output to be made; goes to another process as it is."""

    stage: Stage
    name: str
    folder: Path
    write: Write


SMALL_BYTES = 30_000_000
"""Raw files that are no larger together are done in this process: to start others, and to load an
engine in each, takes as long."""


def make_task(task: Task, advance: Advance) -> None:
    """Make the output of a task, whole or not at all."""
    with new_folder(task.folder) as folder:
        if task.stage == "tokens":
            task.write(folder, progress=advance)
        else:
            task.write(folder)


Results: TypeAlias = Generator[tuple[Output, StageResult | Exception], None, None]


def make_outputs(outputs: Iterable[Output], pool: Pool, *, advance: Advance = ignore) -> Results:
    """Yield outputs of one stage with what came of each: first those that are there already, then
    what the pool makes of the others, as it is done.

    Few bytes are done in this process. What cannot be made has its error, and stops no other.
    Counts are those of the manifests in the store, not of a worker.
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
    num_bytes = sum(of.graph.raw_file(of.name).num_bytes for of in missing if of.is_of_file)
    yield from _make_missing(missing, pool if num_bytes > SMALL_BYTES else InProcess(), advance)


def _make_missing(missing: Iterable[Output], pool: Pool, advance: Advance) -> Results:
    by_name = {output.name: output for output in missing}
    impossible: list[tuple[Output, Exception]] = []

    def tasks() -> Iterator[Task]:
        for output in by_name.values():
            try:
                yield _task_of(output)
            except Exception as error:
                impossible.append((output, error))

    for task, error in pool.map(make_task, tasks(), advance=advance):
        output = by_name[task.name]
        yield output, error or _result(output, is_new=True)
    yield from impossible


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


def _task_of(output: Output) -> Task:
    write = WRITERS[output.stage](output.graph, output.name)
    return Task(output.stage, output.name, output.folder, write)


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
