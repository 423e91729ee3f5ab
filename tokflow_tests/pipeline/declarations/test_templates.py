"""Templates mean what they mean to Dagster."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tokflow.errors import ConfigError
from tokflow.pipeline.declarations.templates import resolve_templates, template_of

VARIABLES = {"COUNT": "8192", "NAME": "abc", "ZERO": "0123", "LIST": "['a', 'b']", "TRUE": "True"}
VARIABLES |= {"YEAR": "24"}


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def resolved(text: str) -> Any:
    attributes = {"raw": {"files": [text]}}
    return resolve_templates(attributes, base=Path("/base"), where="a.yaml")["raw"]["files"][0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ env.COUNT }}", 8192),
        ("{{ env.NAME }}", "abc"),
        ("{{ env.ZERO }}", "0123"),
        ("{{ env.LIST }}", ["a", "b"]),
        ("{{ env.TRUE }}", True),
        ("{{ env.COUNT | tojson }}", "8192"),
        ("data/{{ env.COUNT }}", "data/8192"),
        ("20{{ env.YEAR }}", 2024),
        ("{{ 2 ** 30 * 4 }}", 2**32),
        ("{{ env('NONE', 'default') }}", "default"),
        ("{{ env('NONE', 5) }}", 5),
        ("{{ env('NAME', 'default') }}", "abc"),
        ("{{ env.NONE or 'x' }}", "x"),
        ("{% if env.NONE %}a{% else %}b{% endif %}", "b"),
        ("{{ '{{' }}", "{{"),
        ("{{ datetime.timedelta(days=7).days }}", 7),
        ("plain", "plain"),
        ("data/{a,b}/[0-9]*.txt", "data/{a,b}/[0-9]*.txt"),
    ],
)
def test_a_value_is_what_dagster_gives(text: str, value: object):
    assert resolved(text) == value
    assert dg.ResolutionContext.default().resolve_value(text) == value


@pytest.mark.parametrize("text", ["a{{b}}", "a{%b", "{{1}}", "'{{'", "{{'\"\\\n😀"])
def test_any_text_can_be_written_as_a_template(text: str):
    assert resolved(template_of(text)) == text
    assert dg.ResolutionContext.default().resolve_value(template_of(text)) == text


def test_text_that_is_no_template_stays_text():
    assert resolved("8192") == "8192"  # a number for Dagster, though it is in quotes


def test_keys_and_chat_templates_are_left_alone():
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    attributes = {"documents": {"chat_template": template}, "{{ env.NAME }}": "{{ env.NAME }}"}

    found = resolve_templates(attributes, base=Path("/base"), where="a.yaml")

    assert found == {"documents": {"chat_template": template}, "{{ env.NAME }}": "abc"}


def test_the_root_of_the_project_can_be_named():
    assert resolved("{{ context.project_root }}/x") == "/base/x"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ env.NONE }}", "the environment has no variable NONE"),
        ("{{ env.NONE }}/a", "the environment has no variable NONE"),
        ("{{ env('NONE') }}", "the environment has no variable NONE"),
        ("{{ dg.AutomationCondition }}", "'dg' is undefined"),
        ("{{ env.COUNT", "unexpected end of template"),
        ("{{ ''.__class__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
    ],
)
def test_one_that_cannot_be_resolved_is_an_error_with_file_and_field(text: str, reason: str):
    with pytest.raises(ConfigError) as raised:
        resolved(text)

    error = raised.value
    assert error.where == "a.yaml: raw.files[0]"
    assert error.found.startswith(f"{text!r}: {reason}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ 'x' * 10**9 }}", "more than 1,000,000 characters"),
        ("{{ 10 ** 10000000000 }}", "a power of 10,000,000,000"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "seconds",
        ),
    ],
)
def test_one_that_never_ends_or_writes_gigabytes_is_an_error(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.pipeline.declarations.templates.RENDER_SECONDS", 0.5)

    with pytest.raises(ConfigError, match=reason):
        resolved(text)
