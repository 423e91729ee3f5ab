"""Chats that a user's function makes of the records of a raw file."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.verify import verify_dataset
from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.documents.batch import ParsedBatch
from tokflow.documents.user_function import UserFunction, find_function
from tokflow.errors import BadDocumentError, ConfigError
from tokflow.tokenizers.chat import Chat, read_chat
from tokflow_tests.chats import CHATS, PLAIN, chat, chat_dataset
from tokflow_tests.outputs import documents_of
from tokflow_tests.reading import write_records
from tokflow_tests.tiny import tokenize

SOURCE = """
def turn(role, text):
    return {"role": role, "content": text}

def ask(record):
    return [turn("user", record["question"]), turn("assistant", record["answer"])]

def as_it_is(found):
    return found

def made(name):
    one, tool = [turn("user", "a")], {"name": "f"}
    whole = {"messages": one, "tools": [tool], "chat_template_kwargs": {"x": 1}}
    return {"messages": one, "message": one[0], "tuple": tuple(one), "whole": whole,
            "several": [one, whole], "none": None, "empty": [], "text": "a", "number": 5,
            "numbers": [5], "key": {"messages": one, "tool": tool}, "object": [{"role": object()}],
            "texts": ["a", "b"], "no list": {"messages": "a"}}[name]

def yielded(name):
    yield [turn("user", name)]
    yield [turn("user", name + "!")]

def per_letter(text):
    return [[turn("user", of)] if of != "b" else [{"content": of}] for of in text] or None
