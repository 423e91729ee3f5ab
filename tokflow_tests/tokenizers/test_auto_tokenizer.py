"""Tokens are those of tokenizer.json, also where AutoTokenizer makes another tokenizer of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tokflow.store.tables import to_texts
from tokflow.tokenizers.auto_tokenizer import describe_rebuilt
from tokflow.tokenizers.engines.gate import AWKWARD_STRINGS
from tokflow.tokenizers.engines.hugging_face import load_pretrained, load_tokenizer_json
from tokflow.tokenizers.patterns import pre_tokenizer_fields
from tokflow_tests.chats import END, byte_level_json, save_chat_tokenizer
from tokflow_tests.cli.commands import run
from tokflow_tests.outputs import token_lists
from tokflow_tests.tiny import declare_texts, tokenize

TEXT = "it is  12345\n\n and\tthen"
MERGES = [["1", "2"], ["12", "3"], ["4", "5"], ["123", "45"], ["Ċ", "Ċ"], ["ĉ", "t"], [".", "Ċ"]]


def folder_of(
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
    folder = folder_of(tmp_path, "GPT2Tokenizer")
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
    folder = folder_of(tmp_path, class_name, pattern, normalizer)

    said = describe_rebuilt(folder)

    assert (said is not None) == is_said
    loaded = load_pretrained(folder, trust_remote_code=False)
    own = [loaded.encode(text, add_special_tokens=False) for text in AWKWARD_STRINGS]
    is_other = own != [ids_of(folder, text) for text in AWKWARD_STRINGS]
    assert is_other == is_said


def test_a_run_warns_once_and_does_not_import_transformers(tmp_path: Path):
    folder_of(tmp_path, "GPT2Tokenizer")
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
