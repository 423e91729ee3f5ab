import base64
import xml.etree.ElementTree as ElementTree

from tokflow.views.picture import Picture, bars_picture
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


def test_a_picture_is_markdown_that_needs_no_file():
    picture = make_bars("a")

    before, _, data = picture.markdown().partition(";base64,")

    assert before == "![Bars](data:image/svg+xml"
    assert base64.b64decode(data.rstrip(")")) == picture.svg
