"""The example of scores from outside: an asset with pandas, and a table that DuckDB writes."""

import json
import shutil
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest

from examples.running import HERE
from tokflow.pipeline.declared import load_datasets
from tokflow.pipeline.run import build_dataset

TEXTS = {
    "good": "because the history of a theorem explains it",
    "bad": "click here and buy it free",
    "long": "because " + "x" * 90,
}
QUALITIES = {"good": 0.698, "bad": 0.229, "long": 0.741}


@pytest.fixture
def scored(project: Path) -> Path:
    """The package of a project with the example, and raw files."""
    package = project / "mine"
    shutil.copytree(HERE / "scores", package / "defs/scored")
    (package / "defs/scored/word_lengths.py").rename(package / "defs/word_lengths.py")
    defs = package / "defs/scored/defs.yaml"
    defs.write_text(defs.read_text().replace("{kind: tiktoken, name: gpt2}", "{kind: bytes}"))
    for folder in (package, package / "defs"):
        (folder / "__init__.py").touch()
    raw = project / "data/raw/scored/a.jsonl"
    raw.parent.mkdir(parents=True)
    lines = (json.dumps({"id": name, "text": text}) for name, text in TEXTS.items())
    raw.write_text("\n".join(lines))
    (project / "data/scores").mkdir()
    return package


def test_a_dataset_goes_back_to_an_asset_with_pandas_and_keeps_what_both_scores_do(scored: Path):
    definitions = dg.load_from_defs_folder(path_within_project=scored)
    graph = definitions.get_repository_def().asset_graph
    lengths = dg.AssetKey("word_lengths")
    qualities = pd.DataFrame({"id": [*QUALITIES], "quality": [*QUALITIES.values()]})
    qualities.to_parquet("data/scores/words.parquet", index=False)

    assert dg.materialize([definitions.get_assets_def(lengths)]).success
    [dataset] = load_datasets(scored / "defs/scored/defs.yaml")
    built = build_dataset(dataset)

    assert lengths in graph.get(dg.AssetKey(["scored", "attributes", "lengths"])).parent_keys
    assert built.failed == ()
    [selection] = built.of("selection")
    assert selection.manifest.counts["num_documents"] == 1
    assert selection.manifest.counts["0.num_left_out_alone"] == 1
    assert selection.manifest.counts["1.num_left_out_alone"] == 1


def test_the_query_gives_each_document_the_mean_weight_of_its_words(scored: Path):
    duckdb = pytest.importorskip("duckdb")
    shutil.copy(scored / "defs/scored/weights.csv", "weights.csv")

    duckdb.execute((scored / "defs/scored/quality.sql").read_text())

    found = pd.read_parquet("data/scores/words.parquet").set_index("id").quality
    assert found.round(3).to_dict() == QUALITIES
