import dataclasses
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.audit.verify.export import verify_export
from tokflow.audit.verify.remade import verify_against_raw, verify_sequences, verify_split
from tokflow.audit.verify.tokens import verify_tokens
from tokflow.errors import CorruptOutputError
from tokflow.exports.stage import parts_of
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.store.manifest import checksums, read_manifest
from tokflow_tests.outputs import edit_manifest, problems_of, stored
from tokflow_tests.tiny import copy_of, declare_small, write_raw

SPLITS: dict[str, dict[str, Any]] = {
    "cut": {
        "boundary": "character",
        "parts": {"train": {"characters": 5}, "validation": {"start": 9, "characters": 7}},
    },
    "cut over the dataset": {
        "scope": "dataset",
        "boundary": "character",
        "parts": {"train": {"start": 2, "characters": 30}, "validation": {"start": 40}},
    },
    "hash_fraction": {"parts": {"train": {"hash_fraction": 0.7}}},
    "files": {"parts": {"train": {"files": "[ab].jsonl"}, "validation": {"files": "sub/*"}}},
}


def built(folder: Path, **fields: Any) -> tuple[Dataset, BuildGraph]:
    made = declare_small(folder, **fields)
    assert build_dataset(made).failed == ()
    return made, graph_of(made)


@pytest.fixture
def small(built_small: Path, tmp_path: Path) -> tuple[Dataset, BuildGraph]:
    """The dataset without any field of its own, built."""
    made = declare_small(copy_of(built_small, tmp_path))
    return made, graph_of(made)


def believe_files(folder: Path) -> None:
    """Let the manifest have the checksums of the files as they are now."""

    def change(fields: dict[str, Any]) -> None:
        entries = checksums(folder).items()
        fields["files"] = {name: dataclasses.asdict(entry) for name, entry in entries}

    edit_manifest(folder, change)


def edit_ids(path: Path, position: int, token_id: int) -> None:
    token_ids = np.fromfile(path, dtype="<u2")
    token_ids[position] = token_id
    token_ids.tofile(path)


def edit_table(path: Path, column: str, change: Callable[[list[Any]], None]) -> None:
    table = pq.read_table(path)
    values = table[column].to_pylist()
    change(values)
    index = table.schema.get_field_index(column)
    field = table.schema.field(column)
    pq.write_table(table.set_column(index, field, pa.array(values, type=field.type)), path)


STRATEGIES = cycle(["concat", "best_fit", "one_document"])


@pytest.mark.parametrize(("split", "strategy"), [*zip(SPLITS, STRATEGIES, strict=False)])
def test_what_was_built_is_well(split: str, strategy: str, tmp_path: Path):
    packing = {"strategy": strategy, "sequence_length": 8}

    made, _ = built(tmp_path, split=SPLITS[split], packing=packing)

    assert problems_of(made) == []


def test_rejects_are_accounted_for(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["one", "two"]})
    with (tmp_path / "raw/a.jsonl").open("a") as file:
        file.write('{"text": 5}\n{"text": "last"}\n')
    made, graph = built(tmp_path, documents={"on_bad_document": "reject"})
    assert problems_of(made) == []
    shard = graph.open_tokens("a.jsonl")

    (shard.folder / "rejects.jsonl").write_text("")

    assert verify_tokens(shard) == [
        f"{shard.folder}/rejects.jsonl: expected 1 rejects, found 0",
    ]


def test_an_output_that_is_not_built_is_a_problem(tmp_path: Path):
    made = declare_small(tmp_path)

    assert problems_of(made) == ["small/tokenizer: not built; run `tokflow run`"]


@pytest.mark.parametrize(
    ("position", "token_id", "expected"),
    [
        (1, 300, ["token 1: expected an id below vocab_size 258, found 300"]),
        (1, 256, ["expected num_eos 4, found 5"]),
        (
            3,
            0,
            [
                "document 0: expected the EOS id 256 at its end (1 such)",
                "expected num_eos 4, found 3",
            ],
        ),
    ],
)
def test_an_id_past_the_vocabulary_and_an_eos_too_many_or_too_few_are_found(
    position: int, token_id: int, expected: list[str], small: tuple[Dataset, BuildGraph]
):
    _, graph = small
    shard = graph.open_tokens("a.jsonl")

    edit_ids(shard.folder / "tokens.bin", position, token_id)

    assert verify_tokens(shard) == [f"{shard.folder}/tokens.bin: {of}" for of in expected]


