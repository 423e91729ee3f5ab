import json
from pathlib import Path

import pytest

from tokflow.exports.reading import find_export
from tokflow.pipeline.run import build_dataset
from tokflow.views import viewer_content as content_module
from tokflow.views.viewer_content import PartWindows, Window, as_json
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
    monkeypatch.setattr(content_module, "STREAM_WINDOW", 8)
    part = PartWindows(find_export(exports / name), "train")
    whole = [fields(window) for window in part.windows(0, 100)]

    monkeypatch.setattr(content_module, "POSITIONS_AT_ONCE", 24)
    some = [fields(window) for window in part.windows(5, 3)]
    rest = [fields(window) for window in part.windows(3, 100)]

    assert len(whole) == part.num_sequences == 9
    assert some == whole[5:8]
    assert rest == whole[3:]


def test_json_in_a_page_keeps_its_value_and_ends_no_element():
    value = {"a": "</script> <!-- & \u2028\u2029 é \udcff", "b": [1, None]}

    written = as_json(value)

    assert json.loads(written) == value
    assert not {*b"<>&"} & {*written}
    assert "é".encode() in written
