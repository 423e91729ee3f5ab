from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tokflow.audit.verify import verify_export
from tokflow.build.dataset import Dataset
from tokflow.build.pipeline import build_dataset
from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow.store.manifest import FileEntry, Manifest
from tokflow_tests.chats import chat_dataset
from tokflow_tests.making import build, content, declare, parts

TEXTS = {
    "train-a.jsonl": ["ab", "", "größe 😀", "x" * 50],
    "train-b.jsonl": [],
    "train-c.jsonl": ["", "c\n\0\r"],
    "validation.jsonl": ["last", ""],
}

SPLIT = {"parts": {name: {"files": f"{name}*"} for name in ("train", "validation")}}


def dataset_of(
    folder: Path, files: dict[str, list[str]] = TEXTS, split: Any = SPLIT, **options: Any
) -> Dataset:
    return declare(folder, files, split=split, exports=[{"format": "nanochat", **options}])


def exported(folder: Path, **options: Any) -> tuple[Path, Manifest]:
    made = build(dataset_of(folder, **options)).export("nanochat")
    return made.output.folder, made.manifest


def read_as_nanochat(folder: Path, split: str) -> list[str]:
    """What nanochat reads: row groups of the sorted files, of which the last is `val`."""
    paths = sorted((folder / "base_data").glob("*.parquet"))
    texts: list[str] = []
    for path in paths[:-1] if split == "train" else paths[-1:]:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            texts += file.read_row_group(group).column("text").to_pylist()
    return texts


def read_own(folder: Path, manifest: Manifest, part: str) -> list[str]:
    arrays = FORMATS["nanochat"].read(folder, manifest, part)
    return [text for fields in arrays for text in fields["texts"].tolist()]


OPTIONS = [
    {},
    {"documents_per_group": 1},
    {"documents_per_group": 2, "characters_per_file": 3},
    {"characters_per_file": 1, "documents_per_group": 3},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_nanochat_reads_the_texts_of_both_parts(options: dict[str, int], tmp_path: Path):
    folder, manifest = exported(tmp_path, **options)

    for part, split in (("train", "train"), ("validation", "val")):
        expected = [
            text for name, texts in TEXTS.items() if name.startswith(part) for text in texts
        ]
        assert read_as_nanochat(folder, split) == expected
        assert read_own(folder, manifest, part) == expected
        assert manifest.counts[f"{part}.num_documents"] == len(expected)


@pytest.mark.parametrize("options", OPTIONS)
def test_verify_finds_the_texts_that_were_tokenized(options: dict[str, int], tmp_path: Path):
    dataset = dataset_of(tmp_path, **options)
    made = build(dataset).export("nanochat")

    found = verify_export(
        made.output.folder, made.manifest, list(parts(dataset, "nanochat").values())
    )

    assert found == []


def test_shards_are_closed_at_a_full_row_group_once_they_have_enough_characters(tmp_path: Path):
    files = {"train.jsonl": ["größe"] * 7, "validation.jsonl": ["a"]}

    folder, _ = exported(tmp_path, files=files, characters_per_file=12, documents_per_group=2)

    metadata = [pq.read_metadata(path) for path in sorted((folder / "base_data").iterdir())]
    groups = [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in metadata]
    assert groups == [[2, 2], [2, 1], [1]]


def test_row_groups_are_full_across_raw_files(tmp_path: Path):
    files = {"train-a.jsonl": ["a"], "train-b.jsonl": ["b", "c", "d"], "validation.jsonl": ["e"]}

    folder, _ = exported(tmp_path, files=files, documents_per_group=2, characters_per_file=1)

    shards = [pq.ParquetFile(path) for path in sorted((folder / "base_data").iterdir())]
    groups = [
        [shard.read_row_group(i)["text"].to_pylist() for i in range(shard.num_row_groups)]
        for shard in shards
    ]
    assert groups == [[["a", "b"]], [["c", "d"]], [["e"]]]


def test_validation_is_one_shard_however_long_it_is(tmp_path: Path):
    files = {"train.jsonl": ["a"], "validation.jsonl": ["abc"] * 9}

    folder, _ = exported(tmp_path, files=files, characters_per_file=1, documents_per_group=1)

    assert sorted(path.name for path in (folder / "base_data").iterdir()) == [
        "shard_00000.parquet",
        "shard_00001.parquet",
    ]
    assert read_as_nanochat(folder, "val") == ["abc"] * 9


def test_shards_are_written_as_nanochat_writes_them(tmp_path: Path):
    folder, _ = exported(tmp_path)

    file = pq.ParquetFile(folder / "base_data/shard_00000.parquet")

    column = file.metadata.row_group(0).column(0)
    assert str(file.schema_arrow) == "text: string"
    assert column.compression == "ZSTD"
    assert not column.has_dictionary_page
    assert column.statistics is None


def test_bytes_do_not_depend_on_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from tokflow.documents import read_documents

    usual, _ = exported(tmp_path / "usual", documents_per_group=2)
    monkeypatch.setattr(
        "tokflow.exports.texts.read_documents",
        lambda *given, **named: read_documents(*given, **named, batch_bytes=1),
    )

    small, _ = exported(tmp_path / "small", documents_per_group=2)

    assert content(small) == content(usual)


def test_a_cut_document_is_its_pieces(tmp_path: Path):
    split = {
        "boundary": "character",
        "parts": {
            "train": {"start": 0, "characters": 4},
            "validation": {"start": 4, "characters": 9},
        },
    }

    folder, _ = exported(tmp_path, files={"a.jsonl": ["ab", "😀def"]}, split=split)

    assert read_as_nanochat(folder, "train") == ["ab", "😀d"]
    assert read_as_nanochat(folder, "val") == ["ef"]


@pytest.mark.parametrize("names", [("train",), ("train", "validation", "test"), ("a", "b")])
def test_other_parts_than_nanochat_knows_are_refused_before_anything_is_made(
    names: tuple[str, ...], tmp_path: Path
):
    split = {"parts": {name: {"start": i, "documents": 1} for i, name in enumerate(names)}}

    with pytest.raises(ConfigError) as raised:
        dataset_of(tmp_path, {}, split=split)

    assert str(raised.value) == (
        "exports: nanochat: expected the parts train and validation, which nanochat knows, "
        f"found {', '.join(names)}; change `split.parts`, or name another format"
    )


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            {"parts": {"train": {"start": 0}, "validation": {"documents": 0}}},
            "exports: nanochat: expected a document in validation, for the last shard is "
            "validation, found none;",
        ),
        (
            {"parts": {"train": {"documents": 0}, "validation": {"start": 0}}},
            "expected a document in train",
        ),
    ],
)
def test_what_nanochat_would_take_for_something_else_is_refused(
    split: dict[str, Any], message: str, tmp_path: Path
):
    dataset = dataset_of(tmp_path, {"train.jsonl": ["a"], "validation.jsonl": ["b"]}, split=split)

    [failed] = build_dataset(dataset).failed

    assert message in str(failed.error)


