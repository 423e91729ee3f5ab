from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.audit.convert import convert_export
from tokflow.audit.trace import trace_tokens
from tokflow.audit.verify.verification import verify_dataset, verify_path
from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph
from tokflow.build.plan import make_plan
from tokflow.exports import ExportConfig, shuffled_documents
from tokflow.exports.reading import open_export
from tokflow.split.shuffle import document_keys, repetitions_of
from tokflow.tokens.origins import Origins
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.outputs import content, int64, parts
from tokflow_tests.tiny import EOS, build, declare, write_raw

SHUFFLE = {"seed": 5, "documents": "dataset"}

HALVES = {"parts": {"train": {"start": 0, "characters": 22}, "rest": {"start": 22}}}

SPLITS: dict[str, dict[str, Any]] = {
    "document": HALVES,
    "character": {**HALVES, "boundary": "character"},
    "hash_fraction": {"parts": {"train": {"hash_fraction": 0.6}, "rest": {"hash_fraction": 0.4}}},
}

FILES = {
    f"{name}.jsonl": [f"{name}{letter}" + "!" * (n % 5) for n, letter in enumerate("abcdefghijkl")]
    for name in "wxyz"
}

STREAMS = ["bin", "megatron", "olmo", "llmc"]


def declared(folder: Path, files: Any = FILES, **attributes: Any) -> Dataset:
    exports = attributes.pop("exports", ["bin"])
    fields = {"split": HALVES, "shuffle": SHUFFLE, **attributes}
    return declare(folder, files, exports=exports, **fields)


def documents_in(folder: Path, part: str) -> list[str]:
    tokens = [token for some in open_export(folder).tokens(part) for token in some.tolist()]
    return bytes(token if token != EOS else 32 for token in tokens).decode().split()


def in_order(documents: list[str], files: Any = FILES, seed: int = 5) -> list[str]:
    """Return documents of all files in the order of their keys."""
    keys = {}
    for name, texts in files.items():
        of_file = document_keys(Origins([name], [0]), np.arange(len(texts)), seed)
        keys |= dict(zip(texts, of_file.tolist(), strict=True))
    return sorted(documents, key=keys.__getitem__)


def problems_of(dataset: Dataset) -> list[str]:
    found = [*verify_dataset(dataset), *verify_path(dataset.folder)]
    return [problem for each in found for problem in each.problems]


def test_documents_of_a_part_are_in_one_order_of_all_files(tmp_path: Path):
    plain = build(declared(tmp_path, shuffle={})).export("bin").folder
    shuffled = build(declared(tmp_path)).export("bin").folder

    for part in ("train", "rest"):
        before = documents_in(plain, part)
        assert documents_in(shuffled, part) == in_order(before) != before


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("group", [None, 2], ids=["file", "group"])
def test_index_trace_and_verify_lead_through_every_stream(
    split: dict[str, Any], group: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shuffled_documents, "TOKENS_GATHERED", 13)
    monkeypatch.setattr(shuffled_documents, "DOCUMENTS_AT_ONCE", 7)
    raw = {"files": "raw/*.jsonl", **({"group": group} if group else {})}
    dataset = declared(tmp_path, split=split, exports=STREAMS, raw=raw)
    built = build(dataset)

    for name, part in parts(dataset, "bin").items():
        for format_ in STREAMS:
            origins = trace_tokens(built.export(format_).folder, part=name, start=0, stop=10**6)
            assert sum(origin.num_tokens for origin in origins) == part.num_tokens
            for origin in origins:
                text = FILES[origin.raw_file][origin.row]
                assert text[origin.char_start : origin.char_stop] == origin.text
    assert problems_of(dataset) == []


def test_convert_keeps_the_order(tmp_path: Path):
    dataset = declared(tmp_path, exports=["bin", "megatron"])
    built = build(dataset)

    folder = convert_export(built.export("bin").folder, ExportConfig.read("megatron", where="test"))

    expected, found = content(built.export("megatron").folder), content(folder)
    assert {**found, "manifest.json": b""} == {**expected, "manifest.json": b""}
    assert problems_of(dataset) == []


def test_a_file_that_comes_leaves_the_order_of_the_others_and_makes_none_of_their_outputs(
    tmp_path: Path,
):
    before = documents_in(build(dataset := declared(tmp_path)).export("bin").folder, "rest")
    write_raw(tmp_path, {"a.jsonl": ["new", "newer", "newest"]})

    built = build(dataset)

    after = documents_in(built.export("bin").folder, "rest")
    assert [text for text in after if text in before] == before
    new = [made.output.name for made in built.made if made.is_new]
    assert new == ["a.jsonl", "a.jsonl", "a.jsonl", "bin"]


def test_each_file_has_its_share_of_every_stretch_of_the_order(tmp_path: Path):
    files = {f"{n}.jsonl": [f"{n}x{row}" for row in range(100)] for n in range(10, 30)}
    folder = build(declared(tmp_path, files, split={})).export("bin").folder

    names = [text[:2] for text in documents_in(folder, "train")]

    stretches = np.array(
        [[names[at : at + 200].count(n) for n in {*names}] for at in range(0, 2000, 200)]
    )
    chi2 = ((stretches - 10) ** 2 / 9.5).sum() * 20 / 19  # without replacement, 171 are free
    assert 120 < chi2 < 240


def test_the_loss_mask_of_chats_goes_with_their_documents(tmp_path: Path):
    build(plain := chat_dataset(tmp_path, CHATS * 3, exports=["npy"]))
    dataset = chat_dataset(tmp_path, None, exports=["npy"], shuffle=SHUFFLE)
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


def test_the_order_remakes_exports_alone(tmp_path: Path):
    build(declared(tmp_path, shuffle={}))

    new = make_plan(declared(tmp_path)).missing
    build(declared(tmp_path))
    other = make_plan(declared(tmp_path, shuffle={**SHUFFLE, "seed": 6})).missing

    assert [(item.name, item.reason) for item in [*new, *other]] == [
        ("bin", "config changed (shuffle.documents is new)"),
        ("bin", "config changed (document_order.seed: 5 to 6)"),
    ]


def test_manifests_say_the_seed_and_the_scope(tmp_path: Path):
    dataset = declared(tmp_path)
    manifest = build(dataset).export("bin").manifest

    order = {"seed": 5, "version": 1, "scope": "dataset"}
    assert manifest.config["document_order"] == manifest.details["document_order"] == order
    assert "shuffle" not in BuildGraph(dataset).split("x.jsonl").manifest().config


def test_each_repetition_of_a_document_has_a_key_of_its_own():
    rows, starts = int64(3, 4, 3, 3, 4), int64(0, 0, 0, 0, 7)
    again = repetitions_of(rows, starts)
    keys = document_keys(Origins(["a"], [0]), rows, 5, again)

    assert again is not None
    assert again.tolist() == [0, 0, 1, 2, 0]
    assert len({*keys[[0, 1, 2, 3]].tolist()}) == 4
    assert keys[[0, 1]].tolist() == document_keys(Origins(["a"], [0]), int64(3, 4), 5).tolist()
    assert repetitions_of(int64(1, 2, 2), int64(0, 0, 9)) is None
    assert repetitions_of(int64(2, 1), int64(0, 0)) is None
