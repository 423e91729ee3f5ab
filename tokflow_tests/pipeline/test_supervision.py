import json
from pathlib import Path
from typing import Any

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.run import build_dataset
from tokflow_tests.chats import chat_dataset
from tokflow_tests.outputs import new_in
from tokflow_tests.tiny import build, declare

ROLES = [[{"role": "human", "content": "hi"}, {"role": "gpt", "content": "hello"}]] * 2
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"


def chats(folder: Path, **documents: Any) -> Dataset:
    documents = {"chat_template": TEMPLATE, **documents}
    return chat_dataset(folder, ROLES, documents=documents, exports=["bin", "parquet"])


def test_no_export_is_made_of_chats_of_which_no_token_is_supervised(tmp_path: Path):
    built = build_dataset(chats(tmp_path))

    assert [(failed.stage, failed.name) for failed in built.failed] == [
        ("export", "bin"),
        ("export", "parquet"),
    ]
    assert (built.failed[0].error.where, built.failed[0].error.found) == (
        "chats: documents.messages",
        "none of 40 tokens, in messages of the roles 'human', 'gpt'",
    )
    said = {notice.name: notice.text for notice in built.notices}
    assert said["supervised_tokens"] == "supervised: 0 of 40 tokens (0.0 %)"
    assert said["documents_without_loss"] == (
        "nothing to learn: 2 documents without a supervised token"
    )


def test_the_error_names_the_field_of_chats_of_which_the_assistant_has_no_words(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text('{"instruction": "a", "output": ""}\n')
    template = "{% for m in messages if m.content %}{{ m.content }};{% endfor %}"
    documents = {"messages": None, "chat_format": "alpaca", "chat_template": template}
    dataset = chat_dataset(
        tmp_path, None, documents=documents, tokenizer={"eos": "none"}, exports=["npy"]
    )

    [failed] = build_dataset(dataset).failed

    assert str(failed.error).startswith("chats: documents.chat_format: ")


def test_it_is_made_where_that_is_accepted_and_nothing_else_again(tmp_path: Path):
    build_dataset(chats(tmp_path))

    built = build(chats(tmp_path, on_no_loss="accept"))

    new = new_in(built)
    assert new == [("export", "bin"), ("export", "parquet")]


def test_completions_that_are_all_empty_and_have_no_eos_are_no_training_data(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text(json.dumps({"prompt": "abc", "completion": ""}))
    documents = {"prompt": "prompt", "completion": "completion"}
    tokenizer = {"kind": "bytes", "eos": "none"}

    [failed] = build_dataset(
        declare(tmp_path, documents=documents, tokenizer=tokenizer, exports=["npy"])
    ).failed

    assert (failed.error.where, failed.error.found) == (
        "tiny: documents.completion",
        "none of 3 tokens",
    )
