"""The token shard of a large raw file, made of segments."""

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.documents import ranges
from tokflow.errors import BadDocumentError, CorruptOutputError
from tokflow.pipeline import tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import find_garbage
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.store import listed_files
from tokflow.tokens import stage as writers
from tokflow.tokens.stage import TokensWriter
from tokflow_tests.disks import flip
from tokflow_tests.outputs import content, problems_of, token_lists
from tokflow_tests.tiny import declare

TEXTS = [f"text {number} {'ä' * (number % 7)}" for number in range(60)]

SPLIT = {
    "parts": {"train": {"start": 0, "characters": 400}, "rest": {"start": 400}},
    "boundary": "character",
}

EXPORTS = ["bin", "parquet", "megatron", "npy", {"format": "mds", "name": "m"}]


def let_files_be_large(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ranges, "RANGE_BYTES", 300)
    patch.setattr(tasks, "MADE_TOGETHER_BYTES", 0)


@pytest.fixture(autouse=True)
def _files_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    let_files_be_large(monkeypatch)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The files of the dataset, built by one process without a fault."""
    with pytest.MonkeyPatch.context() as patch:
        let_files_be_large(patch)
        return content(built(dataset_in(tmp_path_factory.mktemp("plain")), jobs=1).dataset.folder)


def dataset_in(folder: Path, **attributes: Any) -> Dataset:
    files = {"a.jsonl": TEXTS, "b.jsonl": ["short"]}
    return declare(folder, files, **{"split": SPLIT, "exports": ["bin"], **attributes})


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file be large any more."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 10**9)


def built(dataset: Dataset, **how: Any) -> BuildGraph:
    result = build_dataset(dataset, **how)
    assert result.failed == ()
    return graph_of(dataset)


def test_what_is_made_of_segments_is_what_is_made_of_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    graph = built(dataset_in(tmp_path / "segments", exports=EXPORTS), jobs=1)
    shard = graph.open_tokens("a.jsonl")
    folders = {name: graph.named("export", name).folder for name in ("bin", "m", "npy", "parquet")}
    exports = {name: content(folder) for name, folder in folders.items()}
    whole(monkeypatch)
    other = built(dataset_in(tmp_path / "whole", exports=EXPORTS), jobs=1)

    expected = other.open_tokens("a.jsonl")
    assert len(shard.segments) > 4
    assert expected.segments == [expected.manifest.counts]
    assert shard.documents().equals(expected.documents())
    assert token_lists(shard) == token_lists(expected)
    assert shard.manifest.counts == expected.manifest.counts
    for name, files in exports.items():
        same = content(other.named("export", name).folder)
        assert {path: files[path] for path in files if path != "_tokflow/manifest.json"} == {
            path: same[path] for path in same if path != "_tokflow/manifest.json"
        }


def test_no_byte_depends_on_jobs(
    expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr("tokflow.raw.files.MOST_READ_TWICE", -1)

    both = built(dataset_in(tmp_path / "2"), jobs=2)

    assert content(both.dataset.folder) == expected
    assert not list(both.dataset.folder.rglob("*.segments"))


def test_verify_and_trace_read_segments_as_one(tmp_path: Path):
    graph = built(dataset_in(tmp_path, documents={"max_rejects": 3}), jobs=1)

    assert problems_of(graph.dataset) == []
    folder = graph.named("export", "bin").folder
    position = int(np.flatnonzero(np.fromfile(folder / "rest.bin", "<u2") == 256)[-1])
    [origin] = trace_tokens(folder, part="rest", start=position - 3, stop=position)
    assert (origin.raw_file, origin.row, origin.text) == ("a.jsonl", 59, "ää")


@pytest.mark.parametrize("most_read_twice", [10**9, -1], ids=["hashed first", "read once"])
def test_a_killed_run_goes_on_at_the_first_segment_that_is_missing(
    most_read_twice: int, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.raw.files.MOST_READ_TWICE", most_read_twice)
    dataset = dataset_in(tmp_path / "killed")
    write, made = TokensWriter.write, []

    def is_killed(self: TokensWriter, share: Any, *more: Any) -> None:
        if share is not None:
            made.append(share.number)
            if len(made) == 3:
                raise KeyboardInterrupt
        write(self, share, *more)

    monkeypatch.setattr(TokensWriter, "write", is_killed)
    with pytest.raises(KeyboardInterrupt):
        build_dataset(dataset, jobs=1)
    graph = built(dataset, jobs=1)

    num_segments = len(graph.open_tokens("a.jsonl").segments)
    assert made == [0, 1, 2, *range(2, num_segments)]
    assert content(dataset.folder) == expected
    assert not list(dataset.folder.rglob("*.segments"))


def test_gc_removes_segments_that_no_run_has_finished(tmp_path: Path):
    dataset = dataset_in(tmp_path)
    built(dataset, jobs=1)
    left = tmp_path / "store/tiny/tokens/a.jsonl/.0123456789abcdef.segments/00000"
    left.mkdir(parents=True)
    (left / "tokens-00000.bin").write_bytes(b"12345")

    assert find_garbage(dataset, keep=1) == {left.parent: 5}


def test_a_damaged_segment_is_not_joined_and_the_next_run_makes_it_again(
    expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = dataset_in(tmp_path / "damaged")
    join = writers.join_segments

    def join_damaged(segments: Any, *arguments: Any, **more: Any) -> None:
        flip(segments[2].folder / "tokens-00002.bin")
        join(segments, *arguments, **more)

    monkeypatch.setattr(writers, "join_segments", join_damaged)
    [failed] = build_dataset(dataset, jobs=1).failed
    monkeypatch.setattr(writers, "join_segments", join)
    graph = built(dataset, jobs=1)

    assert isinstance(failed.error, CorruptOutputError)
    assert "tokens-00002.bin" in str(failed.error)
    assert content(graph.dataset.folder) == expected


def write_bad_lines(folder: Path, *rows: int, blank_after: int | None = None) -> None:
    path = folder / "raw" / "a.jsonl"
    lines = path.read_text().splitlines()
    for row in rows:
        lines[row] = '{"text": 5}'
    if blank_after is not None:
        lines[blank_after] += "\n"
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("max_rejects", [2, 5])
def test_rejects_are_those_of_the_whole_file(
    max_rejects: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    documents = {"on_bad_document": "reject", "max_rejects": max_rejects}
    said: list[Any] = []
    for number in (300, 10**9):
        monkeypatch.setattr(ranges, "RANGE_BYTES", number)
        dataset = dataset_in(tmp_path / str(number), documents=documents)
        write_bad_lines(tmp_path / str(number), 3, 30, 31, 55, blank_after=20)
        result = build_dataset(dataset, jobs=1)
        if result.failed:
            [failed] = result.failed
            assert isinstance(failed.error, BadDocumentError)
            said.append((failed.error.row, failed.error.line, failed.error.byte_offset))
            said.append(str(failed.error).replace(str(tmp_path / str(number)), ""))
        else:
            shard = graph_of(dataset).open_tokens("a.jsonl")
            said.append((shard.folder / "rejects.jsonl").read_bytes())
            said.append(shard.documents().to_pydict())

    half = len(said) // 2
    assert said[:half] == said[half:]
    if max_rejects == 2:
        assert said[0][:2] == (31, 33)
    else:
        rejects = [*map(json.loads, said[0].splitlines())]
        assert [reject["row"] for reject in rejects] == [3, 30, 31, 55]
        assert [reject["line"] for reject in rejects] == [4, 32, 33, 57]


def test_an_error_of_the_encoder_names_the_row_of_the_file(tmp_path: Path):
    tokenizer = {"kind": "trained", "vocab_size": 257, "special_tokens": ["<x>"]}
    tokenizer |= {"eos_token": "<x>", "special_tokens_in_text": "error"}
    dataset = dataset_in(tmp_path, tokenizer=tokenizer)
    path = tmp_path / "raw" / "a.jsonl"
    path.write_text(path.read_text().replace("text 44 ", "text <x> "))

    [failed] = build_dataset(dataset, jobs=1).failed

    assert isinstance(failed.error, BadDocumentError)
    assert failed.error.row == 44
    assert "document 44:" in str(failed.error)


@pytest.mark.parametrize("when", ["in a segment", "after a segment"])
def test_another_machine_may_make_the_shard_meanwhile(
    when: str, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = dataset_in(tmp_path)
    write, calls = TokensWriter.write, []

    def write_late(self: TokensWriter, share: Any, *more: Any) -> None:
        calls.append(share)
        if len(calls) == 3 and when == "in a segment":
            make_elsewhere()
        write(self, share, *more)
        if len(calls) == 3 and when == "after a segment":
            make_elsewhere()

    def make_elsewhere() -> None:
        monkeypatch.setattr(TokensWriter, "write", write)
        assert build_dataset(dataset, jobs=1).failed == ()

    monkeypatch.setattr(TokensWriter, "write", write_late)
    graph = built(dataset, jobs=1)

    assert not list(dataset.folder.rglob("*.segments"))
    assert content(graph.dataset.folder) == expected


def test_where_there_are_no_hard_links_copies_are_compared(
    expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_link(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr("os.link", no_link)
    assert content(built(dataset_in(tmp_path / "well"), jobs=1).dataset.folder) == expected
    copy = listed_files.copy_rest

    def copy_wrongly(source: BinaryIO, new: BinaryIO) -> None:
        copy(source, new)
        new.flush()
        flip(Path(new.name))

    monkeypatch.setattr(listed_files, "copy_rest", copy_wrongly)
    dataset = dataset_in(tmp_path / "bad")
    [failed] = build_dataset(dataset, jobs=1).failed
    monkeypatch.setattr(listed_files, "copy_rest", copy)

    assert isinstance(failed.error, CorruptOutputError)
    assert content(built(dataset, jobs=1).dataset.folder) == expected


def test_segments_that_are_not_allowed_any_more_are_made_again(tmp_path: Path):
    rejecting = {"on_bad_document": "reject", "max_rejects": 1}
    dataset = dataset_in(tmp_path, documents=rejecting)
    write_bad_lines(tmp_path, 2, 30)
    [failed] = build_dataset(dataset, jobs=1).failed
    assert list(dataset.folder.glob("tokens/a.jsonl/.*.segments/*"))

    [failed] = build_dataset(declare(tmp_path, split=SPLIT), jobs=1).failed

    assert isinstance(failed.error, BadDocumentError)
    assert failed.error.row == 2


def test_what_follows_a_bad_document_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write, made = TokensWriter.write, []

    def counted(self: TokensWriter, share: Any, *more: Any) -> None:
        made.append(share)
        write(self, share, *more)

    monkeypatch.setattr(TokensWriter, "write", counted)
    dataset = dataset_in(tmp_path)
    write_bad_lines(tmp_path, 0)

    [failed] = build_dataset(dataset, jobs=1).failed

    assert isinstance(failed.error, BadDocumentError)
    assert [share and share.number for share in made] == [0, None]


def test_a_raw_folder_called_as_segments_are_is_no_garbage(tmp_path: Path):
    dataset = declare(tmp_path, {".x.segments/a.jsonl": ["a"], "b.segments/a.jsonl": ["b"]},
                      raw={"files": "raw/*.segments/*.jsonl"})  # fmt: skip
    built(dataset, jobs=1)

    assert find_garbage(dataset, keep=1) == {}


@pytest.mark.parametrize(("text_bytes", "num_segments"), [(1_200, 1), (1_201, 5)])
def test_what_holds_no_more_text_than_four_ranges_is_read_whole(
    text_bytes: int, num_segments: int, tmp_path: Path
):
    dataset = dataset_in(tmp_path)
    line = '{"text": "a"}\n'
    padding = " " * (text_bytes - 50 * len(line))
    (tmp_path / "raw" / "a.jsonl").write_text(line * 50 + padding)

    assert len(built(dataset).open_tokens("a.jsonl").segments) == num_segments
