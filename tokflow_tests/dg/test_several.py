"""Several YAMLs, stores and code locations, and a catalog with keys of its own."""

import json
from dataclasses import replace

import pytest

from tokflow_tests.dg.harness import Place, new_project

pytestmark = pytest.mark.slow

NAMING = """
import dagster as dg

from tokflow.components import Translator


class Names(Translator):
    def asset_key(self, dataset, stage, name):
        return dg.AssetKey(["lake", dataset.name, name or stage])

    def group(self, dataset, stage, name):
        return "exports" if stage == "export" else "texts"
"""

DATASET = """\
type: tokflow.components.TextDataset
attributes:
  name: {name}
  translator: lake.naming:Names
  store: "{{{{ env.TOKFLOW_STORE }}}}"
"""

OF_FILES = """\
  raw: {files: "data/raw/NAME/*.jsonl"}
  tokenizer: bytes
  split: {train: 0.8, validation: 0.2}
  packing: {sequence_length: 64}
  exports: [bin]
"""

MIXED = """\
  mixture: {sources: {news: {epochs: 1}, code: {epochs: 2}}}
  packing: {sequence_length: 64}
  exports: [parquet]
"""

DOWNSTREAM = """
import dagster as dg
import pandas as pd

from tokflow.components import ExportIOManager


@dg.asset(ins={"rows": dg.AssetIn(["lake", "news", "bin"], input_manager_key="exports")})
def lengths(rows: pd.DataFrame) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"num_tokens": int(rows.num_tokens.sum())})


looks = dg.Definitions(
    assets=[lengths, dg.AssetSpec(["lake", "news", "bin"])],
    resources={"exports": ExportIOManager()},
)
"""

LOCATIONS = """{workspaceOrError {... on Workspace {locationEntries {name loadStatus}}}
    assetNodeOrError(assetKey: {path: ["lengths"]}) {
        ... on AssetNode {dependencyKeys {path} repository {location {name}}}}}"""


@pytest.fixture(scope="module")
def lake(wheel: Place) -> Place:
    """A project whose datasets have a YAML each, one store for all, and keys of their own; built
    for development."""
    lake = new_project(replace(wheel, variables={"TOKFLOW_STORE": "data/store"}), "lake")
    lake.write("src/lake/naming.py", NAMING)
    for name in ("news", "code"):
        texts = [json.dumps({"text": f"Once upon {name} {n}. " * 9}) for n in range(40)]
        lake.write(f"data/raw/{name}/a.jsonl", texts)
        fields = DATASET.format(name=name) + OF_FILES.replace("NAME", name)
        lake.write(f"src/lake/defs/texts/{name}/defs.yaml", fields)
    lake.write("src/lake/defs/mixed/defs.yaml", DATASET.format(name="mixed") + MIXED)
    lake.run("dg", "launch", "--job", "mixed_build")
    lake.run("tokflow", "run", "news")
    return lake


def test_a_mixture_has_sources_in_other_yamls_and_all_have_the_keys_of_the_translator(lake: Place):
    assets = json.loads(lake.run("dg", "list", "defs", "--json"))["assets"]
    groups = {of["asset_key"]: of["group_name"] for of in assets}

    assert groups["lake/mixed/parquet"] == "exports"
    assert groups["lake/news/tokens"] == "texts"
    assert {key.split("/")[0] for key in groups} == {"lake"}
    assert (lake.folder / "data/store/mixed/exports/parquet/latest").exists()
    # What each of both built is in one history, by one key.
    assert "mixed: nothing to do" in lake.run("tokflow", "run", "mixed")


def test_the_environment_says_which_store_is_meant_and_both_hold_the_same_bytes(lake: Place):
    production = replace(lake, variables={"TOKFLOW_STORE": "data/production"})
    nowhere = replace(lake, variables={})

    production.run("tokflow", "run", "news", "--config", "src/lake/defs/texts/news/defs.yaml")

    stores = [lake.folder / "data" / of for of in ("store", "production")]
    exports = [(of / "news/exports/bin/latest/train.bin").read_bytes() for of in stores]
    assert exports[0] == exports[1]
    assert "TOKFLOW_STORE" in nowhere.log_of("dg", "check", "defs", "--no-check-yaml", status=1)


def test_another_code_location_reads_an_export_by_its_key(lake: Place, wheel: Place):
    lab = new_project(wheel, "lab")
    lab.write("src/lab/defs/lengths.py", DOWNSTREAM)
    modules = [f"  - python_module: {of}.definitions" for of in ("lake", "lab")]
    both = replace(lake, folder=wheel.folder)
    both.write("workspace.yaml", ["load_from:", *modules])

    lab.run("dg", "launch", "--assets", "lengths")
    with both.serving("dagster", "dev", "-w", "workspace.yaml") as ask:
        answer = ask(LOCATIONS)

    entries = {of["name"]: of["loadStatus"] for of in answer["workspaceOrError"]["locationEntries"]}
    assert entries == {"lake.definitions": "LOADED", "lab.definitions": "LOADED"}
    asset = answer["assetNodeOrError"]
    assert asset["dependencyKeys"] == [{"path": ["lake", "news", "bin"]}]
    assert asset["repository"]["location"]["name"] == "lab.definitions"