@pytest.mark.parametrize(
    ("column", "position", "value", "expected"),
    [
        ("token_offset", 1, 5, "document 1: expected token_offset 4, found 5 (1 such)"),
        ("char_offset", 1, 5, "document 1: expected char_offset 3, found 5 (1 such)"),
        ("row", 1, 0, "document 1: expected a row above 0, found 0"),
        ("num_chars", 3, 1, "expected num_chars 23, found 24"),
    ],
)
def test_a_wrong_document_is_found(
    column: str, position: int, value: int, expected: str, small: tuple[Dataset, BuildGraph]
):
    _, graph = small
    shard = graph.open_tokens("a.jsonl")
    path = shard.folder / "documents.parquet"

    edit_table(path, column, lambda values: values.__setitem__(position, value))

    assert f"{path}: {expected}" in verify_tokens(shard)


def test_a_row_that_is_neither_document_nor_reject_is_found(small: tuple[Dataset, BuildGraph]):
    _, graph = small
    shard = graph.open_tokens("a.jsonl")

    edit_table(shard.folder / "documents.parquet", "row", lambda rows: rows.__setitem__(3, 4))

    assert verify_tokens(shard) == [
        f"{shard.folder}: expected every row of the raw file once, as a document or a reject; "
        "found row 4 where 3 should be"
    ]


def test_a_document_in_two_parts_is_found(tmp_path: Path):
    split = {"parts": {"train": {"documents": 2}, "validation": {"start": 2}}}
    _, graph = built(tmp_path, split=split)
    made = graph.open_split("a.jsonl")
    path = made.folder / "spans.parquet"

    edit_table(path, "document", lambda values: values.__setitem__(1, 1))

    assert verify_split(made) == [
        f"{path}: row 1: expected {{'document': 2}} as made again, found {{'document': 1}}"
    ]


def test_other_tokens_of_a_cut_span_are_found_where_its_text_is(tmp_path: Path):
    made, graph = built(tmp_path, split=SPLITS["cut"])
    folder = graph.split("a.jsonl").folder
    path = folder / "cut_tokens.bin"
    edit_ids(path, 0, ord("X"))
    believe_files(folder)

    [of_path] = verify_path(folder)

    [problem] = [p for p in problems_of(made) if str(path) in p]
    assert "as made again" in problem
    assert (of_path.problems, of_path.notes) == (
        (),
        ("the text of cut documents is not here: their tokens were not made again",),
    )


def test_a_table_of_other_bytes_and_the_same_rows_is_well(small: tuple[Dataset, BuildGraph]):
    made, graph = small
    for folder in (graph.split("a.jsonl").folder, graph.output("sequences", "a.jsonl").folder):
        [path] = folder.glob("*.parquet")
        pq.write_table(pq.read_table(path), path, compression="none")
        believe_files(folder)

    assert problems_of(made) == []


def test_what_another_version_of_tokflow_made_is_not_made_again(
    small: tuple[Dataset, BuildGraph],
):
    _, graph = small
    folder = graph.split("a.jsonl").folder
    fingerprint = edit_manifest(folder, lambda fields: fields.update(version=1))
    folder = folder.rename(folder.with_name(fingerprint[:16]))

    [found] = verify_path(folder)

    assert found.problems == ()
    assert found.notes == ("another version of tokflow made it: not made again",)


@pytest.mark.parametrize(
    ("packing", "column", "by"),
    [
        ({}, "token_start", -4),
        ({"overlap": 3}, "num_repeated", -1),
        ({"strategy": "best_fit"}, "token_in_piece", 1),
        ({"strategy": "one_document", "min_sample_length": 4}, "num_tokens", -4),
    ],
)
def test_a_segment_that_is_another_is_found(packing: dict, column: str, by: int, tmp_path: Path):
    _, graph = built(tmp_path, packing={"sequence_length": 8, **packing}, exports=["parquet"])
    made = graph.open(graph.output("sequences", "a.jsonl"))
    assert verify_sequences(made) == []
    path = made.folder / "segments.parquet"

    edit_table(path, column, lambda values: values.__setitem__(-2, values[-2] + by))

    row = len(pq.read_table(path)) - 2
    [problem] = verify_sequences(made)
    assert problem.startswith(f"{path}: row {row}: expected {{'{column}': ")


def swap_tokens(path: Path) -> None:
    token_ids = np.fromfile(path, dtype="<u2")
    token_ids[[20, 21]] = token_ids[[21, 20]]
    token_ids.tofile(path)


INDEX = "_tokflow/index.parquet"
SHARD = "train-00000-of-00001.parquet"


