from pathlib import Path
from typing import Any

from tokflow.pipeline.plan import make_plan
from tokflow_tests.special import of_tokenizers
from tokflow_tests.tiny import build, declare


def notices(folder: Path, texts: list[str], **fields: Any) -> dict[str, str]:
    """Build a dataset of these texts; return its notices, which its next plan has, too."""
    dataset = declare(folder, {"a.jsonl": texts}, **fields)
    built = build(dataset).notices
    assert make_plan(dataset).totals.notices() == built
    return {notice.name: notice.text for notice in built}


def test_special_tokens_that_became_plain_text_are_told_with_the_option(tmp_path: Path):
    tokenizer = of_tokenizers(tmp_path)
    control = {**tokenizer, "special_tokens_in_text": "control"}

    said = notices(tmp_path / "ordinary", ["a </s> b", "</s>", "none"], tokenizer=tokenizer)

    assert said["special_tokens_in_text"] == (
        "encoded as plain text: 2 special tokens that the documents contain; "
        "tokenizer.special_tokens_in_text: control makes control tokens of them"
    )
    assert notices(tmp_path / "control", ["a </s> b"], tokenizer=control) == {}


def test_rows_that_are_shorter_than_8_tokens_on_average_are_told(tmp_path: Path):
    fields: dict[str, Any] = {"packing": {"strategy": "one_document", "sequence_length": 64}}
    fields["exports"] = ["jsonl", "bin"]

    said = notices(tmp_path / "short", ["123456", "1234567"], **fields)

    assert said == {"short_rows": "short rows: 7.5 tokens on average in jsonl"}
    assert notices(tmp_path / "long", ["123456", "12345678"], **fields) == {}


def test_files_in_which_the_separator_is_nowhere_are_told(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    for name, text in {"a": "x\r\n\r\ny", "b": "x\n\n", "c": "x\ny", "d": "", "e": "z"}.items():
        (tmp_path / f"raw/{name}.txt").write_bytes(text.encode())
    documents = {"document_per": "separator", "separator": "\n\n"}

    [said] = build(declare(tmp_path, raw={"files": "raw/*"}, documents=documents)).notices

    assert said.text == "one document each: 2 files without documents.separator"
