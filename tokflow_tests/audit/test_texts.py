from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.ancestry import Ancestry, ExportTexts
from tokflow.errors import CorruptOutputError
from tokflow.exports.index import read_index
from tokflow.exports.reading import find_export
from tokflow.pipeline.run import build_dataset
from tokflow.store.store import StoredOutput
from tokflow_tests.tiny import TEXTS, declare_small

CUT = {"boundary": "character", "parts": {"train": {"characters": 15}, "validation": {"start": 17}}}


def build(folder: Path, **attributes: Any) -> StoredOutput:
    assert build_dataset(declare_small(folder, exports=["bin"], **attributes)).failed == ()
    return find_export(folder / "store/small/exports/bin")


@pytest.mark.parametrize(
    "attributes",
    [{}, {"split": CUT}, {"shuffle": {"seed": 5, "documents": "file"}}],
    ids=["whole", "cut", "shuffled"],
)
def test_the_text_of_a_document_is_found_with_its_tokens(
    attributes: dict[str, Any], tmp_path: Path
):
    export = build(tmp_path, **attributes)

    texts = ExportTexts(export, Ancestry())

    for part in export.manifest.details["parts"]:
        for entry in read_index(export, part, 0, 100):
            found = texts.text_of(entry)
            document = TEXTS[entry["raw_file"]][entry["row"]]
            text = document[found.char_start : found.char_start + found.num_chars]
            assert bytes(found.token_ids[:-1].tolist()).decode() == text
            assert found.token_ids[-1] == 256
            assert found.between(1, 3).tolist() == found.token_ids[1:3].tolist()


def test_a_damaged_table_of_documents_is_not_taken_for_it(tmp_path: Path):
    export = build(tmp_path)
    (entry, *_) = read_index(export, "train", 0, 100)
    (table,) = (tmp_path / "store/small/tokens/a.jsonl").glob("*/documents.parquet")
    damaged = bytearray(table.read_bytes())
    damaged[20] ^= 1
    table.chmod(0o644)
    table.write_bytes(bytes(damaged))

    with pytest.raises(CorruptOutputError, match="documents"):
        ExportTexts(export, Ancestry()).text_of(entry)
