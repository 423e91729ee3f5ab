import pytest

from tokflow.errors import ConfigError
from tokflow.report import check_report, has_report


def test_a_report_needs_matplotlib_and_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    assert has_report()
    monkeypatch.setattr("tokflow.report.find_spec", lambda _: None)

    assert not has_report()
    with pytest.raises(ConfigError) as raised:
        check_report("tokflow report")

    assert str(raised.value) == (
        "tokflow report: expected matplotlib, which draws the pictures of a report, found none "
        "installed; pip install 'dagster-tokflow[report]'"
    )
