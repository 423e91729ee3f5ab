"""Assets of a dataset of which an export has a packing of its own."""

import dagster as dg
import pytest

from tokflow.pipeline.mixture import graph_of
from tokflow_tests.dagster_case import KEYS, Case, failure

SHORT = {"format": "parquet", "name": "short", "packing": {"sequence_length": 8}}
PICKLE = {"format": "pickle", "packing": {"sequence_length": 8, "pad_id": 1}}


@pytest.fixture
def case(case: Case) -> Case:
    case.instance.add_dynamic_partitions("small_files", KEYS)
    case.attributes["exports"] = ["parquet", SHORT, PICKLE]
    return case


def parents_of(case: Case, name: str) -> set[str]:
    key = dg.AssetKey(["small", "exports", name])
    [spec] = [of for of in case.defs.resolve_all_asset_specs() if of.key == key]
    return {"/".join(of.asset_key.path[1:]) for of in spec.deps}


def test_another_packing_is_an_asset_that_exports_of_it_share(case: Case):
    keys = {"/".join(of.key.path[1:]) for of in case.defs.resolve_all_asset_specs()}

    assert {key for key in keys if key.startswith("seq")} == {"sequences", "sequences/short"}
    assert parents_of(case, "parquet") == {"sequences", "files"}
    assert parents_of(case, "short") == parents_of(case, "pickle") == {"sequences/short", "files"}
    dg.Definitions.validate_loadable(case.defs)


def test_every_packing_is_built_checked_and_fresh_until_its_own_length_changes(case: Case):
    result = case.job()

    assert result.success, failure(result)
    assert case.not_fresh() == {}
    graph = graph_of(case.dataset)
    for key in KEYS:
        found = case.data_version("sequences", "short", partition=key)
        assert found == graph.output("sequences", key, "short").fingerprint
        assert found != case.data_version("sequences", partition=key)
    checked = {"/".join(of.asset_key.path[1:]) for of in result.get_asset_check_evaluations()}
    assert {"sequences", "sequences/short", "exports/pickle"} <= checked

    case.attributes["exports"] = ["parquet", {**SHORT, "packing": {"sequence_length": 9}}, PICKLE]

    assert {*case.not_fresh()} == {
        *(f"sequences/short:{key}" for key in KEYS),
        *(f"sequences/pickle:{key}" for key in KEYS),
        "exports/short",
        "exports/pickle",
    }