"""

ONE = [{"role": "user", "content": "a"}]
WHOLE = Chat(ONE, [{"name": "f"}], {"x": 1})


def config(folder: Path, name: str, **fields: Any) -> DocumentsConfig:
    (folder / "functions.py").write_text(SOURCE)
    fields = {"messages": "of", "transform": f"functions:{name}", **fields}
    return DocumentsConfig(**fields).at(folder, where="test")


def chats_of(path: Path, documents: DocumentsConfig) -> list[Chat]:
    chats: list[Chat] = []

    def read(found: ParsedBatch) -> ParsedBatch:
        chats.extend(read_chat(of.encode(), documents) for of in found.batch.texts.to_pylist())
        return found

    list(DocumentSource([path], documents).batches(render=read))
    return chats


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("messages", [Chat(ONE)]),
        ("message", [Chat(ONE)]),
        ("tuple", [Chat(ONE)]),
        ("whole", [WHOLE]),
        ("several", [Chat(ONE), WHOLE]),
        ("none", []),
        ("empty", []),
    ],
)
def test_a_function_returns_one_chat_or_several_or_none(
    name: str, expected: list[Chat], tmp_path: Path
):
    path = write_records(tmp_path / "a.jsonl", [{"of": name}])

    assert chats_of(path, config(tmp_path, "made")) == expected


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("text", "str 'a'"),
        ("number", "int 5"),
        ("numbers", "int 5"),
        ("texts", "str 'a'"),
        ("no list", "dict {'messages': 'a'}"),
        ("key", "dict {'messages': "),
        ("object", "TypeError: "),
    ],
)
def test_a_result_that_is_no_chat_makes_the_record_a_bad_document(
    name: str, found: str, tmp_path: Path
):
    path = write_records(tmp_path / "a.jsonl", [{"of": "none"}, {"of": name}])

    with pytest.raises(BadDocumentError) as caught:
        chats_of(path, config(tmp_path, "made"))

    assert (caught.value.row, caught.value.line) == (1, 2)
    assert caught.value.found.startswith(found)


def test_what_returns_chats_for_texts_or_texts_for_chats_is_told_which_field_to_use(tmp_path: Path):
    path = write_records(tmp_path / "a.jsonl", [{"of": "messages"}, {"of": "text"}])
    of_texts = config(tmp_path, "made", messages=None, text="of")

    with pytest.raises(BadDocumentError, match=r"documents\.messages, if it makes chats"):
        list(DocumentSource([path], of_texts).batches())
    with pytest.raises(BadDocumentError, match=r"documents\.text, if it makes texts"):
        chats_of(path, config(tmp_path, "made"))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_several_columns_are_a_record_and_one_is_its_value(suffix: str, tmp_path: Path):
    records = [{"question": "a", "answer": "b", "more": "c"}]
    path = write_records(tmp_path / f"a.{suffix}", records)

    found = chats_of(path, config(tmp_path, "ask", messages=("question", "answer")))

    assert found == [Chat(chat("a", "b"))]
    if suffix != "csv":
        messages = write_records(tmp_path / f"b.{suffix}", [{"of": chat("a", "b")}])
        assert chats_of(messages, config(tmp_path, "as_it_is")) == found


def test_a_dataset_of_transformed_chats_has_the_tokens_of_the_same_chats(tmp_path: Path):
    (tmp_path / "functions.py").write_text(SOURCE)
    fields = {"transform": "functions:as_it_is", "chat_template": PLAIN}
    dataset = chat_dataset(tmp_path, documents=fields)

    found = documents_of(tokenize(dataset))

    assert found == documents_of(tokenize(chat_dataset(tmp_path / "plain", template=PLAIN)))
    assert len(found) == len(CHATS)
    assert not [
        of.problems for of in verify_dataset(dataset) if "tokens" in of.name and of.problems
    ]


def find(folder: Path, text: str) -> UserFunction:
    return find_function(text, folder, where="a.yaml: documents.transform")


def write(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def test_a_module_is_found_without_being_run(tmp_path: Path):
    write(tmp_path / "unrun/__init__.py", "raise ValueError('run')\ndef f(text): ...\n")
    path = write(tmp_path / "unrun/mod.py", "raise ValueError('run')\ndef f(text): ...\n")

    assert find(tmp_path, "unrun.mod:f").path == path
    assert find(tmp_path, "unrun:f").path == tmp_path / "unrun/__init__.py"
    assert not [name for name in sys.modules if name.startswith("unrun")]


def test_the_folder_of_the_yaml_comes_before_where_python_looks(tmp_path: Path, monkeypatch):
    write(tmp_path / "site/clean_a.py", "def f(text): return 'site'")
    write(tmp_path / "site/clean_b.py", "def f(text): return 'site'")
    write(tmp_path / "here/clean_a.py", "def f(text): return 'here'")
    monkeypatch.syspath_prepend(tmp_path / "site")

    assert find(tmp_path / "here", "clean_a:f").load()("x") == "here"
    assert find(tmp_path / "here", "clean_b:f").load()("x") == "site"


def test_what_runs_is_what_was_found_and_not_what_the_file_holds_later(tmp_path: Path):
    path = write(tmp_path / "edited.py", "def f(text): return 1")
    first = find(tmp_path, "edited:f")
    path.write_text("def f(text): return 2")
    second = find(tmp_path, "edited:f")

    assert second.load()("x") == 2
    assert pickle.loads(pickle.dumps(first)).load()("x") == 1
    assert first.sha256 != second.sha256
    assert "edited" not in sys.modules


def test_a_module_may_import_its_neighbours_and_define_dataclasses(tmp_path: Path):
    write(tmp_path / "neighbour_x.py", "SUFFIX = '!'")
    write(tmp_path / "pack_x/__init__.py", "")
    write(tmp_path / "pack_x/sibling.py", "SUFFIX = '?'")
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from neighbour_x import SUFFIX\nfrom .sibling import SUFFIX as OTHER\n"
        "@dataclass\nclass Rule:\n    end: str\n"
        "def f(text):\n    return text + Rule(SUFFIX).end + OTHER\n"
    )
    write(tmp_path / "pack_x/mod.py", source)
    write(tmp_path / "pack_y/__init__.py", source.replace(".sibling", "pack_x.sibling"))

    assert find(tmp_path, "pack_x.mod:f").load()("x") == "x!?"
    assert find(tmp_path, "pack_y:f").load()("x") == "x!?"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere:f", "expected a module nowhere, that is nowhere.py in"),
        ("broken:f", "broken.py, line 2: expected Python source, found SyntaxError"),
        ("fine:stripp", "found none of that name; did you mean 'strip'?"),
    ],
)
def test_what_cannot_be_found_is_an_error_before_anything_runs(
    text: str, said: str, tmp_path: Path
):
    write(tmp_path / "broken.py", "\ndef f(:\n")
    write(tmp_path / "fine.py", "def strip(text): ...")

    with pytest.raises(ConfigError, match=r"a\.yaml: documents\.transform") as error:
        find(tmp_path, text)

    assert said in str(error.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_package\nf = 1", "found ModuleNotFoundError: No module named"),
        ("def g(): raise SystemExit(2)\ng()\nf = 1", "found SystemExit: 2 (in line 1 of bad.py)"),
        ("f = 1", "found a int of that name"),
        ("f = 1\ndel f", "found a NoneType of that name"),
    ],
)
def test_what_cannot_be_run_is_an_error_of_the_config(source: str, said: str, tmp_path: Path):
    write(tmp_path / "bad.py", source)

    with pytest.raises(ConfigError) as error:
        find(tmp_path, "bad:f").load()

    assert said in str(error.value)
    assert not [name for name in sys.modules if name.startswith("bad@")] or "of that name" in said
