"""`tokflow init`, and that what it writes builds with no edit."""

import csv
import gzip
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokflow
from tokflow.store.streams import zstd
from tokflow_tests.chats import chat, save_chat_tokenizer
from tokflow_tests.cli.commands import json_of, refused, run
from tokflow_tests.hub import Hub
from tokflow_tests.projects import declare_in, make_project
from tokflow_tests.raw.test_source_splits import save_splits
from tokflow_tests.reading import write_records
from tokflow_tests.tiny import load_dataset

RECORDS = [{"id": f"{n}", "body": f"Once there was a number {n}. " * 9} for n in range(150)]

COMPRESS = {".gz": gzip.compress, ".zst": zstd.compress}


def write(path: Path) -> Path:
    table = pa.Table.from_pylist(RECORDS)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        path.write_bytes(COMPRESS.get(path.suffix, bytes)(text_of(path).encode()))
    return path


def text_of(path: Path) -> str:
    if ".jsonl" in path.name:
        return "".join(f"{json.dumps(record)}\n" for record in RECORDS)
    if ".txt" in path.name:
        return "".join(record["body"] for record in RECORDS)
    text = io.StringIO()
    delimiter = "\t" if ".tsv" in path.name else ","
    writer = csv.DictWriter(text, ["id", "body"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(RECORDS)
    return text.getvalue()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.tsv.zst", "a.txt"])
def test_what_is_written_builds_with_no_edit(tmp_path: Path, name: str):
    write(tmp_path / name)

    written = json_of("init", name)
    built = json_of("run", "--config", "a.yaml")

    assert written["path"] == str(tmp_path / "a.yaml")
    assert written["formats"] == [name.split(".")[1]]
    if ".txt" in name:
        assert written["documents"] == {"document_per": "file"}
    else:
        assert (written["documents"], written["other_columns"]) == ({"text": "body"}, ["id"])
    [dataset] = built["datasets"]
    folder = tmp_path / "data/store/a/exports/bin/latest"
    assert dataset["dataset"] == "a"
    assert (folder / "val.bin").stat().st_size < (folder / "train.bin").stat().st_size


def test_it_says_what_it_found_and_how_to_go_on(tmp_path: Path):
    (tmp_path / "tales").mkdir()
    write(tmp_path / "tales/a.jsonl")
    write(tmp_path / "tales/b.jsonl")

    shown = run("init", "tales").stdout

    assert shown.splitlines() == [
        "tales: 2 files of jsonl, 83.9 kB",
        "the text is in 'body'; others with text: id",
        "a tokenizer of 512 ids will be trained on the text; `--tokenizer gpt2` takes an existing "
        "one",
        "wrote tales.yaml",
        "",
        "next:",
        "  tokflow plan --config tales.yaml",
        "  tokflow run --config tales.yaml",
    ]
    assert "files: tales/*.jsonl" in (tmp_path / "tales.yaml").read_text()


def test_a_tokenizer_is_named_as_people_call_it(tmp_path: Path):
    write(tmp_path / "a.jsonl")
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/tokenizer.json").write_text("{}")

    written = json_of("init", "a.jsonl", "--tokenizer", "tok")
    printed = run("init", "a.jsonl", "--name", "b", "--tokenizer", "tok").output

    assert written["tokenizer"] == {"kind": "huggingface", "name": "tok"}
    assert load_dataset(tmp_path / "a.yaml").tokenizer.name == "tok"
    assert "will be trained" not in printed


CHAT = chat("Hello there", "General Kenobi")
SHAREGPT = [{"from": "human", "value": "Hello there"}, {"from": "gpt", "value": "General Kenobi"}]
ALPACA = {"instruction": "Count", "input": "to 2", "output": "1, 2"}
OF_CHATS: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "messages": (
        {"messages": CHAT, "tools": [{"name": "f"}], "url": "u"},
        {"messages": "messages", "tools": "tools"},
        "each document is a chat in 'messages', tools in 'tools'; others with text: url",
    ),
    "sharegpt": (
        {"id": "1", "conversations": SHAREGPT, "system": "be brief"},
        {"messages": "conversations", "chat_format": "sharegpt", "system": "system"},
        "each document is a ShareGPT chat in 'conversations', system in 'system'; others with "
        "text: id",
    ),
    "alpaca": (
        ALPACA,
        {"chat_format": "alpaca"},
        "each document is an Alpaca chat, the whole record",
    ),
    "lists": (
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
        {"prompt": "prompt", "completion": "completion", "chat_format": "messages"},
        "prompts and completions are messages, in 'prompt' and 'completion'",
    ),
    "texts": (
        {"question": "1 + 1 = ", "answer": "2", "text": "1 + 1 = 2"},
        {"prompt": "question", "completion": "answer"},
        "prompts and completions are texts, in 'question' and 'answer'; others with text: text",
    ),
}
"""A record, the `documents` that are written for a file of it, and what is printed."""


@pytest.mark.parametrize("name", OF_CHATS)
def test_chats_are_recognised(name: str, tmp_path: Path):
    record, documents, printed = OF_CHATS[name]
    write_records(tmp_path / "a.jsonl", [record] * 3)
    save_chat_tokenizer(tmp_path)

    shown = run("init", "a.jsonl", "--tokenizer", "tok").stdout.splitlines()

    assert shown[1] == printed
    config = load_dataset(tmp_path / "a.yaml").documents
    assert config.model_dump(include=set(documents)) == documents


def test_what_is_written_of_chats_builds_with_no_edit(tmp_path: Path):
    write_records(tmp_path / "a.parquet", [{"messages": CHAT}] * 3)
    save_chat_tokenizer(tmp_path)
    json_of("init", "a.parquet", "--tokenizer", "tok")

    built = run("run", "--config", "a.yaml")

    assert built.exit_code == 0, built.stderr
    folder = tmp_path / "data/store/a/exports/parquet/latest"
    parts = [pq.read_table(*folder.glob(f"{part}*")) for part in ("train", "validation")]
    train, validation = (sum(map(sum, of["loss_mask"].to_pylist())) for of in parts)
    assert train == 2 * validation > 0


def test_no_tokenizer_is_trained_on_chats(tmp_path: Path):
    write_records(tmp_path / "a.jsonl", [{"messages": CHAT}])

    result = run("init", "a.jsonl")

    assert (result.exit_code, (tmp_path / "a.yaml").exists()) == (2, False)
    assert "; write --tokenizer FOLDER, or a hub id" in result.stderr


def test_the_first_chat_is_shown_with_its_mask_or_why_it_cannot_be(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    save_chat_tokenizer(tmp_path)

    shown = run("init", "a.jsonl", "--tokenizer", "tok", "--output", "shown.yaml")
    refused = run("init", "a.jsonl", "--tokenizer", "bytes", "--output", "refused.yaml")

    assert "    user: given                    │ Hello there\n" in shown.stdout
    assert "  ✓ assistant: content, stop token │ General Kenobi<|im_end|>\n" in shown.stdout
    assert (refused.exit_code, (tmp_path / "refused.yaml").exists()) == (0, True)
    assert "the first chat cannot be shown: documents.chat_template: " in refused.stderr


def test_what_it_shows_as_comments_is_what_a_dataset_may_have(tmp_path: Path):
    write(tmp_path / "a.jsonl")
    json_of("init", "a.jsonl", "--tokenizer", "bytes")
    text = (tmp_path / "a.yaml").read_text()

    (tmp_path / "a.yaml").write_text(re.sub(r"# (keep_columns|limit|shuffle):", r"\1:", text))

    dataset = load_dataset(tmp_path / "a.yaml")
    assert dataset.documents.keep_columns == ("id",)
    assert dataset.documents.limit.documents == 1_000
    assert dataset.shuffle.documents == "dataset"


def test_files_that_no_glob_matches_alone_are_said_to_be_named(tmp_path: Path):
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        write(tmp_path / name)

    result = run("init", "a.jsonl", "b.jsonl", "--name", "two")

    assert "2 files are named one by one, so files that come later are not taken" in result.stdout


def test_in_a_clone_nothing_is_written_into_tokflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "a.jsonl")
    monkeypatch.setenv("TOKFLOW_PROJECT", str(Path(tokflow.__file__).parents[1]))

    written = json_of("init", "a.jsonl")

    assert written["path"] == str(tmp_path / "a.yaml")
    assert written["commands"][0] == "tokflow plan --config a.yaml"
    assert load_dataset(tmp_path / "a.yaml").raw.files == ("a.jsonl",)


def test_nothing_is_ever_overwritten(tmp_path: Path):
    write(tmp_path / "a.jsonl")
    (tmp_path / "a.yaml").write_text("mine")

    assert "expected a path where nothing is yet" in refused("init", "a.jsonl")
    assert (tmp_path / "a.yaml").read_text() == "mine"


def test_the_name_the_column_and_the_file_may_be_given(tmp_path: Path):
    write(tmp_path / "a.jsonl")

    written = json_of("init", "a.jsonl", "--text", "id", "--output", "sub/two.yaml")
    named = json_of("init", "a.jsonl", "--name", "of-mine")
    refused = run("init", "a.jsonl", "--name", "of mine")

    assert (written["name"], written["documents"]["text"]) == ("two", "id")
    assert f"files: {tmp_path}/a.jsonl" in (tmp_path / "sub/two.yaml").read_text()
    assert run("plan", "--config", "sub/two.yaml").exit_code == 0
    assert named["path"] == str(tmp_path / "of-mine.yaml")
    assert (refused.exit_code, "write of_mine" in refused.stderr) == (2, True)


def test_in_a_project_it_is_one_of_its_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    project = make_project(tmp_path / "project")
    write(project / "a.jsonl")
    monkeypatch.chdir(project / "mine")

    written = json_of("init", "../a.jsonl", "--name", "tales")

    assert written["path"] == str(project / "mine/defs/tales/defs.yaml")
    assert written["commands"] == ["tokflow plan tales", "tokflow run tales"]
    text = Path(written["path"]).read_text()
    assert "files: a.jsonl" in text
    assert "start at the project's folder" in text.replace("\n# ", " ")
    assert json_of("plan", "tales")["datasets"][0]["num_files"] == 1


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a dataset and a raw file, which one stands in."""
    project = make_project(tmp_path / "project")
    declare_in(project, "some/folder", "a-b")
    write(project / "a.jsonl")
    monkeypatch.chdir(project)
    return project


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--name", "a_b"], "found 'a-b' in PROJECT/mine/defs/some/folder/defs.yaml"),
        (["--output", "mine/defs/some/folder/defs.yml"], "found PROJECT/mine/defs/some/folder/"),
        (["--output", "mine/defs/defs.yaml"], "found PROJECT/mine/defs/some/folder/defs.yaml"),
    ],
)
def test_no_dataset_of_the_project_is_disabled_or_hidden(
    project: Path, arguments: list[str], found: str
):
    before = sorted(project.rglob("*"))

    said = refused("init", "a.jsonl", *arguments)

    assert found.replace("PROJECT", str(project)) in said
    assert sorted(project.rglob("*")) == before


def test_a_folder_of_save_to_disk_stands_for_itself_and_its_splits(tmp_path: Path):
    save_splits(tmp_path / "data/saved")
    shutil.copy(tmp_path / "data/saved/train/data-00000-of-00001.arrow", "data/saved/cache-1.arrow")

    found = json_of("init", "data/saved")

    written = Path("saved.yaml").read_text()
    assert "  files: data/saved\n" in written
    assert "      train: {source_split: train}\n" in written
    assert found["num_files"] == 2
    assert json_of("run", "--config", "saved.yaml")["datasets"][0]["left_out"]


def test_a_dataset_of_the_hub_is_looked_at_by_its_smallest_file(hub: Hub, tmp_path: Path):
    write(tmp_path / "a.parquet")
    bodies = ["small " * 100] * 5_000  # 3 million characters, of which 2,048 ids would be made
    pq.write_table(pa.table({"body": bodies}), tmp_path / "b.parquet")
    files = {"train-0": "a", "train-1": "a", "test-0": "b"}
    content = {name: (tmp_path / f"{file}.parquet").read_bytes() for name, file in files.items()}
    hub.push("team/number-tales", {f"{name}.parquet": of for name, of in content.items()})

    found = json_of("init", "hf://datasets/team/number-tales")
    fetched = hub.downloads()
    made = run("run", "--config", "number-tales.yaml")

    assert (found["name"], found["num_files"]) == ("number-tales", 3)
    assert (found["documents"], found["tokenizer"]["vocab_size"]) == ({"text": "body"}, 512)
    assert list(found["split"]["parts"]) == ["train", "test"]
    assert fetched == ["test-0.parquet"]
    assert made.exit_code == 0, made.output
    assert "      test: {source_split: test}\n" in Path("number-tales.yaml").read_text()
