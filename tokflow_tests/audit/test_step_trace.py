"""What traces of a state say of the steps of a training, and of documents, against what the
training wrote down of each step."""

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.audit.document_trace import trace_document, trace_documents
from tokflow.audit.step_trace import SampleTrace, Training
from tokflow.errors import ConfigError, MissingOutputError
from tokflow.loaders import Loader, mix, open_rows
from tokflow.loaders.mixed_samples import MixedSamples
from tokflow.loaders.position import Position, Steps, position_of
from tokflow.loaders.rows import RandomWindows, in_order
from tokflow.loaders.samples import ENDLESS, Samples
from tokflow.pipeline.dataset import Dataset
from tokflow_tests.loaders.row_sources import CountingRows
from tokflow_tests.tiny import build, declare

WORDS = ["one", "two and a half", "drei €", "", "fünf 😀 ten", "six\nlines", "7", "eight or so"]

DATASETS = {"web": 40, "code": 12}

SPLIT = {"train": 0.8, "validation": 0.2}

EXPORTS = [
    "bin",
    "megatron",
    "parquet",
    {"format": "arrow", "name": "labelled", "packing": {"sequence_length": 6, "label_token": True}},
]


def texts_of(name: str) -> dict[str, list[dict[str, str]]]:
    choose = random.Random(name)
    return {
        f"{name}-{file}.jsonl": [
            {"text": " ".join(choose.choices(WORDS, k=choose.randrange(4))), "url": f"u/{file}/{n}"}
            for n in range(DATASETS[name] + file)
        ]
        for file in range(3)
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two datasets, of which nobody changes anything."""
    folder = tmp_path_factory.mktemp("trained")
    for name in DATASETS:
        for key, records in texts_of(name).items():
            path = folder / "raw" / name / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{json.dumps(of)}\n" for of in records))
        build(dataset_of(folder, name))
    return folder


def dataset_of(folder: Path, name: str) -> Dataset:
    return declare(
        folder,
        name=name,
        raw={"files": f"raw/{name}/*.jsonl"},
        documents={"keep_columns": ["url"]},
        packing={"sequence_length": 6},
        exports=EXPORTS,
        **({"shuffle": {"documents": "dataset"}, "split": SPLIT} if name == "code" else {}),
    )


def rows_of(folder: Path, name: str, export: str, choose: random.Random) -> Any:
    is_stream = export in ("bin", "megatron")
    how = {"across_documents": False} if export == "megatron" and choose.random() < 0.5 else {}
    path = folder / "store" / name / "exports" / export / "latest"
    return open_rows(path, "train", 7 if is_stream else None, **how)


def samples_of(folder: Path, choose: random.Random) -> Samples:
    """Draw an order of those that loaders have."""
    export = choose.choice(["bin", "megatron", "parquet", "labelled"])
    web = rows_of(folder, "web", export, choose)
    seed, blocks = choose.randrange(99), choose.choice([None, None, 3, 8])
    kinds = ["in order", "seeded", "once", "windows", "mixture", "mixture", "twice", "shard"]
    kind = choose.choice(kinds)
    if kind == "windows" and export in ("bin", "megatron"):
        return web.random_windows(seed)
    if kind == "mixture":
        code = open_rows(
            folder / "store/code/exports" / export / "latest",
            "train",
            web.source.sequence_length if "tail" in web.source.cut else None,
            across_documents=web.source.across_documents if "tail" in web.source.cut else None,
        )
        return mix(
            {"a": web, "b": code},
            weights={"a": choose.choice([7, 0.3]), "b": 2},
            stages=choose.choice([[], [(50, {"a": 0, "b": 1}), (80, {"a": 1, "b": 1})]]),
            seed=seed,
            blocks=blocks,
            num_samples=choose.choice([None, 300]),
        )
    if kind == "twice":  # a dataset has two sources
        path = folder / "store/code/exports/bin/latest"
        parts = {part: open_rows(path, part, 7) for part in SPLIT}
        return mix(parts, weights={"train": 2, "validation": 1}, seed=seed, blocks=blocks)
    if kind == "shard":
        shard = folder / "store/web/tokens/web-1.jsonl"
        return open_rows(shard, sequence_length=5).epochs(seed)
    if kind == "once":
        return web.shuffled(seed, 3, blocks=blocks, window=2).epochs(num_epochs=2)
    seeded = {"seed": seed, "blocks": blocks, "window": 3} if kind == "seeded" else {}
    return web.epochs(**seeded, num_epochs=choose.choice([None, 1, 3]))


@dataclass
class Recorded:
    """What a training wrote down: of each step the rank and the tokens of every sample."""

    steps: list[list[tuple[int, list[int]]]] = field(default_factory=list)
    world_sizes: list[int] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    loader: Loader | None = None


def tokens_of(batch: dict[str, Any]) -> Iterator[list[int]]:
    """Yield the tokens of each sample: the inputs that are no padding, and the label of the last of
    them that has one."""
    for row, labels in enumerate(batch["labels"].tolist()):
        ids = batch["input_ids"][row].tolist()
        segments = batch.get("segment_ids", batch["loss_mask"])[row].tolist()
        num = sum(map(bool, segments))
        first = 0 if segments[0] else len(ids) - num
        last = labels[first + num - 1]
        yield ids[first : first + num] + [last] * (last != -100)


def train(samples: Samples, choose: random.Random) -> Recorded:
    """Train in some runs, each with other ranks, batches and skips; the state goes on as JSON."""
    recorded = Recorded()
    for _ in range(choose.randrange(1, 4)):
        world_size = choose.choice([1, 2, 3])
        batch_size = choose.randrange(world_size, 9)
        loaders = [
            Loader(samples, batch_size=batch_size, rank=rank, world_size=world_size, prefetch=0)
            for rank in range(world_size)
        ]
        for loader in loaders if recorded.state else []:
            loader.load_state_dict(json.loads(json.dumps(recorded.state)))
        if choose.random() < 0.6:
            first = loaders[0].state_dict()["samples"] + choose.randrange(20)
            ends = [min(end, len(samples)) for end in (first, first + choose.randrange(30))]
            for loader in loaders:
                loader.skip(range(*ends))
        for _ in range(choose.randrange(12)):
            batches = [next(loader, None) for loader in loaders]
            if batches[0] is None:
                break
            of_ranks = [(rank, of) for rank, batch in enumerate(batches) for of in tokens_of(batch)]
            recorded.steps.append(of_ranks)
            recorded.world_sizes.append(world_size)
        recorded.state, recorded.loader = loaders[-1].state_dict(), loaders[-1]
    return recorded


def seen_in(found: list[SampleTrace]) -> list[tuple[int, list[int]]]:
    return [(of.rank, [id_ for origin in of.origins for id_ in origin.token_ids]) for of in found]


def epoch_of(samples: Samples, sample: int) -> int | None:
    """Return the epoch of the row of a sample: how often all rows of its source came before."""
    if isinstance(samples, RandomWindows):
        return None
    if not isinstance(samples, MixedSamples):
        return sample // samples.order.num_rows
    sources, _ = samples.at(np.arange(sample + 1))
    of_source = [*samples.sources.values()][sources[-1]]
    return int((sources[:-1] == sources[-1]).sum()) // of_source.order.num_rows


def check_sightings(
    folder: Path,
    recorded: Recorded,
    seen_of: dict[tuple[str, int], list[tuple[Any, ...]]],
    choose: random.Random,
) -> None:
    """Compare what all documents were seen in with what the steps had of them, by their samples."""
    same_ranks = len({*recorded.world_sizes}) == 1
    of_training = {
        "state": json.loads(json.dumps(recorded.state)),
        "world_size": recorded.world_sizes[0] if same_ranks else 1,
        "batch_size": 4,
    }
    read = {of["name"].split("/")[0] for of in json.loads(recorded.state["order"])["sources"]}
    for name in read:
        dataset = dataset_of(folder, name)
        found = trace_documents(dataset, where="row >= 0", limit=None, **of_training)
        assert found.num_documents == sum(map(len, texts_of(name).values()))
        for document in found.documents:
            seen = [
                (of.sample, of.step, of.rank, of.source, of.row, of.epoch) for of in document.seen
            ]
            expected = seen_of.get((document.raw_file, document.row), [])
            if not same_ranks:
                seen, expected = ([of[:2] + of[3:] for of in some] for some in (seen, expected))
            assert seen == expected, document
            assert document.num_steps == len(recorded.steps)
        for document in choose.sample(found.documents, 3):  # not beside those before and behind it
            alone = trace_document(dataset, document.raw_file, document.row, **of_training)
            assert alone == document
    for name in DATASETS.keys() - read:
        with pytest.raises(ConfigError, match=f"a training on {name}, or on a mixture with it"):
            trace_document(dataset_of(folder, name), f"{name}-0.jsonl", 0, **of_training)


@pytest.mark.parametrize("seed", range(20))
def test_a_step_leads_to_what_the_training_saw_in_it(seed: int, trained: Path):
    choose = random.Random(f"program {seed}")
    samples = samples_of(trained, choose)
    recorded = train(samples, choose)
    training = Training.of(json.loads(json.dumps(recorded.state)), batch_size=4)
    texts = {f"{key}": of for name in DATASETS for key, of in texts_of(name).items()}

    seen_of: dict[tuple[str, int], list[tuple[Any, ...]]] = {}

    assert training.steps.num_done == len(recorded.steps)
    for step, seen in enumerate(recorded.steps):
        world_size = recorded.world_sizes[step]
        found = training.trace(step, world_size=world_size)
        assert seen_in(found) == seen, (step, samples)
        assert [of.sample for of in training.trace(step, rank=0, world_size=world_size)] == [
            of.sample for of in found if of.rank == 0
        ]
        for origin in (origin for of in found for origin in of.origins):
            record = texts[origin.raw_file][origin.row]
            assert origin.text == record["text"][origin.char_start : origin.char_stop]
            assert origin.kept == {"url": record["url"]}
        for of in found:
            fields = of.sample, step, of.rank, of.source, of.row, epoch_of(samples, of.sample)
            for document in dict.fromkeys((each.raw_file, each.row) for each in of.origins):
                seen_of.setdefault(document, []).append(fields)
    check_sightings(trained, recorded, seen_of, choose)
    if recorded.steps and world_size == recorded.loader.world_size:
        assert recorded.loader.documents_of(len(recorded.steps) - 1) == found
    if len(samples) == ENDLESS:
        loader = recorded.loader
        ahead = loader.documents_of(len(recorded.steps))
        assert [of for of in seen_in(ahead) if of[0] == loader.rank] == [
            (loader.rank, of) for of in tokens_of(next(loader))
        ]


def test_an_export_is_found_where_a_path_says_and_one_that_was_made_again_is_refused(
    tmp_path: Path,
):
    dataset = declare(tmp_path, {"a.jsonl": ["one two"]}, exports=["bin"])
    folder = build(dataset).export("bin").output.folder
    with Loader(open_rows(folder, sequence_length=4), batch_size=1) as loader:
        next(loader)
        state = loader.state_dict()
    copied = shutil.copytree(folder, tmp_path / "copy")
    moved = shutil.copytree(tmp_path / "store", tmp_path / "moved", symlinks=True)
    build(declare(tmp_path, {"b.jsonl": ["three"]}, exports=["bin"]))
    shutil.rmtree(folder)

    for path in (copied, moved, moved / "tiny", moved / "tiny/exports/bin/latest"):
        [sample] = Training.of(state, str(path)).trace(0)
        assert (sample.row, sample.origins[0].raw_file) == (0, "a.jsonl")
    for path in (None, str(tmp_path / "store")):
        with pytest.raises(MissingOutputError, match=r"of which the training was, found .*again s"):
            Training.of(state, path)


def test_a_step_behind_the_state_needs_a_batch_size_unless_the_state_tells_one():
    state = Position(6).state(samples := in_order(CountingRows(99)).epochs(seed=1))
    with pytest.raises(ConfigError, match="state that tells the batches of all but 6 samples"):
        Steps(position_of(state, samples))

    of_state = Steps(position_of(state, samples), batch_size=3)
    assert (of_state.num_done, of_state.samples(4).tolist()) == (2, [12, 13, 14])
    assert Steps(Position(7, batches=((2, 2), (1, 3)))).samples(4).tolist() == [10, 11, 12]
    before_skip = Steps(Position(6, skipped=(range(6, 9),), batches=((2, 3),)))
    assert (before_skip.num_done, before_skip.samples(2).tolist()) == (2, [9, 10, 11])
    ended = Steps(Position(6, batches=((2, 3),)), length=8)
    assert [ended.samples(step).tolist() for step in (2, 3)] == [[6, 7], []]
