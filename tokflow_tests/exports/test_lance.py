from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from tokflow.errors import CorruptOutputError
from tokflow.exports import FORMATS, Part
from tokflow.pipeline.dataset import Dataset
from tokflow.store.listed_files import broken_files
from tokflow_tests.exports.exporting import export
from tokflow_tests.outputs import content, parts
from tokflow_tests.tiny import build, declare, ids

TEXTS = ["abc", "", "defghi"]


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


def test_files_are_counted_and_as_long_as_asked_for(tmp_path: Path):
    folder, _ = export(lance_dataset(tmp_path, shard_size=40))

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
def test_two_runs_differ_in_the_time_of_the_commit_and_in_nothing_else(layout: str, tmp_path: Path):
    (first_folder, first), (second_folder, second) = (
        export(lance_dataset(tmp_path / run, layout=layout, shards=3))
        for run in ("first", "second")
    )

    commits = {name for name in first.files if "/_versions/" in name and name.endswith(".manifest")}
    assert commits
    assert {**first.files, **{name: second.files[name] for name in commits}} == second.files
    assert (first.recipe, first.counts, first.details) == (
        second.recipe,
        second.counts,
        second.details,
    )
    for folder, manifest in ((first_folder, first), (second_folder, second)):
        assert broken_files(folder, manifest) == []
        [version] = lance.dataset(str(folder / "train.lance")).versions()
        assert datetime.now() - version["timestamp"] < timedelta(minutes=10)


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
        [*FORMATS["lance"].write(part, FORMATS["lance"].options(), tmp_path)]
