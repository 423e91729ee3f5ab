import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash

from tokflow.documents import Batch, ranges
from tokflow.errors import RawFileError
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import make_output
from tokflow.pipeline.tasks import make_outputs
from tokflow.pools.pool import InProcess, ignore
from tokflow.store.listed_files import broken_files
from tokflow.store.tables import ROWS_PER_GROUP, to_texts
from tokflow.tokens.encoder import LOOKED_AT_BYTES, SpecialTokenCounter
from tokflow.tokens.shard_files import (
    DOCUMENTS_SCHEMA,
    MAX_REASONS,
    OTHERS,
    REASONS,
    rejects_by_reason,
)
from tokflow.tokens.stage import TOKENS
from tokflow_tests.outputs import token_lists
from tokflow_tests.tiny import FEW_TEXTS, declare, declare_texts, save_tokenizer, tokenize

EOS, BOS = 256, 257
REJECT = {"on_bad_document": "reject"}


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_a_file_may_hold_no_text(texts: list[str], tmp_path: Path):
    shard = tokenize(declare_texts(tmp_path, texts, eos="none"))

    assert shard.tokens().read().tolist() == []
    assert token_lists(shard) == [[] for _ in texts]
    assert shard.documents().schema.equals(DOCUMENTS_SCHEMA)
    assert shard.manifest.counts["num_empty_documents"] == len(texts)


def test_documents_have_offsets_counts_and_hashes(tmp_path: Path):
    shard = tokenize(declare_texts(tmp_path, ["añb", "", "漢"]))

    table = shard.documents()
    assert table.schema.equals(DOCUMENTS_SCHEMA)
    assert table.drop_columns("text_hash").to_pydict() == {
        "row": [0, 1, 2], "char_offset": [0, 3, 3], "num_chars": [3, 0, 1],
        "num_bytes": [4, 0, 3], "token_offset": [0, 5, 6], "num_tokens": [5, 1, 4],
    }  # fmt: skip
    first, last = (xxhash.xxh3_128_digest(text.encode()) for text in ("añb", "漢"))
    empty = bytes.fromhex("99aa06d3014798d86001c324468d497f")
    assert table["text_hash"].to_pylist() == [first, empty, last]


def test_what_goes_in_comes_out_or_is_a_reject_which_leaves_a_gap_and_a_line(tmp_path: Path):
    lines = ['{"text": "a"}', '{"text": 1}', '{"text": "b"}', "{", '{"text": "cd"}']
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "texts.jsonl").write_text("\n".join(lines) + "\n")

    shard = tokenize(declare_texts(tmp_path, None, documents=REJECT))

    lines = (shard.folder / "rejects.jsonl").read_text().splitlines()
    rejects = [json.loads(line) for line in lines]
    assert shard.documents()["row"].to_pylist() == [0, 2, 4]
    assert shard.documents()["char_offset"].to_pylist() == [0, 1, 2]
    assert [list(reject) for reject in rejects] == [["row", "line", "byte_offset", "reason"]] * 2
    assert [(reject["row"], reject["line"]) for reject in rejects] == [(1, 2), (3, 4)]
    assert [reject["byte_offset"] for reject in rejects] == [14, 40]
    assert "found the number 1" in rejects[0]["reason"]
    assert dict(shard.manifest.counts) == {
        "num_documents": 3, "num_rejects": 2, "num_empty_documents": 0, "num_chars": 4,
        "num_bytes": 4, "num_tokens": 7, "num_special_tokens_in_text": 0, "num_eos": 3,
        "num_eos_in_text": 0,
    }  # fmt: skip


@pytest.mark.parametrize("batch_bytes", [10_000, 2_000_000])
def test_offsets_and_row_groups_do_not_depend_on_batches(batch_bytes: int, tmp_path: Path):
    dataset = declare_texts(tmp_path, ["a"] * 70_000, suffix=".parquet")
    save_tokenizer(dataset)
    writer = TOKENS.writer(graph_of(dataset).tokens("texts.parquet"))
    (tmp_path / "shard").mkdir()

    replace(writer, batch_bytes=batch_bytes).write(None, tmp_path / "shard", ignore)

    path = tmp_path / "shard" / "documents.parquet"
    offsets = pq.read_table(path, columns=["char_offset", "token_offset"])
    assert offsets["char_offset"].to_pylist() == list(range(70_000))
    assert offsets["token_offset"].to_pylist() == list(range(0, 140_000, 2))
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert sizes == [ROWS_PER_GROUP, 70_000 - ROWS_PER_GROUP] == [65_536, 4_464]


