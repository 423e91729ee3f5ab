import shutil
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import open_instance

SETTINGS = Path(__file__).parents[2] / "dagster.yaml"


@pytest.mark.parametrize("folder", ["project", "elsewhere"])
def test_with_dagster_home_all_state_is_in_it_from_any_folder(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("project", "elsewhere"):
        (tmp_path / name).mkdir()
    shutil.copy(SETTINGS, tmp_path / "project")
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "project"))

    with open_instance() as instance:
        instance.add_dynamic_partitions("files", ["a"])
        folders = [
            instance.compute_log_manager.get_captured_local_path(["key"], "out"),
            instance.storage_directory(),
        ]

    assert all(path.startswith(f"{tmp_path}/project/.dagster/") for path in folders)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == [".dagster", "dagster.yaml"]


def test_without_it_state_is_beside_the_dagster_yaml_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copy(SETTINGS, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.add_dynamic_partitions("files", ["a"])

    assert (tmp_path / ".dagster/history").is_dir()
