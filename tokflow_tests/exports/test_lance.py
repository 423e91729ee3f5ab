from datetime import datetime
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from tokflow.audit.verify import verify_export
from tokflow.build.dataset import Dataset
from tokflow.errors import ConfigError, CorruptOutputError
from tokflow.exports import FORMATS, Part
from tokflow.exports.lance_ import _fields, _leave_out_time
from tokflow.store.manifest import Manifest
from tokflow_tests.chats import CHATS, chat_dataset, documents_of, shard_of
from tokflow_tests.making import EOS, build, content, declare, ids, parts

TEXTS = ["abc", "", "defghi"]


def export(dataset: Dataset) -> tuple[Path, Manifest]:
    made = build(dataset).export("lance")
    return made.output.folder, made.manifest


def lance_dataset(folder: Path, texts: list[str] = TEXTS, **options: Any) -> Dataset:
    return declare(folder, {"a.jsonl": texts}, exports=[{"format": "lance", **options}])


def test_a_stream_has_a_token_per_row_and_documents_beside_it(tmp_path: Path):
    folder, manifest = export(lance_dataset(tmp_path))

    tokens = lance.dataset(str(folder / "train.lance"))
    documents = lance.dataset(str(folder / "train.documents.lance"))

    assert tokens.to_table().to_pydict() == {"input_ids": ids(*TEXTS)}
    assert documents.to_table().to_pydict() == {"token_offset": [0, 4, 5], "num_tokens": [4, 1, 7]}
    assert str(tokens.schema.field("input_ids").type) == "int64"
    assert manifest.counts["train.num_documents"] == 3


def test_sequences_have_a_row_each(tmp_path: Path):
    folder, _ = export(lance_dataset(tmp_path, layout="sequences"))

    rows = lance.dataset(str(folder / "train.lance"))

    assert rows.take([2, 0]).to_pydict() == {
        "input_ids": [[*b"ghi", EOS], [*b"abc", EOS]],
        "segment_ids": [[1, 1, 1, 1], [1, 1, 1, 1]],
        "position_ids": [[0, 1, 2, 3], [0, 1, 2, 3]],
    }
    assert not (folder / "train.documents.lance").exists()


def test_files_are_counted_and_as_long_as_asked_for(tmp_path: Path):
    folder, _ = export(lance_dataset(tmp_path, max_rows_per_file=5))

    found = {name for name in content(folder) if name.startswith("train.lance/")}
    fragments = lance.dataset(str(folder / "train.lance")).get_fragments()

    assert found == {
        "train.lance/data/00000.lance",
        "train.lance/data/00001.lance",
        "train.lance/data/00002.lance",
        "train.lance/_versions/18446744073709551614.manifest",
        "train.lance/_versions/latest_version_hint.json",
        "train.lance/_transactions/0-00000000-0000-0000-0000-000000000000.txn",
    }
    assert [fragment.count_rows() for fragment in fragments] == [5, 5, 2]


@pytest.mark.parametrize("layout", ["stream", "sequences"])
def test_two_runs_give_the_same_bytes(layout: str, tmp_path: Path):
    folders = [
        export(lance_dataset(tmp_path / run, layout=layout, max_rows_per_file=2))[0]
        for run in ("first", "second")
    ]

    first, second = map(content, folders)

    assert first == second


def test_a_commit_has_no_time(tmp_path: Path):
    folder, _ = export(lance_dataset(tmp_path))

    [version] = lance.dataset(str(folder / "train.lance")).versions()

    assert version["timestamp"].replace(tzinfo=None) == datetime(1970, 1, 1)


@pytest.mark.parametrize("layout", ["stream", "sequences"])
def test_of_chats_there_is_a_loss_mask(layout: str, tmp_path: Path):
    dataset = chat_dataset(tmp_path, CHATS, exports=[{"format": "lance", "layout": layout}])
    folder, manifest = export(dataset)
    mask = [value for _, values in documents_of(shard_of(dataset)) for value in values]

    table = lance.dataset(str(folder / "train.lance")).to_table()
    found = np.array(table["loss_mask"].to_pylist()).ravel()

    assert found[: len(mask)].tolist() == mask
    assert not found[len(mask) :].any()
    assert manifest.counts["train.num_loss_tokens"] == sum(mask)
    assert verify_export(folder, manifest, list(parts(dataset, "lance").values())) == []


@pytest.mark.parametrize("layout", ["stream", "sequences"])
def test_what_is_read_does_not_depend_on_how_much_is_at_once(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = lance_dataset(tmp_path, [*TEXTS, "x" * 30, "y"], layout=layout, max_rows_per_file=7)
    folder, manifest = export(dataset)
    monkeypatch.setattr("tokflow.exports.lance_.TOKENS_AT_ONCE", 8)

    pieces = list(FORMATS["lance"].read(folder, manifest, "train"))

    assert len(pieces) > 2
    assert verify_export(folder, manifest, list(parts(dataset, "lance").values())) == []


def test_more_rows_per_file_than_lance_can_count_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        lance_dataset(tmp_path, max_rows_per_file=2**32)

    assert str(caught.value) == (
        "test: exports[0].max_rows_per_file: expected 1 to 4,294,967,295, for Lance counts them in "
        "32 bits, found 4294967296; lower it, or leave it out"
    )


def test_what_fails_while_rows_are_made_is_said_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = lance_dataset(tmp_path)
    build(dataset)
    [part] = parts(dataset, "lance").values()

    def damaged(part: Part) -> Any:
        raise CorruptOutputError(where="x", expected="y", found="the shard is damaged", remedy="z")

    monkeypatch.setattr(Part, "stream", damaged)

    with pytest.raises(CorruptOutputError, match="the shard is damaged"):
        FORMATS["lance"].write([part], FORMATS["lance"].options(), tmp_path)


def test_a_manifest_of_another_form_is_refused(tmp_path: Path):
    path = tmp_path / "1.manifest"
    path.write_bytes(b"four" * 9)

    with pytest.raises(CorruptOutputError) as caught:
        _leave_out_time(path)

    assert str(caught.value) == (
        f"{path}: expected a manifest as pylance 14 writes it, found one that ends with "
        f'{b"four" * 4!r}; run `pip install "dagster-tokflow[lance]"`'
    )


def test_fields_of_every_kind_are_told_apart():
    number = b"\x08\x96\x01"  # field 1, the varint 150
    eight_bytes = b"\x11" + bytes(8)  # field 2
    text = b"\x3a\x02\x08\x01"  # field 7, of 2 bytes that look like a field themselves
    four_bytes = b"\x85\x01" + bytes(4)  # field 16, whose key needs two bytes

    found = list(_fields(number + eight_bytes + text + four_bytes))

    assert found == [(1, number), (2, eight_bytes), (7, text), (16, four_bytes)]