def test_the_last_of_more_shards_than_five_digits_number_is_validation(tmp_path: Path):
    folder, manifest = exported(tmp_path)
    shards = folder / "base_data"
    (shards / "shard_00001.parquet").rename(shards / "shard_100000.parquet")
    names = sorted(f"base_data/shard_{number:05d}.parquet" for number in range(100_001))
    many = replace(manifest, files=dict.fromkeys(names, FileEntry(num_bytes=0, sha256="")))

    assert read_own(folder, many, "validation") == TEXTS["validation.jsonl"]


def test_more_shards_than_nanochat_sorts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.nanochat.FILE_DIGITS", 0)

    [failed] = build_dataset(dataset_of(tmp_path)).failed

    assert str(failed.error) == (
        "exports: nanochat: characters_per_file: expected at most 1 files of a part, whose names "
        "sort as they follow each other, found 2; raise `characters_per_file`"
    )


def test_a_text_of_2_gib_or_more_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokflow.exports.nanochat.MAX_TEXT_BYTES", 50)
    files = {"train.jsonl": ["a", "x" * 51], "validation.jsonl": ["b"]}

    [failed] = build_dataset(dataset_of(tmp_path, files)).failed

    assert "expected texts below 2 GiB, found one of 51 bytes" in str(failed.error)


def test_chats_are_the_text_that_their_template_makes(tmp_path: Path):
    split = {"parts": {"train": {"documents": 3}, "validation": {"start": 3}}}
    dataset = chat_dataset(tmp_path, split=split, exports=["nanochat"])

    made = build(dataset).export("nanochat")

    [text] = read_as_nanochat(made.output.folder, "val")
    assert text.startswith("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n")
    assert made.manifest.details["lost"] == ["loss_mask"]
