import base64
import xml.etree.ElementTree as ElementTree

import pytest

from tokflow.errors import ConfigError
from tokflow.views.picture import (
    Picture,
    bars_picture,
    check_report,
    has_report,
    short_number,
    shortened_name,
)
from tokflow.views.report_page import inline


def make_bars(*names: str) -> Picture:
    return bars_picture("bars", "Bars", [(name, 1 + n, f"{n}") for n, name in enumerate(names)])


def test_the_same_numbers_give_the_same_bytes_without_a_date():
    assert make_bars("a", "b").svg == make_bars("a", "b").svg
    assert b"<dc:" not in make_bars("a").svg


def test_a_user_s_own_style_changes_no_byte():
    import matplotlib as mpl

    with mpl.rc_context({"patch.edgecolor": "red", "savefig.bbox": "tight", "xtick.top": True}):
        styled = make_bars("a").svg

    assert styled == make_bars("a").svg


def test_a_name_from_the_data_is_text_in_a_drawing():
    names = ("<script>alert(1)</script>", "--><b>", "$x^2$", "a\x1b[31m", "\udcff", '> id="a_1"')

    root = ElementTree.fromstring(make_bars(*names).svg)

    texts = [of.text for of in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:2] == ["<script>ale…(1)</script>", "--><b>"]
    assert texts[2:6] == ["$x^2$", "a\\x1b[31m", "\\udcff", '> id="a_1"']


def test_colours_are_the_page_s_and_a_name_that_spells_one_stays():
    shown = inline(make_bars("#757b86"))

    assert ">#757b86<" in shown
    assert "var(--ink-2)" in shown
    assert shown.count("#757b86") == 1


def test_names_in_any_script_are_drawn_without_a_warning():
    picture = make_bars("漢字名前", "हिन्दी", "🙂")

    assert "漢字名前" in picture.svg.decode()


def test_a_picture_is_markdown_that_needs_no_file():
    picture = make_bars("a")

    before, _, data = picture.markdown().partition(";base64,")

    assert before == "![Bars](data:image/svg+xml"
    assert base64.b64decode(data.rstrip(")")) == picture.svg


def test_a_number_that_is_rounded_up_to_the_next_unit_has_that_unit():
    shown = [short_number(of) for of in (999.4, 999.9, 999_499, 999_950, 999_999_999)]

    assert shown == ["999", "1k", "999k", "1M", "1B"]


def test_long_names_lose_their_middle_and_numbers_their_zeros():
    assert shortened_name("part-00001-of-99999.jsonl", 12) == "part-….jsonl"
    assert [short_number(of) for of in (950, 1_200, 34e6, 5.6e9)] == ["950", "1.2k", "34M", "5.6B"]


def test_a_report_needs_matplotlib_and_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    assert has_report()
    monkeypatch.setattr("tokflow.views.picture.find_spec", lambda _: None)

    assert not has_report()
    with pytest.raises(ConfigError) as raised:
        check_report("tokflow report")

    assert str(raised.value) == (
        "tokflow report: expected matplotlib, which draws the pictures of a report, found none "
        "installed; pip install 'dagster-tokflow[report]'"
    )
