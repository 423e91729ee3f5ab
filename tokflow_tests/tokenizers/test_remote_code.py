"""Python code in a tokenizer's folder runs where the caller consents, and nowhere else."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tokflow.cli.app import app
from tokflow.errors import CorruptOutputError, UntrustedCodeError
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.store.manifest import checksums, read_manifest, write_manifest
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import tokenizer_of
from tokflow_tests.outputs import edit_manifest, stored
from tokflow_tests.special import letter_ids, write_letters
from tokflow_tests.tiny import copy_of, load_dataset, write_raw, write_yaml

TRUSTING = {"kind": "huggingface", "name": "letters", "trust_remote_code": True}
EXPORT = "store/small/exports/bin"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset whose tokenizer touches the file `ran` whenever it is loaded."""
    folder = tmp_path_factory.mktemp("built")
    code = write_letters(folder / "letters") / "tokenization_letters.py"
    touch = "import pathlib; pathlib.Path('ran').touch()"
    code.write_text(
        f"{touch}\n" + code.read_text().replace("with open", f"{touch}\n        with open")
    )
    write_raw(folder, {"a.jsonl": ["one", "two"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert build_dataset(load_dataset(write_yaml(folder, tokenizer=TRUSTING))).failed == ()
    assert (folder / "ran").exists()
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = copy_of(built, tmp_path)
    (copy / "ran").unlink()
    monkeypatch.chdir(copy)
    return copy


def tokenizer_folder(folder: Path) -> Path:
    [found] = (folder / "store/small/tokenizer").iterdir()
    return found


def planted(folder: Path) -> Path:
    """Write a dataset without consent, and put the code where its tokenizer will be looked for.

    Return its YAML.
    """
    careful = {**TRUSTING, "trust_remote_code": False}
    config = write_yaml(folder, tokenizer=careful)
    output = graph_of(load_dataset(config)).output("tokenizer")
    source = tokenizer_folder(folder)
    shutil.copytree(source, output.folder)
    manifest = read_manifest(source)
    write_manifest(output.folder, replace(manifest, recipe=output.recipe), run={})
    shutil.rmtree(folder / "store/small/tokens")
    return config


TRACED = f"a.jsonl:1  tokens 1 to 2 of its text  (1 token at 5)\n  {letter_ids('w')[0]}\nnote: "
INSPECTED = f"│ {' '.join(map(str, letter_ids('one')))} 2\n"


@pytest.mark.parametrize(
    ("arguments", "without", "consented"),
    [
        (("inspect", EXPORT), INSPECTED, "│ one</s>"),
        (("trace", EXPORT, "--token", "5"), TRACED, "characters 1 to 2  (1 token at 5)\n  'w'\n"),
        (("verify", "store"), "(it was not checked: ", "all well"),
    ],
)
def test_a_path_whose_tokenizer_is_code_is_shown_without_running_it(
    arguments: tuple[str, ...], without: str, consented: str, folder: Path
):
    first = run(*arguments)

    assert not (folder / "ran").exists()
    assert first.exit_code == 0
    assert without in first.stdout
    assert arguments[0] == "verify" or "--trust-remote-code" in first.stdout
    second = run(*arguments, "--trust-remote-code").stdout
    assert consented in second
    assert without not in second
    assert (folder / "ran").exists()


def test_verify_of_a_dataset_that_consents_loads_its_tokenizer(folder: Path):
    verified = run("verify", "--config", folder / "dataset.yaml")

    assert (verified.exit_code, "not checked" in verified.stdout) == (0, False)
    assert (folder / "ran").exists()


@pytest.mark.parametrize("command", ["tokenizers", "run", "verify"])
def test_code_in_the_store_of_a_dataset_that_does_not_consent_never_runs(
    command: str, folder: Path
):
    result = run(command, "--config", planted(folder))

    assert not (folder / "ran").exists()
    assert result.exit_code == 1
    if command != "verify":  # which misses the tokens first
        assert "expected consent to run the Python code" in result.stderr


def test_a_named_tokenizer_runs_its_code_by_the_flag_alone(folder: Path):
    without = run("tokenizers", "--tokenizer", "letters", "--json")

    assert not (folder / "ran").exists()
    error = json.loads(without.stdout)["tokenizers"][0]["error"]
    assert error["where"] == "tokenizer.trust_remote_code: letters"
    assert error["expected"].startswith("true")

    assert run("tokenizers", "--tokenizer", "letters", "--trust-remote-code").exit_code == 0
    assert (folder / "ran").exists()


def test_code_that_is_not_what_was_saved_does_not_run_with_consent(folder: Path):
    code = tokenizer_folder(folder) / "tokenization_letters.py"
    code.write_text(code.read_text().replace("'ran'", "'RAN'"))

    result = run("tokenizers", "--config", folder / "dataset.yaml")

    assert not (folder / "RAN").exists()
    assert result.exit_code == 1
    assert f"{code}: expected sha256 " in result.stderr


@pytest.mark.parametrize("place", ["helper.py", "inner/helper.PY"])
def test_code_that_was_added_is_seen_wherever_it_is(place: str, folder: Path):
    found = tokenizer_folder(folder)
    (found / "tokenization_letters.py").unlink()
    (found / place).parent.mkdir(exist_ok=True)
    (found / place).touch()
    tokenizer = tokenizer_of(stored(found))

    with pytest.raises(UntrustedCodeError):
        open_reference(tokenizer)
    with pytest.raises(CorruptOutputError):
        open_reference(replace(tokenizer, trust_remote_code=True))


@pytest.mark.parametrize(
    ("origin", "command"), [("local", "run"), ("local", "verify"), ("hub", "tokenizers")]
)
def test_changed_code_does_not_run_although_the_manifest_names_its_checksum(
    origin: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    saved = tokenizer_folder(folder)
    code = saved / "tokenization_letters.py"
    code.write_text(code.read_text() + "# another line\n")
    files = {name: asdict(entry) for name, entry in checksums(saved).items()}
    edit_manifest(saved, lambda fields: fields.update(files=files))
    if origin == "hub":  # of which the recipe has no checksums
        monkeypatch.setattr("tokflow.tokenizers.tokenizer._holds_copies", lambda _: False)
    write_raw(folder, {"new.jsonl": ["three"]})

    result = run(command, "--config", folder / "dataset.yaml")

    assert not (folder / "ran").exists()
    assert result.exit_code == 1
    expected = {"local": "the checksum that its recipe has", "hub": "of its files and special ids"}
    assert expected[origin] in " ".join((result.stdout + result.stderr).split())
