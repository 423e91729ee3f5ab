from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.exports import part_sequences, shuffled_documents
from tokflow.exports.reading import open_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.split.permutation import Permutation, document_keys
from tokflow.tokens.shard import Origins
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.outputs import parts, problems_at, problems_of, rows_of
from tokflow_tests.tiny import EOS, build, declare, write_raw

SHUFFLE: dict[str, Any] = {"seed": 5, "documents": "dataset"}

HALVES = {"parts": {"train": {"start": 0, "characters": 22}, "rest": {"start": 22}}}

SPLITS: dict[str, dict[str, Any]] = {
    "document": HALVES,
    "character": {  # the part that comes first takes the second side of what is cut
        "boundary": "character",
        "parts": {"rest": {"start": 22}, "train": {"start": 0, "characters": 22}},
    },
    "hash_fraction": {"parts": {"train": {"hash_fraction": 0.6}, "rest": {"hash_fraction": 0.4}}},
}

FILES = {
    f"{name}.jsonl": [f"{name}{letter}" + "!" * (n % 5) for n, letter in enumerate("abcdefghijkl")]
    for name in "wxyz"
}

STRATEGIES = ["concat", "greedy", "best_fit", "one_document"]


def declared(folder: Path, files: Any = FILES, **attributes: Any) -> Dataset:
    exports = attributes.pop("exports", ["bin"])
    fields = {"split": HALVES, "shuffle": SHUFFLE, **attributes}
    return declare(folder, files, exports=exports, **fields)


def documents_in(folder: Path, part: str) -> list[str]:
    tokens = [
        token for some in open_export(folder).read(part) for token in some["token_ids"].tolist()
    ]
    return bytes(token if token != EOS else 32 for token in tokens).decode().split()


def in_order(documents: list[str], files: Any = FILES, *, scope: str = "dataset") -> list[str]:
    """Return documents in the order of their keys, of all files or of one after another."""
    keys = {}
    for name, texts in files.items():
        of_file = document_keys(Origins([name], [0]), np.arange(len(texts)), 5).tolist()
        first = name if scope == "file" else ""
        keys |= {text: (first, key) for text, key in zip(texts, of_file, strict=True)}
    return sorted(documents, key=keys.__getitem__)


@pytest.mark.parametrize("scope", ["file", "dataset"])
def test_documents_of_a_part_are_in_the_order_of_the_seed(scope: str, tmp_path: Path):
    plain = build(declared(tmp_path, shuffle={})).export("bin").folder
    shuffled = build(declared(tmp_path, shuffle={**SHUFFLE, "documents": scope})).export("bin")

    for part in ("train", "rest"):
        before = documents_in(plain, part)
        assert documents_in(shuffled.folder, part) == in_order(before, scope=scope) != before


