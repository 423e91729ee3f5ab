from pathlib import Path

import pytest

from tokflow.exports.reading import find_export
from tokflow.pipeline.run import build_dataset
from tokflow.views import windows as windows_module
from tokflow.views.windows import PartWindows, Window
from tokflow_tests.tiny import declare_small

FORMATS = ["bin", "parquet", "pickle", "mds"]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    options = [{"format": "parquet", "shards": 3}, "bin", "pickle", "mds"]
    assert build_dataset(declare_small(folder, exports=options)).failed == ()
    return folder / "store/small/exports"


def fields(window: Window) -> tuple[object, ...]:
    segments = [(begin, end, entry) for begin, end, entry in window.segments()]
    return window.position, window.token_ids.tolist(), window.loss_mask.tolist(), segments


@pytest.mark.parametrize("name", FORMATS)
def test_windows_are_the_same_wherever_one_begins_and_however_many_are_read_at_once(
    name: str, exports: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(windows_module, "STREAM_WINDOW", 8)
    part = PartWindows(output=find_export(exports / name), part="train")
    whole = [fields(window) for window in part.windows(0, 100)]

    monkeypatch.setattr(windows_module, "POSITIONS_AT_ONCE", 24)
    some = [fields(window) for window in part.windows(5, 3)]
    rest = [fields(window) for window in part.windows(3, 100)]

    assert len(whole) == part.num_sequences == 9
    assert some == whole[5:8]
    assert rest == whole[3:]
