"""Added tokens are those of AutoTokenizer, or an error says which are not."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tokflow.errors import TokenizerError
from tokflow.store.tables import to_texts
from tokflow.tokenizers import pre_tokenizer_fields
from tokflow.tokenizers.auto_tokenizer import OF_END_OF_TEXT, check_added_tokens, describe_rebuilt
from tokflow.tokenizers.engines.gate import AWKWARD_STRINGS
from tokflow.tokenizers.engines.hugging_face import load_pretrained, load_tokenizer_json
from tokflow.tokenizers.tokenizer import END_OF_TEXT
from tokflow.tokenizers.vocabulary import names_of_roles
from tokflow_tests.chats import END, START, byte_level_json, save_chat_tokenizer
from tokflow_tests.cli.commands import run
from tokflow_tests.outputs import token_lists
from tokflow_tests.tiny import declare_texts, save_tokenizer, tokenize

NEXT = 310
"""The first id behind those of the tokenizer; its own added tokens are 0, 1 and 2."""

AS_SAVED = "PreTrainedTokenizerFast"
CLASS = "Qwen2Tokenizer"
NAMED = {"eos_token": END, "bos_token": None, "pad_token": END, "unk_token": None}


def token(content: str, **flags: bool) -> dict[str, Any]:
    known = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, **known, "special": True, **flags}


OWN = {str(id_): token(name) for id_, name in enumerate((START, END, "<|bos|>"))}


def folder_of(path: Path, config: dict[str, Any], **files: Any) -> Path:
    """Return a folder with a tokenizer.json; `files` are others by their names, less `.json`."""
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(byte_level_json())
    for name, fields in {"tokenizer_config": config, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(fields))
    return path


def listed(more: dict[str, Any]) -> dict[str, Any]:
    return {"added_tokens_decoder": {**OWN, **more}}


MORE = {str(NEXT): token("<more>")}
OF_CLASS = NAMED | {"tokenizer_class": CLASS}
IS_MISSING = f"'<more>', which is {NEXT} there, is missing"
DEFAULT = "'<|endoftext|>', which is"

SHAPES: dict[str, tuple[Any, ...]] = {
    # tokenizer_config.json, what is said of it (nothing where all agree), and other files.
    "no other file": ({}, None),
    "the same, listed": (listed({}), None),
    "listed and behind": (listed(MORE), IS_MISSING),
    "listed with another id": (listed({"900": token("<more>")}), IS_MISSING),
    "another flag": (listed({"1": token(END, rstrip=True)}), f"'{END}' has there rstrip: true"),
    "a word here": (listed({"1": token(END, special=False)}), f"'{END}' has there special: false"),
    "extra_special_tokens": ({"extra_special_tokens": ["<more>"]}, "'<more>', which is"),
    "extra by name": ({"extra_special_tokens": {"image_token": "<more>"}}, "'<more>'"),
    "additional_special_tokens": ({"additional_special_tokens": [START]}, None),
    "a token of the model's own": ({"image_token": "<more>"}, "'<more>'"),
    "a role": ({"pad_token": "[PAD]"}, "'[PAD]', which is"),
    "a role that is a piece": ({"pad_token": "e"}, None),
    "a map": ({}, "'[PAD]'", {"special_tokens_map": {"pad_token": token("[PAD]")}}),
    "a map that is not read": (listed({}), None, {"special_tokens_map": {"pad_token": "[PAD]"}}),
    "added_tokens": ({}, IS_MISSING, {"added_tokens": {"<more>": NEXT}}),
    "the same added_tokens": ({}, None, {"added_tokens": {END: 1}}),
    "a class": (OF_CLASS, None),
    "a class and fewer": (
        OF_CLASS | {"added_tokens_decoder": {"1": token(END)}},
        "which is 0, is none there",
    ),
    "a class and more": (OF_CLASS | listed(MORE), "'<more>'"),
    "a class with a token by default": ({"eos_token": END, "tokenizer_class": CLASS}, DEFAULT),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_added_tokens_are_those_of_auto_tokenizer_or_named(shape: str, tmp_path: Path):
    config, said, *files = SHAPES[shape]
    folder = folder_of(tmp_path / "t", {"tokenizer_class": AS_SAVED, **config}, **dict(*files))

    if said is None:
        check_added_tokens(folder, "t")
    else:
        with pytest.raises(TokenizerError) as error:
            check_added_tokens(folder, "t")
        assert said in error.value.found

    loaded = load_pretrained(folder, trust_remote_code=False)
    theirs = {str(at.content): id_ for id_, at in loaded.added_tokens_decoder.items()}
    is_same = {name: id_ for name, id_ in theirs.items() if name != "e"} == {
        of["content"]: int(id_) for id_, of in OWN.items()
    }
    assert is_same or said is not None
    roles = ("eos_token", "bos_token")
    named = {role: getattr(loaded, role) for role in roles if getattr(loaded, role)}
    assert names_of_roles(folder, roles) == named or "default" in shape


def test_what_auto_tokenizer_saves_whole_is_taken(tmp_path: Path):
    config = {"tokenizer_class": AS_SAVED, "added_tokens_decoder": {str(NEXT): token("<more>")}}
    folder = folder_of(tmp_path / "t", {**config, "eos_token": END})
    dataset = declare_texts(tmp_path, kind="huggingface", name="t")
    with pytest.raises(TokenizerError, match="'<more>', which is 310 there, is missing; save the"):
        save_tokenizer(dataset)

    load_pretrained(folder, trust_remote_code=False).save_pretrained(folder)

    assert save_tokenizer(dataset).special_tokens["<more>"] == NEXT


def refuse_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test where something is imported of transformers."""
    module = ModuleType("transformers")
    monkeypatch.setattr(module, "__getattr__", pytest.fail, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", module)


def test_files_that_agree_are_compared_without_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    refuse_transformers(monkeypatch)
    config = {"tokenizer_class": CLASS, "added_tokens_decoder": OWN, **NAMED}

    check_added_tokens(folder_of(tmp_path / "t", config), "t")


@pytest.mark.parametrize("name", OF_END_OF_TEXT)
def test_default_tokens_that_are_there_are_compared_without_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = folder_of(tmp_path / "t", {"tokenizer_class": name})
    fields = json.loads(byte_level_json().replace(START, END_OF_TEXT))
    word = fields["added_tokens"][0] | {"special": False}
    (folder / "tokenizer.json").write_text(
        json.dumps(fields | {"added_tokens": [word, *fields["added_tokens"][1:]]})
    )
    with pytest.raises(TokenizerError) as error:
        check_added_tokens(folder, "t")
    assert error.value.found == f"'{END_OF_TEXT}' has there special: true"
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    loaded = load_pretrained(folder, trust_remote_code=False)
    assert [*map(str, loaded.added_tokens_decoder.values())] == [END_OF_TEXT, END, "<|bos|>"]
    refuse_transformers(monkeypatch)

    check_added_tokens(folder, "t")


TEXT = "it is  12345\n\n and\tthen"
MERGES = [["1", "2"], ["12", "3"], ["4", "5"], ["123", "45"], ["Ċ", "Ċ"], ["ĉ", "t"], [".", "Ċ"]]


def like_olmo(
    path: Path, class_name: str | None, pattern: str = "cl100k", normalizer: str | None = None
) -> Path:
    """Return a folder like OLMo's: digits by threes in one file, GPT-2's class in the other."""
    fields = json.loads(byte_level_json())
    model = fields["model"]
    for left, right in MERGES:
        model["vocab"][left + right] = len(model["vocab"])
    model["merges"] += MERGES
    for number, token in enumerate(fields["added_tokens"]):
        token["id"] = model["vocab"][token["content"]] = 1_000 + number
    fields["pre_tokenizer"] = pre_tokenizer_fields(pattern)
    fields["normalizer"] = normalizer and {"type": normalizer}
    folder = save_chat_tokenizer(path, content=json.dumps(fields))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= dict.fromkeys(("bos_token", "unk_token", "pad_token"), END)  # the class has others
    config |= {"tokenizer_class": class_name} if class_name else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def ids_of(folder: Path, text: str) -> list[int]:
    reference = load_tokenizer_json((folder / "tokenizer.json").read_bytes(), "control")
    return reference.encode(to_texts([text])).token_ids.tolist()


@pytest.mark.parametrize(("kind", "engine"), [("huggingface", "auto"), ("file", "reference")])
def test_a_text_has_the_ids_of_tokenizer_json(kind: str, engine: str, tmp_path: Path):
    folder = like_olmo(tmp_path, "GPT2Tokenizer")
    dataset = declare_texts(
        tmp_path / "made", [TEXT], kind=kind, name=str(folder), eos="none", engine=engine
    )

    assert token_lists(tokenize(dataset)) == [ids_of(folder, TEXT)]


@pytest.mark.parametrize(
    ("class_name", "pattern", "normalizer", "is_said"),
    [
        ("GPT2Tokenizer", "cl100k", None, True),
        ("GPT2TokenizerFast", "o200k", None, True),
        ("GPT2Tokenizer", "gpt2", "NFC", True),
        ("GPT2Tokenizer", "gpt2", None, False),
        ("Qwen2Tokenizer", "qwen2", None, True),
        ("Qwen2TokenizerFast", "qwen2", "NFC", False),
        ("PreTrainedTokenizerFast", "cl100k", None, False),
        ("TokenizersBackend", "cl100k", None, False),
        (None, "cl100k", None, False),
    ],
)
def test_what_is_said_of_a_class_is_what_auto_tokenizer_does(
    class_name: str | None, pattern: str, normalizer: str | None, is_said: bool, tmp_path: Path
):
    folder = like_olmo(tmp_path, class_name, pattern, normalizer)

    said = describe_rebuilt(folder)

    assert (said is not None) == is_said
    loaded = load_pretrained(folder, trust_remote_code=False)
    own = [loaded.encode(text, add_special_tokens=False) for text in AWKWARD_STRINGS]
    is_other = own != [ids_of(folder, text) for text in AWKWARD_STRINGS]
    assert is_other == is_said


def test_a_run_warns_once_and_does_not_import_transformers(tmp_path: Path):
    like_olmo(tmp_path, "GPT2Tokenizer")
    declare_texts(tmp_path, [TEXT])
    yaml = (
        "name: texts\nraw: {files: raw/*}\ntokenizer: {kind: file, name: tok}\n"
        "packing: {sequence_length: 4}\nstore: store\n"
    )
    (tmp_path / "a.yaml").write_text(yaml)
    code = "import sys\nfrom tokflow.cli import main\n"
    code += "try:\n    main()\nfinally:\n    print('transformers' in sys.modules)\n"
    arguments = ["run", "--config", str(tmp_path / "a.yaml")]

    command = [sys.executable, "-c", code, *arguments]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    second = run(*arguments).output

    assert first.count("warning: AutoTokenizer of transformers 5 rebuilds this tokenizer as") == 1
    assert first.rstrip().endswith("False")
    assert "nothing to do" in second
    assert "AutoTokenizer" not in second
