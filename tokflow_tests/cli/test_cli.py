import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import tokflow
from tokflow.build.dataset import load_dataset
from tokflow.build.pipeline import build_dataset
from tokflow.build.plan import make_plan
from tokflow.cli.app import app
from tokflow.cli.progress import Bars
from tokflow.errors import TokflowError
from tokflow_tests.declared import TEXTS, declare, write_raw

BAD_LINE = '{"text": "good"}\n{"text": 5}\n'


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def json_of(*arguments: str | Path) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_raw(tmp_path, TEXTS)
    return declare(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    write_raw(folder, TEXTS)
    assert run("run", "--config", declare(folder)).exit_code == 0
    return folder


@pytest.fixture
def store(built: Path, config: Path) -> Path:
    """The store of `config`, built."""
    shutil.copytree(built / "store", config.parent / "store", symlinks=True)
    return config.parent / "store/small"


def without_numbers(text: str) -> str:
    return re.sub(r"\d+\.\d+ (s|MB/s)", r"N \1", text)


def test_a_run_says_what_it_made_and_ends_with_tables(config: Path):
    result = run("run", "--config", config)

    assert result.exit_code == 0
    assert result.stderr == ""
    folder = config.parent / "store/small/exports"
    lines = without_numbers(result.stdout).splitlines()
    assert lines[:3] == [
        "small: tokenizer: 258 ids, N s",
        "small: tokens a.jsonl: 4 documents, 29 tokens, N MB/s, bytes",
        "small: tokens b.jsonl: 4 documents, 23 tokens, N MB/s, bytes",
    ]
    tail = "16 leftover tokens, packed at export"
    rows = "train 7 sequences (100 % full, 5 documents cut)"
    assert f"small: sequences: 3 files: {rows}, {tail}, N s" in lines
    rows = "72 tokens in 9 sequences (100 % full, 5 documents cut)"
    assert f"small: export parquet: train {rows}, N s" in lines
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == ["file", "documents", "tokens", "MB/s", "state"]
    assert re.fullmatch(r"a\.jsonl +4 +29 +\d+\.\d  new", table[1])
    assert table[4] == "3 files: 10 documents, 72 tokens"
    assert table[6].split() == ["export", "tokens", "bytes", "path"]
    assert re.fullmatch(rf"bin +train 72 +\d\.\d kB  {folder}/bin/latest", table[7])
    assert "left out: nothing" in table
    assert table[-1] == "small: 13 outputs new, 0 up to date (N s)"


def test_a_second_run_says_in_one_sentence_that_there_is_nothing_to_do(store: Path, config: Path):
    result = run("run", "--config", config)

    assert result.exit_code == 0
    assert re.fullmatch(
        r"small: nothing to do: 13 outputs of 3 files are up to date \(\d+\.\d s\)\n",
        result.stdout,
    )


def test_a_second_run_imports_neither_dagster_nor_an_engine(store: Path, config: Path):
    code = (
        "import sys; from tokflow.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "heavy = ('dagster', 'gigatoken', 'awkward', 'pandas', 'rich.progress', 'tokenizers',"
        " 'tiktoken', 'transformers', 'fsspec')\n"
        "print([name for name in heavy if name in sys.modules])"
    )

    result = subprocess.run(
        [sys.executable, "-c", code, "run", "--config", config],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "nothing to do" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_command_and_its_warnings_say_that_they_are(config: Path):
    cache = config.parent / "store/small/hashes.jsonl"
    cache.mkdir(parents=True)

    result = subprocess.run(
        [sys.executable, "-m", "tokflow", "plan", "--config", config, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(result.stdout)["datasets"][0]["num_missing"] == 13
    assert result.stderr.startswith(f"warning: {cache}: cannot be used (Is a directory), so files")
    assert result.stderr.count("\n") == 1


def test_one_bad_file_is_named_and_the_others_go_on(config: Path):
    (config.parent / "raw/b.jsonl").write_text(BAD_LINE)

    result = run("run", "--config", config)

    assert result.exit_code == 1
    assert result.stderr == (
        f"error: {config.parent}/raw/b.jsonl, row 1, line 2, byte 17: expected a string in 'text', "
        "found the number 5; fix the line, or set documents.on_bad_document: reject to set such "
        "lines aside\n"
    )
    assert "small: sequences: 2 files: " in result.stdout
    assert re.search(r"b\.jsonl +failed \(tokens\)", result.stdout)
    assert "exports: not made, for not every file is built" in result.stdout
    assert "1 failure (" in result.stdout


def test_a_bad_file_does_not_keep_json_from_being_one_document(config: Path):
    (config.parent / "raw/b.jsonl").write_text(BAD_LINE)

    result = run("run", "--config", config, "--json")

    assert result.exit_code == 1
    (document,) = json.loads(result.stdout)["datasets"]
    assert [(failed["stage"], failed["name"]) for failed in document["failed"]] == [
        ("tokens", "b.jsonl")
    ]


def test_rejects_and_text_in_no_part_are_said(config: Path):
    (config.parent / "raw/b.jsonl").write_text(BAD_LINE)
    declare(
        config.parent,
        documents={"on_bad_document": "reject"},
        split={"parts": {"train": {"documents": 1}}},
        packing={"sequence_length": 8, "tail": "drop"},
    )

    result = run("run", "--config", config)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    [rejected] = [line for line in lines if line.startswith("rejected: ")]
    assert rejected.startswith("rejected: 1 document: 1 in ")
    assert Path(rejected.rpartition(" in ")[2]).name == "rejects.jsonl"
    assert "in no part of the split: 30 characters of 4 documents (39 tokens)" in lines
    assert "dropped: 7 tokens by parquet, 7 tokens by pickle" in lines
    assert "left out: nothing" not in lines


def test_a_vocabulary_that_comes_out_smaller_than_asked_is_said(config: Path):
    declare(config.parent, tokenizer={"kind": "trained", "vocab_size": 1024}, exports=[])

    result = run("run", "--config", config)

    found = re.search(r"^small: tokenizer: (\d+) of 1,024 ids, ", result.stdout, re.MULTILINE)
    assert found is not None
    said = f"tokenizer: {found[1]} ids of the 1,024 asked for: the text has no more"
    assert said in result.stdout.splitlines()
    shown = run("tokenizers", "--config", config).stdout
    assert re.search(rf"^vocab_size +{found[1]} of 1,024$", shown, re.MULTILINE)


def test_the_json_of_a_run_has_every_output(config: Path):
    (document,) = json_of("run", "--config", config)["datasets"]

    assert document["num_new"] == len(document["outputs"]) == 13
    tokens = next(output for output in document["outputs"] if output["stage"] == "tokens")
    assert tokens["counts"]["num_tokens"] == 29
    assert Path(tokens["folder"], "tokens.bin").is_file()


def test_the_json_of_a_run_that_finds_all_there_has_every_output(store: Path, config: Path):
    (document,) = json_of("run", "--config", config)["datasets"]

    assert document["num_new"] == 0
    assert len(document["outputs"]) == 13


@pytest.mark.parametrize("exports", [["parquet", "bin"], ["parquet"], ["pickle", "arrow"]])
def test_the_lines_that_load_a_batch_run_as_they_are(exports: Sequence[str], config: Path):
    declare(config.parent, exports=list(exports))
    lines = run("run", "--config", config).stdout.splitlines()
    code = lines[lines.index("load a batch:") + 1 :][:3]

    names: dict[str, Any] = {}
    exec("\n".join(code), names)

    batch = names["batch"]
    assert isinstance(batch, np.ndarray)
    assert batch.reshape(-1)[:4].tolist() == [111, 110, 101, 256]
    assert batch.shape == ((8, 8))


def test_the_lines_that_load_a_batch_name_the_file_as_nanogpt_does(config: Path):
    declare(config.parent, exports=["bin"], split={"parts": {"validation": {"start": 0}}})

    lines = run("run", "--config", config).stdout.splitlines()
    code = lines[lines.index("load a batch:") + 1 :][:3]

    assert "latest/val.bin" in code[1]
    exec("\n".join(code), {})


def test_going_back_to_an_earlier_config_publishes_its_export_again(store: Path, config: Path):
    latest = store / "exports/parquet/latest"
    before = latest.resolve()
    declare(config.parent, packing={"sequence_length": 16})
    run("run", "--config", config)
    assert latest.resolve() != before
    declare(config.parent)

    result = run("run", "--config", config)

    assert "nothing to do" in result.stdout
    assert latest.resolve() == before


def test_one_partition_is_built_without_exports(config: Path):
    result = run("run", "--config", config, "--partition", "sub/c.jsonl")

    assert result.exit_code == 0
    assert "exports: not made; 2 other files not built yet" in result.stdout
    assert not (config.parent / "store/small/exports").exists()


def test_the_last_partition_completes_the_exports(config: Path):
    for key in TEXTS:
        assert run("run", "--config", config, "--partition", key).exit_code == 0

    assert (config.parent / "store/small/exports/bin/latest/train.bin").is_file()


def test_the_store_of_the_command_line_takes_the_place_of_the_config(config: Path, tmp_path: Path):
    run("run", "--config", config, "--store", tmp_path / "other")

    assert (tmp_path / "other/small/exports/bin/latest").is_dir()
    assert not (tmp_path / "store").exists()


def test_a_plan_names_what_is_missing_and_why(store: Path, config: Path):
    declare(config.parent, packing={"sequence_length": 16}, exports=["bin"])

    result = run("plan", "--config", config)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("small: 3 outputs to build, 0 B to tokenize, about ")
    assert lines[1].split() == ["stage", "name", "raw", "bytes", "about", "why"]
    assert lines[2].startswith("sequences  a.jsonl ")
    assert lines[2].endswith("config changed (sequence_length: 8 to 16)")


def test_the_plan_of_what_is_built_is_one_sentence(store: Path, config: Path):
    result = run("plan", "--config", config)

    assert result.stdout == "small: nothing to build: 13 outputs of 3 files are up to date\n"


def test_the_json_of_a_plan_has_causes_and_bytes(config: Path):
    (document,) = json_of("plan", "--config", config)["datasets"]

    first, second = document["missing"][:2]
    assert (first["stage"], first["cause"]) == ("tokenizer", "missing")
    assert second["details"] == ["waits for the tokenizer"]
    assert second["num_bytes"] == (config.parent / "raw/a.jsonl").stat().st_size


def test_an_inspection_marks_where_documents_begin(store: Path):
    result = run("inspect", store / "exports/parquet", "--sequences", "1")

    assert result.exit_code == 0
    assert result.stdout.endswith(
        "\ntrain: sequence 0: 8 tokens of 2 segments\n"
        "  a.jsonl:0\n"
        "  │ one<eos>\n"
        "  a.jsonl:1\n"
        "  │ two \n"
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "export parquet of dataset small"
    assert "dtype        <u2" in lines
    assert "eos          256 '<eos>'" in lines
    assert ["train.num_tokens", "72"] in [line.split() for line in lines]


def test_an_inspection_shows_line_ends_and_spells_out_what_a_terminal_obeys(config: Path):
    write_raw(config.parent, {"a.jsonl": ["x\ny\x1b[31m\tz"]})
    run("run", "--config", config)

    result = run("inspect", config.parent / "store/small/tokens/a.jsonl")

    assert "  │ x⏎\n  │ y\\x1b[31m\tz<eos>\n" in result.stdout


def test_the_json_of_an_inspection_has_the_manifest(store: Path):
    document = json_of("inspect", store / "tokens/a.jsonl", "--sequences", "1")

    assert document["manifest"]["counts"]["num_tokens"] == 29
    assert document["excerpts"][0]["segments"][0]["text"] == "one<eos>"


def test_verifying_a_dataset_says_a_line_per_output(store: Path, config: Path):
    result = run("verify", "--config", config)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    hashed = r" \(its raw file was hashed\)"
    assert re.fullmatch(rf"ok  tokens of a\.jsonl  [0-9a-f]{{16}}{hashed}", lines[1])
    assert lines[-1] == "13 outputs: all well"


def test_verifying_a_folder_takes_every_output_below_it(store: Path):
    assert run("verify", store).stdout.splitlines()[-1] == "13 outputs: all well"


def test_a_broken_output_fails_the_verification(store: Path, config: Path):
    (folder,) = (store / "tokens/a.jsonl").iterdir()
    (folder / "tokens.bin").write_bytes(b"")

    result = run("verify", "--config", config)

    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == (
        f"error: {folder}/tokens.bin: expected 58 bytes, found 0; "
        f"remove the folder {folder} and run `tokflow run` again"
    )
    assert "failed  tokens of a.jsonl" in result.stdout


def test_the_json_of_a_verification_counts_the_problems(store: Path):
    (store / "exports/bin/latest/train.bin").write_bytes(b"")

    result = run("verify", store / "exports/bin", "--json")

    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["num_problems"] == 1
    assert document["outputs"][0]["name"] == "export bin"


def test_a_token_is_traced_to_its_character(store: Path):
    result = run("trace", store / "exports/bin", "--token", "5")

    assert result.stdout == "a.jsonl:1  characters 1 to 2  (1 token at 5)\n  'w'\n"


def test_a_sequence_is_traced_to_its_documents(store: Path):
    document = json_of("trace", store / "exports/parquet", "--sequence", "0")

    assert [origin["text"] for origin in document["origins"]] == ["one", "two "]


def test_garbage_is_listed_and_removed_where_it_is_said_so(store: Path, config: Path):
    declare(config.parent, packing={"sequence_length": 16})
    run("run", "--config", config)

    (dry,) = json_of("gc", "--config", config, "--keep", "1")["datasets"]
    assert len(dry["folders"]) == 5
    assert all(Path(folder).is_dir() for folder in dry["folders"])
    assert "would be removed by --yes" in run("gc", "--config", config, "--keep", "1").stdout

    (done,) = json_of("gc", "--config", config, "--keep", "1", "--yes")["datasets"]
    assert done["folders"] == dry["folders"]
    assert not any(Path(folder).exists() for folder in dry["folders"])
    nothing = run("gc", "--config", config, "--keep", "1")
    assert nothing.stdout == "small: nothing to remove\n"


def test_no_garbage_is_removed_where_one_of_the_datasets_is_not_built(store: Path, config: Path):
    declare(config.parent, packing={"sequence_length": 16})
    run("run", "--config", config)
    before = sorted(store.rglob("*"))
    other = config.parent / "other"
    write_raw(other, TEXTS)

    result = run("gc", "--config", config, "--config", declare(other), "--keep", "0", "--yes")

    assert result.exit_code == 1
    assert "13 of 13 outputs missing" in result.stderr
    assert sorted(store.rglob("*")) == before


def test_the_web_ui_is_for_this_machine_alone():
    document = json_of("ui", "--port", "3001")

    assert document["command"][1:8] == ["-m", "dagster", "dev", "-h", "127.0.0.1", "-p", "3001"]
    assert Path(document["folder"]) == Path(tokflow.__file__).parent.parent


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_the_web_ui_is_not_exposed_by_mistake(host: str):
    result = run("ui", "--host", host)

    assert result.exit_code == 2
    assert "since the web UI has no login" in result.stderr


def test_the_web_ui_is_exposed_by_name():
    command = json_of("ui", "--host", "0.0.0.0", "--expose-without-login")["command"]

    assert command[5] == "0.0.0.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing"], "error: dataset 'nothing': expected one of "),
        (["run", "nothing", "--config", "x.yaml"], "expected names of declared datasets or "),
        (["plan", "--config", "x.yaml"], "x.yaml: expected a YAML file that declares a dataset, "),
        (["verify", "nowhere"], "error: argument 'nowhere': expected a path in a store or a "),
        (["inspect", "nowhere"], "error: nowhere: expected the folder of a token shard, a "),
        (["trace", "."], "error: arguments: expected --token N or --sequence N, found neither; "),
        (["run", "--frobnicate"], "No such option"),
        (["inspect"], "Missing argument"),
    ],
)
def test_wrong_usage_is_told_from_failure(arguments: list[str], message: str):
    result = run(*arguments)

    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_partition_that_is_no_raw_file_is_wrong_usage(config: Path):
    result = run("run", "--config", config, "--partition", "d.jsonl")

    assert result.exit_code == 2
    assert result.stderr == (
        "error: --partition: expected a raw file of small: a.jsonl, b.jsonl, sub/c.jsonl, "
        "found 'd.jsonl'; name one of them\n"
    )


def test_a_key_that_is_misspelt_in_the_yaml_is_wrong_usage(config: Path):
    declare(config.parent, tokeniser={"kind": "bytes"})

    result = run("run", "--config", config)

    assert result.exit_code == 2
    assert "found 'tokeniser'; did you mean 'tokenizer'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_raw_files_that_are_not_there_are_a_failure(config: Path):
    declare(config.parent, raw={"files": "other/*.jsonl"})

    result = run("run", "--config", config)

    assert result.exit_code == 1
    assert result.stderr == (
        "error: raw.files 'other/*.jsonl': expected at least one file that matches in "
        f"{config.parent}/other, found no such folder; correct the pattern\n"
    )


def test_a_tokenizer_that_is_not_there_is_a_failure(config: Path):
    declare(config.parent, tokenizer={"kind": "file", "name": "none.json"})

    result = run("run", "--config", config)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: tokenizer.name: expected an existing file")
    assert "small: 0 outputs new, 0 up to date, 1 failure (" in result.stdout


def test_an_error_is_in_the_json_too(config: Path):
    result = run("inspect", config.parent, "--json")

    assert result.exit_code == 1
    assert result.stderr == f"error: {TokflowError(**json.loads(result.stdout)['error'])}\n"


def test_a_traceback_comes_where_it_is_asked_for(config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKFLOW_DEBUG", "1")

    result = run("inspect", config.parent)

    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_whoever_stops_reading_stops_the_command_quietly(store: Path):
    result = subprocess.run(
        f"{sys.executable} -m tokflow verify {store} | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stdout.startswith("ok  tokenizer")
    assert result.stderr == ""


def test_help_says_that_a_file_is_not_in_dagsters_history():
    help_of_run = run("run", "--help").stdout.replace("│", "")

    assert "not recorded in Dagster's history" in " ".join(help_of_run.split())


def test_bars_hear_of_the_whole_build(config: Path, capsys: pytest.CaptureFixture[str]):
    dataset = load_dataset(config)

    with Bars(make_plan(dataset)) as bars:
        built = build_dataset(dataset, reporter=bars)

    assert built.num_new == 13
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line] == [
        "tokenizer",
        "tokens",
        "split",
        "sequences",
        "export",
    ]
    assert re.search(r"193 B of 193 B +\d+\.\d MB/s", lines[1])
