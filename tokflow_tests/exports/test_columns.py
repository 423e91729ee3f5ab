from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.audit.inspection import inspect_output
from tokflow.audit.verify.export import verify_export
from tokflow.exports import FORMATS, Export, Layout
from tokflow.exports.columns import (
    ALL_POSITIONS,
    columns_read,
    fields_of,
    layout_of_columns,
    make_columns,
    schema_of,
)
from tokflow.exports.format import Arrays, pieces
from tokflow.exports.options import ColumnOptions
from tokflow.exports.table_files import lists_in
from tokflow.pipeline.results import StageResult
from tokflow.sequences.segments import Sequences
from tokflow_tests.exports.exporting import export_as, fields_in, read
from tokflow_tests.outputs import make_manifest, make_recipe, stored
from tokflow_tests.tiny import EOS, build, declare

PAD = 9


def rows(*, all_loss: bool = True) -> Sequences:
    """Documents of 2 tokens and no more, of 3 and 1, of 4; all are loss tokens, or every second."""
    segment_ids = np.array([[1, 1, 0, 0], [1, 1, 1, 2], [1, 1, 1, 1]], dtype=np.int32)
    loss_mask = segment_ids != 0
    if not all_loss:
        loss_mask[:, ::2] = False
    return Sequences(
        np.array([[5, 6, PAD, PAD], [5, 6, 7, 5], [6, 7, 8, 5]], dtype=np.uint16),
        segment_ids,
        np.array([[0, 1, 0, 0], [0, 1, 2, 0], [0, 1, 2, 3]], dtype=np.int32),
        loss_mask,
    )


def table_of(
    sequences: Sequences, names: list[str], written: slice | None = ALL_POSITIONS
) -> pa.Table:
    return pa.Table.from_arrays(make_columns(sequences, names, written), schema=schema_of(names))


def test_each_column_says_what_trainers_expect_of_its_name():
    names = ["input_ids", "attention_mask", "labels", "next_loss_mask"]

    table = table_of(rows(all_loss=False), [*names, "seq_lengths", "seq_start_id"])

    assert table_of(rows(), ["labels", "next_loss_mask"]).to_pydict() == {
        "labels": [[-100, 6, -100, -100], [-100, 6, 7, -100], [-100, 7, 8, 5]],
        "next_loss_mask": [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]],
    }
    assert table_of(rows()[:0], ["seq_lengths"]).to_pydict() == {"seq_lengths": []}
    assert table.to_pydict() == {
        "input_ids": [[5, 6, PAD, PAD], [5, 6, 7, 5], [6, 7, 8, 5]],
        "attention_mask": [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]],
        "labels": [[-100, 6, -100, -100], [-100, 6, -100, -100], [-100, 7, -100, 5]],
        "next_loss_mask": [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]],
        "seq_lengths": [[2], [3, 1], [4]],
        "seq_start_id": [[0], [0, 3], [0]],
    }


def layout_of(columns: list[str]) -> Layout:
    return layout_of_columns(ColumnOptions(columns=columns, padding="none"))


def export_of(columns: list[str]) -> Export:
    details = {
        "sequence_length": 4,
        "dtype": "<u2",
        "pad_id": PAD,
        "keeps": layout_of(columns).keeps,
    }
    recipe = make_recipe(stage="export")
    return Export(stored(Path(), make_manifest(recipe=recipe, partition=None, details=details)))


def read_columns(table: pa.Table, columns: list[str]) -> Arrays:
    export = export_of(columns)
    names = columns_read(table.column_names, export.manifest.details["keeps"])
    return fields_of(lists_in(table, names), export)


@pytest.mark.parametrize("written", [ALL_POSITIONS, None])
@pytest.mark.parametrize(
    ("all_loss", "names"),
    [
        (False, "segment_ids position_ids loss_mask"),
        (False, "segment_ids labels"),
        (False, "seq_lengths labels"),
        (False, "next_loss_mask seq_start_id"),
        (True, "segment_ids"),
        (True, "attention_mask seq_lengths"),
    ],
)
def test_fields_are_read_again_from_whatever_columns_tell_of_them(
    names: str, all_loss: bool, written: slice | None
):
    made, columns = rows(all_loss=all_loss), names.split()
    written = None if "seq_start_id" in columns else written  # which tells nothing of padding
    table = table_of(made, ["input_ids", *columns], written)

    fields = read_columns(pa.concat_tables([table[:2], table[2:]]), columns)

    [read] = pieces(fields, layout_of(columns), made.token_ids.dtype)
    assert list(read) == ["token_ids", "segment_ids", "position_ids", "loss_mask"]
    if {"labels", "next_loss_mask"} & {*columns}:
        made = replace(made, loss_mask=made.loss_mask & (made.position_ids != 0))
    for name, values in read.items():
        assert values.dtype == getattr(made, name).dtype, name
        np.testing.assert_array_equal(values, getattr(made, name))


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        ([], ["token_ids"]),
        (["position_ids"], ["token_ids", "position_ids"]),
        (["attention_mask"], ["token_ids", "loss_mask"]),
        (["labels"], ["token_ids", "loss_mask"]),
    ],
)
def test_a_field_that_no_column_tells_of_is_left_out(columns: list[str], fields: list[str]):
    assert [*read_columns(table_of(rows(), ["input_ids", *columns]), columns)] == fields