# Any two of a split, a group, an order of sequences and a scope meet in one of these.
@pytest.mark.parametrize(
    ("split", "group", "sequences", "scope"),
    [
        ("hash_fraction", None, False, "file"),
        ("hash_fraction", 2, True, "dataset"),
        ("document", None, True, "dataset"),
        ("document", 2, False, "file"),
        ("character", None, False, "dataset"),
        ("character", 2, True, "file"),
        ("document", None, True, None),
    ],
)
def test_index_trace_and_verify_lead_through(
    split: str,
    group: int | None,
    sequences: bool,
    scope: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(part_sequences, "INDEX_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(shuffled_documents, "GROUP_TOKENS", 30)
    monkeypatch.setattr("tokflow.exports.part.TOKENS_GATHERED", 13)
    monkeypatch.setattr(shuffled_documents, "DOCUMENTS_AT_ONCE", 7)
    raw = {"files": "raw/*.jsonl", **({"group": group} if group else {})}
    exports = ["parquet"] if sequences else ["olmo", "llmc", "parquet"]
    shuffle = {**SHUFFLE, "documents": scope, "sequences": sequences}
    attributes = {"split": SPLITS[split], "exports": exports, "raw": raw, "shuffle": shuffle}
    dataset = declared(tmp_path, documents={"on_bad_document": "reject"}, **attributes)
    first = tmp_path / "raw/w.jsonl"
    first.write_text('{"text": 1}\n' + first.read_text())
    built = build(dataset)

    for name, part in parts(dataset).items():
        for format_ in exports:
            origins = trace_tokens(built.export(format_).folder, part=name, start=0, stop=10**6)
            assert sum(origin.num_tokens for origin in origins) == part.num_tokens
            for origin in origins:
                num_rejects = int(origin.raw_file == "w.jsonl")
                text = FILES[origin.raw_file][origin.row - num_rejects]
                assert text[origin.char_start : origin.char_stop] == origin.text
    assert problems_of(dataset) == problems_at(dataset.folder) == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_groups_of_the_order_are_packed_as_files_that_hold_them(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shuffled_documents, "GROUP_TOKENS", 60)
    monkeypatch.setattr(part_sequences, "TOKENS_GATHERED", 30)
    monkeypatch.setattr(part_sequences, "TOKENS_AT_ONCE", 30)
    fields = {
        "packing": {"sequence_length": 8, "strategy": strategy, "overlap": 2, "label_token": True},
        "exports": ["parquet"],
        "split": {},
    }
    build(dataset := declared(tmp_path, **fields))
    [part] = parts(dataset).values()
    groups = {
        f"{number}.jsonl": texts
        for number, texts in enumerate(in_groups([*chain(*FILES.values())], num_groups=4))
    }
    as_files = declared(tmp_path / "groups", groups, shuffle={}, **fields)
    build(as_files)

    [expected] = parts(as_files).values()

    assert rows_of(part) == rows_of(expected)
    assert rows_of(part, 1) == rows_of(expected)
    assert part.packed.packing_counts == expected.packed.packing_counts


def in_groups(documents: list[str], num_groups: int) -> list[list[str]]:
    """Return documents in order, those whose keys begin with the same bits together."""
    groups: list[list[str]] = [[] for _ in range(num_groups)]
    for name, texts in FILES.items():
        keys = document_keys(Origins([name], [0]), np.arange(len(texts)), 5)
        for text, key in zip(texts, keys.tolist(), strict=True):
            groups[key * num_groups >> 63].append(text)
    assert sum(map(len, groups)) == len(documents)
    return [in_order(group) for group in groups]


def test_both_shuffles_put_the_rows_of_groups_into_the_order_of_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shuffled_documents, "GROUP_TOKENS", 60)
    monkeypatch.setattr(part_sequences, "TOKENS_GATHERED", 30)
    fields = {"exports": ["parquet"], "packing": {"sequence_length": 7, "strategy": "best_fit"}}
    build(declared(tmp_path, **fields))
    groups = parts(declared(tmp_path, None, **fields))
    both = parts(declared(tmp_path, None, shuffle={**SHUFFLE, "sequences": True}, **fields))

    for name, part in groups.items():
        rows = rows_of(part)
        order = Permutation(len(rows), 5, f"sequences:{name}").at(np.arange(len(rows)))
        assert rows_of(both[name]) == [rows[place] for place in order]


def test_tokens_that_do_not_fit_into_memory_are_read_as_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = {f"{n}.jsonl": [f"{n}{row}" * 2_000 for row in range(6)] for n in "abc"}
    build(dataset := declared(tmp_path, files, split={}))
    [part] = parts(dataset, "bin").values()
    expected = np.concatenate(list(part.stream()))

    monkeypatch.setattr(shuffled_documents, "memory_bytes", lambda: 0)

    assert np.concatenate(list(part.stream())).tolist() == expected.tolist()


def test_a_file_that_comes_leaves_the_order_of_the_others_and_makes_none_of_their_outputs(
    tmp_path: Path,
):
    before = documents_in(build(dataset := declared(tmp_path)).export("bin").folder, "rest")
    write_raw(tmp_path, {"a.jsonl": ["new", "newer", "newest"]})

    built = build(dataset)

    after = documents_in(built.export("bin").folder, "rest")
    assert [text for text in after if text in before] == before
    new = [made.output.name for made in built.made if made.is_new]
    assert new == ["a.jsonl", "a.jsonl", "bin"]


@pytest.mark.parametrize("scope", ["file", "dataset"])
def test_the_loss_mask_of_chats_goes_with_their_documents(scope: str, tmp_path: Path):
    build(plain := chat_dataset(tmp_path, CHATS * 3, exports=["npy"]))
    shuffle = {**SHUFFLE, "documents": scope}
    dataset = chat_dataset(tmp_path, None, exports=["npy"], shuffle=shuffle)
    build(dataset)

    found, expected = (_documents_and_masks(each) for each in (dataset, plain))

    assert sorted(found) == sorted(expected) != found != expected
    assert problems_of(dataset) == []


def _documents_and_masks(dataset: Dataset) -> list[tuple[list[int], list[int]]]:
    [part] = parts(dataset, "npy").values()
    ends = np.cumsum(part.document_lengths())[:-1]
    both = (
        np.split(np.concatenate(list(of)), ends) for of in (part.stream(), part.stream_loss_mask())
    )
    return [(tokens.tolist(), mask.tolist()) for tokens, mask in zip(*both, strict=True)]


def test_manifests_say_the_seed_and_the_scope(tmp_path: Path):
    dataset = declared(tmp_path)
    manifest = build(dataset).export("bin").manifest

    order = {"seed": 5, "version": 1, "scope": "dataset"}
    assert manifest.recipe.config["document_order"] == manifest.details["document_order"] == order
    assert "shuffle" not in graph_of(dataset).split("x.jsonl").manifest().recipe.config
