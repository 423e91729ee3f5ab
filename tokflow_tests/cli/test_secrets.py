"""A secret that the environment brings into a YAML stays there."""

import base64
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tokflow_tests.cli.commands import run
from tokflow_tests.projects import attributes, declare_in, make_project
from tokflow_tests.raw.fetching import Server, serving

SECRETS = {"TOKFLOW_TEST_PASSWORD": "pa55w0rd", "TOKFLOW_TEST_SIGNATURE": "s1gn4ture"}


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        (
            {"raw": {"files": {"x": "http://me:{{ env.TOKFLOW_TEST_PASSWORD }}@host/a.jsonl"}}},
            "{'x': 'http://host/a.jsonl'}",
        ),
        (
            {"raw": {"files": "hf://datasets/me:{{ env.TOKFLOW_TEST_PASSWORD }}@org/name"}},
            "'hf://datasets/org/name'",
        ),
        (
            {"owners": ["{{ env.TOKFLOW_TEST_PASSWORD }}"]},
            "found '{{ env.TOKFLOW_TEST_PASSWORD }}'; write team:{{ env.TOKFLOW_TEST_PASSWORD }}",
        ),
        ({"scan": "{{ env.TOKFLOW_TEST_PIN }}"}, "found '{{ env.TOKFLOW_TEST_PIN }}'"),
    ],
)
def test_an_error_shows_a_template_and_not_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], shown: str
):
    project = make_project(tmp_path)
    file = declare_in(project, "own", attributes("own", **more))
    monkeypatch.chdir(project)
    for name, value in {**SECRETS, "TOKFLOW_TEST_PIN": "4242"}.items():
        monkeypatch.setenv(name, value)

    for arguments in (["own"], ["--config", str(file)]):
        result = run("plan", *arguments)
        assert result.exit_code == 2
        assert shown in result.stderr
        assert not [of for of in ("pa55w0rd", "4242") if of in result.output]


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster calls it
def test_no_secret_of_the_environment_is_written_or_shown(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = make_project(tmp_path / "project")
    monkeypatch.syspath_prepend(project)
    monkeypatch.chdir(project)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    password = base64.b64encode(b"me:pa55w0rd").decode()
    with serving(Server(password=f"Basic {password}")) as server:
        address = server.url.removeprefix("http://")
        url = f"http://me:{{{{ env.TOKFLOW_TEST_PASSWORD }}}}@{address}"
        files = f"{url}?sig={{{{ env.TOKFLOW_TEST_SIGNATURE }}}}"
        declare_in(project, "own", attributes("own", raw={"files": files}, exports=["parquet"]))

        results = [run("plan", "own"), run("run", "own", "--json")]
        server.password = "other"
        results.append(run("run", "own"))
        definitions = dg.load_from_defs_folder(path_within_project=project)

    assert [of.exit_code for of in results] == [0, 0, 1], results[1].output
    told = "".join(of.stdout + of.stderr for of in results)
    assert address in told
    specs = definitions.resolve_all_asset_specs()
    told += "".join(str(of.metadata.get("config")) + str(of.description) for of in specs)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in SECRETS.values():
        assert secret not in told
        assert not [content for content in written if secret.encode() in content]
