"""mlcroissant reads the description of an export and its records; sigstore-python and model-signing
find the signature of a receipt right."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tokflow.audit.ancestry import Ancestry
from tokflow.pipeline.fields import CardConfig
from tokflow.record.export_card import croissant_json
from tokflow.record.facts import known_facts
from tokflow.record.receipt import signed, statement_of
from tokflow.store.listed_files import CROISSANT_NAME
from tokflow.store.manifest import indented
from tokflow_tests.interop.harness import PARTS, known_dataset, printed_by, read_parts
from tokflow_tests.outputs import stored
from tokflow_tests.record.keys import write_keys

pytestmark = pytest.mark.interop

CARD = CardConfig(
    description="Texts.",
    license="mit",
    url="https://example.org/texts",
    creators=("Us",),
    published="2026-01-31",
    version="1.0.0",
    citation="@misc{texts}",
    owner="Them",
    period="2019/2020",
)


@pytest.mark.parametrize(
    ("format_", "options"),
    [
        ("parquet", {"shards": 2}),
        ("parquet", {"columns": ["labels"], "rename": {"input_ids": "tokens"}}),
        ("jsonl", {}),
        ("jsonl", {"compression": "gz"}),
    ],
)
def test_mlcroissant_reads_what_was_exported(format_: str, options: dict[str, Any], tmp_path: Path):
    known = known_dataset(tmp_path, format_, **options)
    facts = known_facts(stored(known.folder), {"tiny": CARD}, Ancestry())
    (known.folder / CROISSANT_NAME).write_bytes(croissant_json(facts))

    found = read_parts("croissant", known.folder, PARTS)

    ids = "tokens" if "rename" in options else "input_ids"
    for part in PARTS:
        expected = known.columns(part)
        assert found[part][ids].flatten().tolist() == expected["input_ids"].tolist()
        assert found[part]["warnings"].tolist() == []
        others = {*options.get("columns", ("segment_ids",))}
        for name in others & {*found[part]}:
            assert found[part][name].flatten().tolist() == expected[name].tolist()


CHECK = """
import json, sys
from pathlib import Path
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from model_signing._signing.sign_ec_key import Verifier
from model_signing._signing.sign_sigstore_pb import Signature
from sigstore import dsse

bundle, key = map(Path, sys.argv[1:])
kind, payload = Verifier(key)._verify_signed_content(Signature.read(bundle))
envelope = dsse.Envelope._from_json(json.dumps(json.loads(bundle.read_text())["dsseEnvelope"]))
assert dsse._verify(load_pem_public_key(key.read_bytes()), envelope) == payload
dsse.Statement(payload)
print(payload.decode())
"""


def test_other_tools_find_the_signature_of_a_receipt_right(tmp_path: Path):
    known = known_dataset(tmp_path, "bin")
    statement = statement_of(stored(known.folder), Ancestry())
    private, public = write_keys(tmp_path, ec.SECP256R1())
    (tmp_path / "receipt.json").write_bytes(signed(indented(statement), private))

    printed = printed_by("sigstore", CHECK, tmp_path / "receipt.json", public, home=tmp_path)

    assert json.loads(printed) == statement