def test_a_raw_file_that_changes_while_it_is_read_is_an_error_and_leaves_nothing(tmp_path: Path):
    dataset = declare_texts(tmp_path, ["a"])
    graph = graph_of(dataset)
    make_output(graph, "tokenizer", "tokenizer")
    output = graph.tokens("texts.jsonl")

    def append(num_documents: int, num_bytes: int) -> None:
        with (tmp_path / "raw" / "texts.jsonl").open("a") as file:
            file.write('{"text": "b"}\n')

    [(_, error)] = make_outputs(graph, [output], InProcess(), advance=append)

    assert isinstance(error, RawFileError)
    assert error.where == str(tmp_path / "raw/texts.jsonl")
    assert error.found == "14 bytes before and 28 after"
    assert not output.folder.parent.exists()


def test_the_manifest_holds_the_checksums_and_special_ids(tmp_path: Path):
    shard = tokenize(declare_texts(tmp_path, bos="first"))

    assert sorted(shard.manifest.files) == ["documents.parquet", "tokens.bin"]
    assert broken_files(shard.folder, shard.manifest) == []
    digests = b"".join(xxhash.xxh3_128_digest(text.encode()) for text in FEW_TEXTS)
    assert dict(shard.manifest.details) == {
        "dtype": "<u2", "vocab_size": 258, "eos_id": EOS, "eos_token": "<eos>", "bos_id": BOS,
        "bos_token": "<bos>",
        "text_digest": xxhash.xxh3_128_hexdigest(digests),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "names", "num"),
    [
        (["<aa", "<a", "a<aab<aa", "", "<", "aa"], ["<aa", "<aab"], 3),
        (["ab", "aba"], ["aba"], 1),  # two documents together hide none in the second
    ],
)
def test_spellings_are_counted_leftmost_and_longest_in_each_document(
    texts: list[str], names: list[str], num: int, tmp_path: Path
):
    dataset = declare_texts(
        tmp_path, texts, kind="trained", vocab_size=256 + len(names), special_tokens=names
    )

    assert tokenize(dataset).manifest.counts["num_special_tokens_in_text"] == num


EOT = "<|endoftext|>"


def counted(texts: list[str], *names: str) -> dict[tuple[int, str], int]:
    lengths = np.array([len(text) for text in texts])
    batch = Batch(np.arange(len(texts)), to_texts(texts), lengths)
    return SpecialTokenCounter(dict.fromkeys(names, 0)).in_batch(batch)


@pytest.mark.parametrize("first", range(LOOKED_AT_BYTES - len(EOT) - 2, LOOKED_AT_BYTES + 2))
def test_a_spelling_is_found_wherever_the_bytes_are_cut(first: int):
    text = "x" * first + EOT

    assert counted(["a", text, "b", text], EOT) == {(1, EOT): 1, (3, EOT): 1}
    assert counted(["a", text[:-1], "|>" + text[first + 1 :]], EOT) == {}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["<"], {(0, "<"): 2, (1, "<"): 1}),
        (["<a", "|b"], {(1, "<a"): 1, (2, "|b"): 1}),
        (["<|b", "<|c"], {(0, "<|c"): 1}),
        (["<|d"], {}),
        ([], {}),
    ],
)
def test_names_may_share_any_number_of_letters(names: list[str], expected: object):
    assert counted(["<|<|c", "<a", "|b"], *names) == expected


REJECT = {"on_bad_document": "reject"}


@pytest.mark.parametrize("range_bytes", [64_000_000, 40])  # one segment, and several
def test_a_shard_counts_its_rejects_by_reason(
    range_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ranges, "RANGE_BYTES", range_bytes)
    lines = [{"text": "good"}, {"text": None}, {"text": 5}, {"text": None}, {"text": 7}] * 4
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    shard = tokenize(declare(tmp_path, documents=REJECT))

    assert ("segments" in shard.manifest.details) is (range_bytes == 40)
    reasons = [f"a string in 'text', found {found}" for found in ("null", "the number …")]
    assert shard.manifest.details["rejects"] == dict.fromkeys(reasons, 8)


def test_rare_reasons_are_one_number():
    reasons = {f"reason {number:02}": 1 for number in range(MAX_REASONS + 2)} | {"most": 9}

    found = rejects_by_reason([reasons, {OTHERS: 4}])[REASONS]

    assert len(found) == MAX_REASONS + 1
    assert (next(iter(found)), found[OTHERS]) == ("most", 7)
