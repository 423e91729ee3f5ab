"""A second opinion on splits of many random datasets, found character by character."""

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tokflow.pipeline.mixture import graph_of
from tokflow.split.spans import LONGEST
from tokflow_tests.outputs import int64
from tokflow_tests.tiny import build, declare, ids

LETTERS = "ab 😀é\n"


def random_texts(rng: random.Random) -> list[str]:
    sizes = [rng.choice([0, 1, 3, 9]) for _ in range(rng.randrange(7))]
    return ["".join(rng.choices(LETTERS, k=size)) for size in sizes]


def random_split(rng: random.Random) -> dict[str, Any]:
    form = rng.choice(["characters", "cut", "documents", "fraction", "hash_fraction", "files"])
    scope = rng.choice(["file", "dataset"])
    if form in ("characters", "cut", "documents"):
        one, two, three = sorted(rng.sample(range(25), 3))
        unit = "documents" if form == "documents" else "characters"
        parts = {"train": {"start": one, unit: two - one}, "validation": {"start": three}}
        if form == "documents":
            parts["validation"][unit] = 3
    elif form == "files":
        parts = {"train": {"files": "[ab]*"}, "validation": {"files": "c*"}}
    else:
        parts = {"train": {form: 0.5}, "validation": {form: 0.25}}
    boundary = "character" if form == "cut" else "document"
    return {"parts": parts, "scope": scope, "boundary": boundary, "seed": rng.randrange(9)}


@pytest.mark.parametrize("seed", range(16))
def test_every_character_is_in_one_span_at_most_with_its_tokens_and_is_counted(
    seed: int, tmp_path: Path
):
    rng = random.Random(seed)
    files = {f"{name}.jsonl": random_texts(rng) for name in "abc"}
    dataset = declare(tmp_path, files, split=random_split(rng))
    build(dataset)
    graph = graph_of(dataset)

    for key, texts in files.items():
        split = graph.open_split(key)
        counts = dict.fromkeys(split.manifest.counts, 0)
        free = {number: set(range(len(text))) for number, text in enumerate(texts)}
        in_none = set(free)
        for span in pq.read_table(split.folder / "spans.parquet").to_pylist():
            first, start = span["document"], span["char_start"]
            some = texts[first : first + span["num_documents"]]
            if span["is_cut"]:
                some = [some[0][start : start + span["num_chars"]]]
            for number, text in enumerate(some, start=first):
                characters = set(range(start, start + len(text)))
                assert characters <= free[number]
                free[number] -= characters
                in_none.discard(number)
            taken = split.token_source().take(int64(span["token_start"]), int64(span["num_tokens"]))
            assert taken.tolist() == ids(*some)
            assert span["num_chars"] == sum(map(len, some))
            name = "num_cut_pieces" if span["is_cut"] else "num_documents"
            counts[f"{span['part']}.{name}"] += span["num_documents"]
            counts[f"{span['part']}.num_chars"] += span["num_chars"]
            counts[f"{span['part']}.num_tokens"] += span["num_tokens"]
            longest = f"{span['part']}.{LONGEST}"
            counts[longest] = max(counts[longest], *(len(ids(text)) for text in some))
        counts["no_part.num_chars"] = sum(map(len, free.values()))
        not_cut = {number for number in in_none if len(free[number]) == len(texts[number])}
        has_free_cut = split.manifest.counts["no_part.num_cut_pieces"] > 0
        counts["no_part.num_documents"] = len(not_cut)
        counts["no_part.num_tokens"] = len(ids(*(texts[number] for number in not_cut)))
        of_free = [len(ids(texts[number])) for number in not_cut]
        counts[f"no_part.{LONGEST}"] = max(of_free, default=0)
        if has_free_cut:  # counted by test_spans
            for name in ("num_documents", "num_cut_pieces", "num_tokens", LONGEST):
                counts[f"no_part.{name}"] = split.manifest.counts[f"no_part.{name}"]
        assert split.manifest.counts == counts
