"""Claims about the processes that a step of Dagster works with."""

from pathlib import Path

import dagster as dg
import pytest
import yaml

from tokflow.build import tasks
from tokflow.build.pipeline import build_dataset
from tokflow.components import steps
from tokflow.pools.pool import Pool, open_pool
from tokflow_tests.dagster_case import Case, failure
from tokflow_tests.outputs import content

KEYS = ["a.txt", "b.txt", "c.txt"]


@pytest.fixture
def case(case: Case) -> Case:
    case.instance.add_dynamic_partitions("small_files", KEYS)
    return case


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_s_config_says_how_many_processes_work_and_no_byte_depends_on_it(
    jobs: int, case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr(tasks, "MADE_TOGETHER", 1)
    asked: list[int | None] = []

    def open_asked(of_config: int | None) -> Pool:
        asked.append(of_config)
        return open_pool(of_config)

    monkeypatch.setattr(steps, "open_pool", open_asked)
    config = {"resources": {"tokflow_workers": {"config": {"jobs": jobs}}}}

    result = case.run(keys=KEYS, config=config)

    assert result.success, failure(result)
    assert set(asked) == {jobs}
    made = content(case.dataset.folder)
    case.attributes["store"] = "other"
    assert build_dataset(case.dataset, jobs=1).failed == ()
    assert content(case.dataset.folder) == made


def test_what_takes_all_cores_waits_for_its_like_and_downloads_do_not(case: Case):
    def pools(*path: str) -> set[str]:
        [asset] = [of for of in case.defs.assets or () if dg.AssetKey(["small", *path]) in of.keys]
        return set(asset.op.pools)

    assert pools("raw") == set()
    for path in (("tokenizer",), ("tokens",), ("split",), ("sequences",), ("exports", "bin")):
        assert pools(*path) == {"tokflow"}
    config = yaml.safe_load((Path(__file__).parents[2] / "dagster.yaml").read_text())
    assert config["concurrency"]["pools"] == {"granularity": "run", "default_limit": 1}
