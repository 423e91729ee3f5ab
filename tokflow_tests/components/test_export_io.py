"""Exports as inputs of assets of one's own."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd
import pytest

from tokflow.components import ExportIOManager
from tokflow.errors import MissingOutputError
from tokflow.exports import Export
from tokflow_tests.dagster_case import QUIET, Case

KEY = ["small", "exports", "parquet"]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    with dg.DagsterInstance.ephemeral() as instance:
        case = Case(tmp_path_factory.mktemp("with spaces"), instance)
        case.attributes |= {"exports": ["parquet"]}
        yield case


def given(case: Case, annotation: Any, **metadata: Any) -> Any:
    """Return what an asset gets that takes the export as its input."""
    got = []
    source = dg.AssetIn(KEY, input_manager_key="exports", metadata=metadata)

    @dg.asset(ins={"rows": source})
    def own(rows) -> None:
        got.append(rows)

    @dg.asset(ins={"rows": source})
    def of_pandas(rows: pd.DataFrame) -> None:
        got.append(rows)

    asset = of_pandas if annotation is pd.DataFrame else own
    dg.materialize(
        [asset, *case.defs.assets],
        selection=[asset],
        instance=case.instance,
        resources={"exports": ExportIOManager()},
        run_config=QUIET,
    )
    return got[0]


def test_an_export_that_is_not_built_is_an_error(case: Case):
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_input_context(asset_key=dg.AssetKey(KEY), instance=instance)
        with pytest.raises(MissingOutputError) as raised:
            ExportIOManager().load_input(context)

    assert raised.value.where == "small/exports/parquet"


def test_an_asset_gets_the_export_opened_or_a_part_of_it_as_a_dataframe(case: Case):
    assert case.job().success

    export = given(case, None)
    assert isinstance(export, Export)
    train = given(case, pd.DataFrame)
    few = given(case, pd.DataFrame, part="validation", columns=["token_ids"], limit=1)

    assert train.equals(export.to_pandas("train"))
    assert few.equals(export.to_pandas("validation", ["token_ids"], 1))
    assert len(train) == export.counts["train.num_sequences"] > 0