def test_columns_that_tell_nothing_more_are_not_read():
    keeps = ["token_ids", "segment_ids", "loss_mask"]

    for columns, fields, told in (
        ("input_ids attention_mask segment_ids url", keeps, "input_ids segment_ids"),
        ("input_ids segment_ids position_ids", ["token_ids"], "input_ids"),
        ("input_ids attention_mask", keeps, "input_ids attention_mask"),
    ):
        assert columns_read(columns.split(), fields) == told.split()


ONE_DOCUMENT = {"strategy": "one_document", "sequence_length": 5}

ROWS = {
    "none": [[*b"ab", EOS], [*b"cde", EOS], [EOS]],
    "longest": [[*b"ab", EOS, PAD], [*b"cde", EOS], [EOS, PAD, PAD, PAD]],
    "max": [[*b"ab", EOS, PAD, PAD], [*b"cde", EOS, PAD], [EOS, PAD, PAD, PAD, PAD]],
}


LEFT = {
    "none": ROWS["none"],
    "longest": [[PAD, *b"ab", EOS], [*b"cde", EOS], [PAD, PAD, PAD, EOS]],
    "max": [[PAD, PAD, *b"ab", EOS], [PAD, *b"cde", EOS], [PAD, PAD, PAD, PAD, EOS]],
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("padding", ROWS)
def test_rows_are_as_long_as_padding_says_in_every_format_that_has_it(
    padding: str, side: str, tmp_path: Path
):
    formats = [name for name in FORMATS if "padding" in FORMATS[name].options.model_fields]
    dataset = declare(
        tmp_path,
        {"a.jsonl": ["ab", "cde", "", "fg"]},
        packing={**ONE_DOCUMENT, "pad_id": PAD, "padding_side": side},
        split={"parts": {"train": {"documents": 3}, "validation": {"start": 3}}},
        exports=[{"format": name, "padding": padding} for name in formats],
    )

    built = build(dataset)

    for name in formats:
        made, pads = built.export(name), [PAD] * (2 if padding == "max" else 0)
        assert (
            fields_in(made, "train")["token_ids"] == (LEFT if side == "left" else ROWS)[padding]
        ), name
        row = [*pads, *b"fg", EOS] if side == "left" else [*b"fg", EOS, *pads]
        assert fields_in(made, "validation")["token_ids"] == [row], name
        assert verify_export(stored(made.folder, made.manifest)) == []
        assert_counted_and_shown_as_in_files(made)
    assert len(formats) == 5


def assert_counted_and_shown_as_in_files(made: StageResult) -> None:
    excerpts = inspect_output(made.folder, num_sequences=9).excerpts
    for part in ("train", "validation"):
        rows = fields_in(made, part)["token_ids"]
        shown = [of for of in excerpts if of.name.startswith(part)]
        assert [[t for s in of.segments for t in s.token_ids] for of in shown] == rows
        padding = [t for of in shown for s in of.segments if s.is_padding for t in s.token_ids]
        assert padding == [PAD] * sum(row.count(PAD) for row in rows)
        assert made.manifest.counts[f"{part}.num_padding"] == len(padding)
        [fields] = read(made.folder, made.manifest, part)
        assert (
            Export(stored(made.folder, made.manifest)).num_positions(part)
            == fields["token_ids"].size
        )


def test_the_longest_row_may_be_one_of_tails(tmp_path: Path):
    texts = {"a.jsonl": ["abc", "de"], "b.jsonl": ["f"]}  # the last row of each is left open
    packing = {"strategy": "greedy", "sequence_length": 6}

    folder, _ = export_as(
        "parquet", tmp_path, texts, attributes={"packing": packing}, padding="longest"
    )

    table = pq.read_table(folder / "train-00000-of-00001.parquet")
    assert [len(row) for row in table["input_ids"].to_pylist()] == [5, 5]
