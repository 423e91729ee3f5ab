"""`verify` compares a tokenizer with its recipe, its fingerprint and the library that reads it."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.verify.tokens import verify_tokenizer
from tokflow.tokenizers.tokenizer import Tokenizer, tokenizer_of
from tokflow_tests.outputs import edit_manifest, stored
from tokflow_tests.special import (
    Make,
    of_bytes,
    of_sentencepiece,
    of_tiktoken,
    of_tokenizers,
)
from tokflow_tests.tiny import declare_texts, save_tokenizer
from tokflow_tests.tokenizers.test_stage import byte_level_files


def of_folder(folder: Path) -> dict[str, Any]:
    return {"kind": "huggingface", "name": str(byte_level_files(folder / "own"))}


def of_training(_: Path) -> dict[str, Any]:
    return {"kind": "trained", "vocab_size": 257}


KINDS = [of_bytes, of_folder, of_sentencepiece, of_tiktoken, of_tokenizers, of_training]


def saved(make: Make, folder: Path) -> Tokenizer:
    return save_tokenizer(declare_texts(folder, **make(folder)))


def reopened(tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer_of(stored(tokenizer.folder))


@pytest.mark.parametrize("make", KINDS)
def test_a_tokenizer_is_well_until_its_fingerprint_is_not_that_of_its_files(
    make: Make, tmp_path: Path
):
    tokenizer = saved(make, tmp_path)
    assert verify_tokenizer(tokenizer) == []

    def forge(fields: dict[str, Any]) -> None:
        fields["details"]["tokenizer_fingerprint"] = "../../x"

    edit_manifest(tokenizer.folder, forge)

    assert verify_tokenizer(reopened(tokenizer)) == [
        f"{tokenizer.folder}: expected the fingerprint {tokenizer.fingerprint[:16]}… of its files "
        "and special ids, found ../../x…; remove the tokenizer's folder and run `tokflow run` again"
    ]


@pytest.mark.parametrize("make", [of_sentencepiece, of_tokenizers])
def test_a_copied_file_has_the_checksum_that_is_in_the_recipe(make: Make, tmp_path: Path):
    tokenizer = saved(make, tmp_path)
    [name] = tokenizer.manifest.files

    def forge(fields: dict[str, Any]) -> None:
        fields["files"][name]["sha256"] = "0" * 64

    edit_manifest(tokenizer.folder, forge)

    [problem] = verify_tokenizer(reopened(tokenizer))
    assert problem.startswith(
        f"{tokenizer.folder / name}: expected the checksum that its recipe has, found another; "
    )
