"""The pages that docs/site/reference.py makes have all that they are made from."""

import re

from docs.site import reference
from tokflow.cli.app import COMMANDS
from tokflow.exports import FORMATS
from tokflow.pipeline.dataset import Dataset


def test_every_command_has_a_section():
    page = "\n".join(reference.command_line())

    assert re.findall(r"^## tokflow ([\w-]+)$", page, re.MULTILINE) == sorted(COMMANDS)
    assert "`-o, --output FILE`" in page
    assert "`--private, --public`" in page
    assert "\\[tool.dg.project\\]" in page


def test_every_field_of_a_yaml_has_an_anchor_and_says_what_it_takes():
    page = "\n".join(reference.yaml_fields())

    anchors = re.findall(r"^### `\w+` \{ #([\w.\-]+) \}$", page, re.MULTILINE)
    assert len(anchors) == len({*anchors})
    assert {field.removesuffix("-field") for field in anchors} > {*Dataset.model_fields}
    assert "\nwhole number from 1 to 16,777,216 · default `1024`\n" in page
    assert "\ntext · required\n" in page
    assert all(f"(#{name})" in page for name in ("raw", "documents.limit", "split.parts.NAME"))


def test_every_format_has_its_files_and_options():
    page = "\n".join(reference.formats())

    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == sorted(FORMATS)
    assert "`key = 'text'`" in page


def test_every_public_function_is_in_the_reference():
    page = "\n".join(reference.python())

    for name in ("tokflow.tokenize_and_save", "tokflow.loaders.Loader", "tokflow.errors"):
        assert f"::: {name}\n" in page


def test_only_code_is_marked_in_escaped_text():
    assert reference.escaped("a_b *c* [d] `e_f` {g}") == r"a\_b \*c\* \[d\] `e_f` \{g}"