@pytest.mark.parametrize(
    ("export", "name", "column", "problem"),
    [
        ("bin", "train.bin", "", "token 20 differs from the split"),
        ("parquet", SHARD, "input_ids", "token 16 differs from the split"),
        ("bin", INDEX, "row", "the entry at 4 does not lead to its document"),
        ("bin", INDEX, "token_in_piece", "the entry at 4 does not lead to its document"),
        ("parquet", INDEX, "char_start", "the entry at 4 does not lead to its document"),
    ],
)
def test_an_export_of_other_tokens_or_that_leads_elsewhere_is_found(
    export: str, name: str, column: str, problem: str, small: tuple[Dataset, BuildGraph]
):
    output = small[1].output("export", variant=export)
    path = output.folder / name
    if not column:
        swap_tokens(path)
    elif name == SHARD:
        edit_table(path, column, lambda rows: rows[2].reverse())
    else:
        edit_table(path, column, lambda rows: rows.__setitem__(1, 5))
    believe_files(output.folder)

    problems = verify_export(stored(output.folder, output.manifest()), parts_of(output))

    where = path if name == INDEX else output.folder
    assert problems == [f"{where}: train: {problem}"]


@pytest.mark.parametrize(
    ("stage", "count", "num", "problems"),
    [
        (
            "split",
            "train.num_chars",
            22,
            [
                "all parts and no part together: expected num_chars 23, found 22",
                "expected train.num_chars 23 as made again, found 22",
            ],
        ),
        (
            "sequences",
            "train.num_tokens",
            23,
            [
                "train: in sequences, leftover and dropped: expected num_tokens 29, found 28",
                "expected train.num_tokens 24 as made again, found 23",
            ],
        ),
    ],
)
def test_counts_that_do_not_close_are_found(
    stage: str, count: str, num: int, problems: list[str], small: tuple[Dataset, BuildGraph]
):
    graph = small[1]
    output = graph.output(stage, "a.jsonl")

    edit_manifest(output.folder, lambda fields: fields["counts"].update({count: num}))

    verify: Any = {"split": verify_split, "sequences": verify_sequences}[stage]
    assert verify(graph.open(output)) == [f"{output.folder}: {of}" for of in problems]


def test_padding_can_be_an_id_that_no_token_has_also_where_files_are_never_read(tmp_path: Path):
    packing = {"sequence_length": 8, "strategy": "one_document", "pad_id": 300}
    short = {"format": "jsonl", "packing": {"sequence_length": 4}}
    made, _ = built(tmp_path, packing=packing, exports=["parquet", "webdataset", "pickle", short])

    found = {of.name: of for of in verify_dataset(made)}

    assert [problem for of in found.values() for problem in of.problems] == []
    assert found["export pickle"].notes == (
        "pickle files are never read: compared by counts and checksums",
    )
    assert {"sequences of a.jsonl", "sequences of a.jsonl (jsonl)"} <= found.keys()


def test_an_export_that_lost_a_row_is_found_without_its_parents(small: tuple[Dataset, BuildGraph]):
    made, graph = small
    output = graph.output("export", variant=made.exports[1].name)
    path = output.folder / "train-00000-of-00001.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)

    with pytest.raises(CorruptOutputError, match="expected 9 sequences in a portion, found 8"):
        verify_export(stored(output.folder, read_manifest(output.folder)))


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["four", "fünf", "SIX\nlines", "7"], "documents 0 to 4: the text is not the same"),
        (
            ["four", "fünf", "six\nlines", "7", "more"],
            "expected all documents of the raw file, found 4",
        ),
    ],
)
def test_a_shard_of_another_raw_file_is_found(
    texts: list[str], problem: str, small: tuple[Dataset, BuildGraph]
):
    made, graph = small
    shard = graph.open_tokens("b.jsonl")
    write_raw(made.base, {"b.jsonl": texts})

    problems = verify_against_raw(
        graph_of(made).raw("b.jsonl"), shard, made.documents, graph.encoding
    )

    assert problems == [f"{shard.folder}: {problem}"]


def test_an_export_that_was_copied_elsewhere_is_verified_as_far_as_it_goes(
    small: tuple[Dataset, BuildGraph], tmp_path: Path
):
    made, graph = small
    folder = graph.output("export", variant=made.exports[0].name).folder
    elsewhere = tmp_path / "elsewhere" / "bin"
    elsewhere.parent.mkdir()
    folder.rename(elsewhere)

    (verified,) = verify_path(elsewhere)

    assert verified.problems == ()
    assert verified.notes == ("its parents are not in this store: not compared with it",)
