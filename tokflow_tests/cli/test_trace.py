import base64
import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tokflow.loaders import Loader, open_rows
from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.projects import attributes, declare_in, make_project
from tokflow_tests.raw.fetching import Server, serving
from tokflow_tests.tiny import write_yaml


def test_a_token_is_traced_to_its_character_and_a_sequence_to_its_documents(store: Path):
    letter, eos = (run("trace", store / "exports/bin", "--token", at).stdout for at in "53")
    document = json_of("trace", store / "exports/parquet", "--sequence", "0")

    assert letter == "a.jsonl:1  characters 1 to 2  (1 token at 5)\n  'w'\n"
    assert eos == "a.jsonl:0  no character, at 3  (1 token at 3)\n  EOS\n"
    assert [origin["text"] for origin in document["origins"]] == ["one", "two "]


def test_a_kept_column_is_told_where_its_document_has_it(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text('{"text": "a", "url": "u"}\n{"text": "b"}\n')
    documents = {"keep_columns": ["url"]}
    config = write_yaml(tmp_path, documents=documents, packing={"sequence_length": 4})
    run("run", "--config", config)

    result = run("trace", tmp_path / "store/small/exports/parquet", "--sequence", "0")

    assert result.stdout == (
        "a.jsonl:0  characters 0 to 1  (2 tokens at 0-1)\n  'a'\n  url: u\n"
        "a.jsonl:1  characters 0 to 1  (2 tokens at 2-3)\n  'b'\n"
    )


def test_a_document_is_told_its_part_or_the_rule_that_leaves_it_out(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text('{"text": "a"}\n{"text": "bcd"}\n')
    config = write_yaml(tmp_path, select="num_chars < 3")
    document = ("trace", "small", "--config", config, "--file", "a.jsonl", "--row")
    summary = run("run", "--config", config).stdout

    assert "left out by select: 1 document of 2; kept: 33.33 % of the tokens" in summary
    assert "in no part" not in summary
    assert run(*document, "0").stdout == (
        "a.jsonl:0  1 character, 2 tokens\n  train: characters 0 to 1 (2 tokens)\n  num_chars: 1\n"
        "  small/exports/bin train: tokens 0 to 1\n"
        "  small/exports/parquet train: row 0 columns 0 to 1\n"
        "  small/exports/pickle train: row 0 columns 0 to 1\n"
    )
    assert run(*document, "1").stdout == (
        "a.jsonl:1  3 characters, 4 tokens\n  no part: characters 0 to 3 (4 tokens)\n"
        "  left out by select: num_chars < 3\n  num_chars: 3\n"
    )


def test_a_step_of_a_training_is_traced_to_its_documents(store: Path, tmp_path: Path):
    rows = open_rows(store / "exports/parquet/latest", "train")
    with Loader(rows, batch_size=2, seed=1) as loader:
        seen = next(loader)["index"].tolist()
        (tmp_path / "loader.json").write_text(json.dumps(loader.state_dict()))
    step = ("trace", "--state", tmp_path / "loader.json", "--step", "0", "--world-size", "2")

    found = json_of(*step)
    printed = run(*step, "--rank", "1").stdout
    page = run(*step, "--html", tmp_path / "step.html").stdout

    assert [of["row"] for of in found["samples"]] == seen
    origins = found["samples"][1]["origins"]
    assert [origin["text"] in printed for origin in origins] == [True] * len(origins)
    assert printed.startswith(
        f"step 0: 1 sample\nsample 1 on rank 1: row {seen[1]} of small/exports/parquet/train\n"
        f"{origins[0]['raw_file']}:{origins[0]['row']}  characters "
    )
    assert page.startswith("viewer: ")
    html = (tmp_path / "step.html").read_text()
    assert [f'"windows":[[{min(seen) * 8},' in html, f",[{max(seen) * 8}," in html] == [True, True]


def test_documents_are_traced_to_the_steps_that_saw_them(store: Path, tmp_path: Path):
    rows = open_rows(store / "exports/parquet/latest", "train")
    with Loader(rows, batch_size=2, seed=1) as loader:
        batches = [next(loader)["index"].tolist() for _ in range(4)]
        (tmp_path / "loader.json").write_text(json.dumps(loader.state_dict()))
    config, text = store.parent.parent / "dataset.yaml", tmp_path / "text.txt"
    text.write_text("fünf\n")
    asked = ("trace", "small", "--config", config, "--text", text)

    found = json_of(*asked, "--state", tmp_path / "loader.json")
    printed = run("trace", "small", "--config", config, "--where", "num_chars > 3", "--limit", "1")

    [document] = found["documents"]
    assert (found["num_documents"], document["raw_file"], document["row"]) == (1, "b.jsonl", 1)
    [held] = [of for of in document["exports"] if of["output"] == "small/exports/parquet"]
    own = {of["sequence"] for of in held["tokens"]}
    steps = [(step, row) for step, batch in enumerate(batches) for row in batch if row in own]
    assert [(of["step"], of["row"]) for of in document["seen"]] == steps
    assert printed.stdout.startswith("7 documents\na.jsonl:1  14 characters, 15 tokens\n")
    assert printed.stdout.endswith("and 6 more: --limit 7 shows all\n")
    seen = run(*asked, "--state", tmp_path / "loader.json").stdout
    assert f"  seen in {len(steps)} sample" in seen
    assert f"    step {steps[0][0]}: sample " in seen


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
