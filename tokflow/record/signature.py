"""Signatures of in-toto statements with a key of one's own: DSSE envelopes in bundles of Sigstore.

No network is asked, and nothing is in a public log. ECDSA on P-256 with SHA-256, on P-384 with
SHA-384, on P-521 with SHA-512, as Sigstore has them.

Source: secure-systems-lab/dsse v1.0.0, protocol.md; sigstore/protobuf-specs, bundle v0.3;
model-signing 1.1.1, _signing/sign_ec_key.py, for the hint of a key.
"""

import base64
import binascii
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from tokflow.errors import ConfigError, TokflowError
from tokflow.exports import Extra
from tokflow.store.manifest import indented, plain_json

PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"

EXTRA = Extra(name="sign", module="cryptography")

OF_RECEIPT = {"merkle_root", "leaves", "raw_files", "dataset", "export", "fingerprint"}
"""Fields of a predicate, without which it is none of a receipt."""

REMEDIES = {
    "private": "make one by `openssl ecparam -name prime256v1 -genkey -noout -out key.pem`; "
    "TOKFLOW_KEY_PASSWORD has its password",
    "public": "write it by `openssl ec -in key.pem -pubout -out key.pub`",
}


def signed(statement: bytes, key: Path, password: bytes | None = None) -> bytes:
    """Return a bundle with a statement and its signature by the private key in a PEM file.

    Raises: ConfigError for a file that has none, or one of another kind.
    """
    private = _read_key(key, "private", password)
    signature = private.sign(_encoded(statement), _algorithm(private))
    envelope = {
        "payload": base64.b64encode(statement).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
    }
    material = {"publicKey": {"hint": _hint(private.public_key())}, "tlogEntries": []}
    bundle = {"mediaType": BUNDLE_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}
    return indented(bundle)


def statement_in(
    data: bytes, *, where: Path, key: Path | None = None
) -> tuple[dict[str, Any], str]:
    """Return the statement in a bundle, an envelope or alone, and what is known of its signature.

    With the public key in a PEM file there must be a signature by it. Raises: TokflowError.
    """
    try:
        fields = plain_json(data)
        envelope = fields.get("dsseEnvelope", fields)
        is_signed = "payload" in envelope
        payload = base64.b64decode(envelope["payload"]) if is_signed else data
        statement = plain_json(payload)
        if lacking := OF_RECEIPT - statement["predicate"].keys():
            raise LookupError(f"no {min(lacking)}")
    except (ValueError, LookupError, TypeError, AttributeError, binascii.Error) as error:
        raise TokflowError(
            where=where,
            expected="an in-toto statement as `tokflow receipt` writes it",
            found=f"{type(error).__name__}: {error}",
            remedy="name the file that it wrote",
        ) from error
    if key is None:
        said = "signed; name the public key by --key to check that" if is_signed else "not signed"
        return statement, said
    if not is_signed or not _is_by(key, envelope, payload):
        raise TokflowError(
            where=where,
            expected=f"a signature by the key in {key}",
            found="one by another key, or of another statement" if is_signed else "none",
            remedy="do not rely on it: ask for the receipt, or for the key, once more",
        )
    return statement, f"signed by the key in {key}"


def _is_by(key: Path, envelope: Any, payload: bytes) -> bool:
    public = _read_key(key, "public")
    from cryptography.exceptions import InvalidSignature

    for of in envelope["signatures"] if envelope.get("payloadType") == PAYLOAD_TYPE else ():
        with suppress(InvalidSignature):
            public.verify(base64.b64decode(of["sig"]), _encoded(payload), _algorithm(public))
            return True
    return False


def _read_key(path: Path, kind: Literal["private", "public"], password: bytes | None = None) -> Any:
    EXTRA.check(where="--key")
    from cryptography.hazmat.primitives import serialization

    try:
        data = path.read_bytes()
        if kind == "private":
            key: Any = serialization.load_pem_private_key(data, password)
        else:
            key = serialization.load_pem_public_key(data)
        _algorithm(key)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigError(
            where=f"--key {path}",
            expected=f"a {kind} key in PEM, of the curve P-256, P-384 or P-521",
            found=f"{type(error).__name__}: {error}",
            remedy=REMEDIES[kind],
        ) from error
    return key


def _encoded(payload: bytes) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _algorithm(key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    by_size: dict[int, Any] = {256: hashes.SHA256, 384: hashes.SHA384, 521: hashes.SHA512}
    return ec.ECDSA(by_size[key.curve.key_size]())


def _hint(public: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()
