"""Configs refuse what they do not know, and say what is wrong."""

import pickle
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from tokflow.errors import ConfigError
from tokflow.store.config import Config, Count, Listed, Size


class Inner(Config):
    """A config in another."""

    size: Count = 1
    """Counts something."""


class Outer(Config):
    """A config with a field of each kind."""

    section: ClassVar[str] = "outer"

    name: str
    """A word."""
    inner: Inner = Inner()
    """A config."""
    by_name: dict[str, Inner] = Field(default_factory=dict)
    """Configs by name."""
    words: str | Listed[str] | None = None
    """A word or several."""
    share: Annotated[float, Field(ge=0, le=1), "a share"] = 0.5
    """A number."""
    flag: bool = False
    """A truth."""
    kind: Literal["first", "second"] = "first"
    """A choice."""

    def check(self) -> None:
        """Refuse a name that is a choice."""
        if self.name == self.kind:
            raise ConfigError(where="name", expected="another", found=self.name, remedy="change it")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nmae": "a"}, "here: expected one of the keys name, inner, by_name, words, share, flag, "
         "kind, found 'nmae'; did you mean 'name'?"),
        ({}, "here: expected `name:`, found none; add it"),
        ({"name": 1}, "here: name: expected text, found 1; write it in quotes"),
        ({"name": "a", 3: 4}, "here: expected one of the keys name, inner, by_name, words, share, "
         "flag, kind, found 3; remove it"),
        ({"name": "a", "inner": {"size": 0}}, "here: inner.size: expected 1 or more, found 0; "
         "raise it"),
        ({"name": "a", "inner": {"siez": 0}}, "here: inner: expected one of the keys size, found "
         "'siez'; did you mean 'size'?"),
        ({"name": "a", "by_name": {"b": {"size": "1.5e6"}}}, "here: by_name.b.size: expected a "
         "whole number, found '1.5e6'; write 1_500_000"),
        ({"name": "a", "words": ["b", 3]}, "here: words[1]: expected text, found 3; write it in "
         "quotes"),
        ({"name": "a", "words": 3}, "here: words: expected text or a list, found 3; write it in "
         "quotes"),
        ({"name": "a", "share": 1.5}, "here: share: expected 0 to 1, a share, found 1.5; lower it"),
        ({"name": "a", "share": float("nan")}, "here: share: expected a number, found nan; correct "
         "it"),
        ({"name": "a", "share": True}, "here: share: expected a number, found True; correct it"),
        ({"name": "a", "flag": 1}, "here: flag: expected true or false, found 1; correct it"),
        ({"name": "a", "kind": "frist"}, "here: kind: expected one of first, second, found "
         "'frist'; did you mean 'first'?"),
        ({"name": "first"}, "here: name: expected another, found first; change it"),
        ([], "here: expected a mapping, found []; write keys and their values below it"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(fields: Any, message: str):
    with pytest.raises(ConfigError) as raised:
        Outer.read(fields, where="here")

    assert str(raised.value) == message


class Sized(Config):
    """A config with a size."""

    most: Size = 1
    """Bytes."""


@pytest.mark.parametrize(
    ("given", "num_bytes"),
    [
        (7, 7),
        ("7", 7),
        ("1_000_000", 1_000_000),
        ("500MB", 500_000_000),
        ("1.5 GB", 1_500_000_000),
        ("2GiB", 2**31),
    ],
)
def test_a_size_is_a_number_of_bytes_or_text_with_a_unit(given: int | str, num_bytes: int):
    assert Sized.read({"most": given}, where="here").most == num_bytes


@pytest.mark.parametrize("given", ["much", "5 apples", "", 1.5, True, 0, "0MB"])
def test_what_is_no_size_is_refused(given: object):
    with pytest.raises(ConfigError, match="here: most: expected"):
        Sized.read({"most": given}, where="here")


def test_what_is_wrong_with_keywords_is_named_with_its_section():
    with pytest.raises(ConfigError) as raised:
        Outer(name="a", words=[1])

    assert raised.value.where == "outer.words[0]"


def test_a_schema_has_the_docstrings_under_the_fields_though_no_model_keeps_them():
    Inner.read({"size": 2}, where="here")

    assert {**Inner.model_json_schema()["properties"]["size"]} == {
        "default": 1,
        "description": "Counts something.",
        "minimum": 1,
        "title": "Size",
        "type": "integer",
    }
    assert Inner.model_fields["size"].description is None


def test_a_list_becomes_a_tuple_and_a_whole_number_may_stand_for_any():
    config = Outer.read({"name": "a", "words": ["b"], "share": 1}, where="here")

    assert (config.words, config.share) == (("b",), 1.0)
    assert config == Outer(name="a", words=("b",), share=1.0)
    assert pickle.loads(pickle.dumps(config)) == config
