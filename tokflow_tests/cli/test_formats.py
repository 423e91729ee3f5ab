import pytest

from tokflow.exports import FORMATS
from tokflow_tests.cli.commands import json_of, run


@pytest.mark.parametrize("name", FORMATS)
def test_every_option_of_every_format_is_documented(name: str):
    options = FORMATS[name].options
    assert options.model_fields.keys() <= options.descriptions().keys()


def test_formats_are_listed_with_what_they_are_made_of():
    result = run("formats")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert {line.split()[0] for line in lines[1 : len(FORMATS) + 1]} == set(FORMATS)
    assert [line.split()[1] for line in lines if line.startswith(("bin ", "mds "))] == [
        "stream",
        "sequences",
    ]


def test_formats_as_json():
    [mds] = json_of("formats", "mds")["formats"]

    assert (mds["name"], mds["made_of"], mds["is_read"]) == ("mds", "sequences", True)
    assert {option["name"]: option["default"] for option in mds["options"]}["shard_size"] is None
