"""Documents of an export and raw files of a dataset as tables."""

from pathlib import Path

import tokflow
from tokflow_tests.projects import attributes, declare_in, load_declared
from tokflow_tests.tiny import build, declare


def test_each_document_has_its_place_its_lengths_its_part_and_its_kept_columns(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    lines = '{"text": "one", "url": "u"}\n{"text": "größer"}\n{"text": ""}\n{"text": "4"}\n'
    (tmp_path / "raw/a.jsonl").write_text(lines)
    parts = {"train": {"characters": 5}, "validation": {"start": 7, "characters": 2}}
    dataset = declare(
        tmp_path,
        documents={"keep_columns": ["url"]},
        split={"parts": parts, "boundary": "character"},
        exports=["bin"],
    )

    frame = tokflow.open_documents(build(dataset).export("bin").folder).to_pandas()

    columns = ["row", "part", "char_start", "num_chars", "num_tokens", "url"]
    assert list(frame.columns) == ["raw_file", *columns]
    assert set(frame["raw_file"]) == {"a.jsonl"}
    rows = frame[columns].astype(object).where(frame[columns].notna(), None).values.tolist()
    assert rows == [
        [0, "train", 0, 3, 4, "u"],
        [1, "train", 0, 2, 3, None],
        [1, "validation", 4, 2, 3, None],
        [2, "validation", 0, 0, 1, None],
        [3, None, 0, 1, 2, None],
    ]


def test_documents_of_groups_lead_to_their_files(tmp_path: Path):
    texts = {"a.jsonl": ["one", "two"], "b.jsonl": ["three"]}
    raw = {"files": "raw/*.jsonl", "group": 2}
    dataset = declare(tmp_path, texts, raw=raw, exports=["parquet"])

    table = tokflow.open_documents(build(dataset).export("parquet").folder).to_arrow()

    assert table["raw_file"].to_pylist() == ["a.jsonl", "a.jsonl", "b.jsonl"]
    assert table["row"].to_pylist() == [0, 1, 0]


def test_files_of_a_dataset_have_their_states(project: Path):
    declare_in(project, "small", attributes("small"))
    (project / "data").mkdir()
    (project / "data/a.txt").write_text("one\n")
    build(load_declared("small"))
    (project / "data/b.txt").write_text("two\n")

    frame = tokflow.files("small").to_pandas()

    assert frame[["key", "state"]].values.tolist() == [["a.txt", "built"], ["b.txt", "new"]]
    assert frame["num_tokens"].isna().tolist() == [False, True]
    assert frame["num_tokens"][0] == 5
    assert frame["built_at"].dt.tz is not None
