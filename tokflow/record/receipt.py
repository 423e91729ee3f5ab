"""The receipt of an export: one Merkle root over its manifest and those of all that it was made
from, in an in-toto statement.

    leaf     sha256 of 0x00 and the JSON of a manifest, keys sorted, without spaces, in UTF-8
    node     sha256 of 0x01, the left and the right half, cut at the largest power of two
    leaves   sorted by their names, `<dataset>/<stage>/<partition>`

So one root comes of the same raw files and recipes, whatever machine, worker count, order or folder
they meet: a manifest has nothing of these, and what it says of the environment is left out. Times,
versions of libraries and what people write in `card:` are in the statement alone.

A signature is by a key of one's own, in a DSSE envelope in a bundle of Sigstore. No network is
asked, and nothing is in a public log. ECDSA on P-256 with SHA-256, on P-384 with SHA-384, on P-521
with SHA-512, as Sigstore has them.

Source: RFC 9162, section 2.1.1; in-toto attestation, spec v1, statement.md; secure-systems-lab/dsse
v1.0.0, protocol.md; sigstore/protobuf-specs, bundle v0.3; model-signing 1.1.1,
_signing/sign_ec_key.py, for the hint of a key.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tokflow.audit.ancestry import Ancestry, lineage
from tokflow.errors import ConfigError, MissingOutputError, TokflowError, message_of
from tokflow.exports import Extra, reading, stage
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.record.facts import facts_of
from tokflow.store.listed_files import BESIDE, resolved
from tokflow.store.manifest import DROPPED, indented, is_complete, plain_json
from tokflow.store.store import Store, StoredOutput
from tokflow.store.versions import installed_versions
from tokflow.tokens.shard import is_shard

Statement: TypeAlias = Mapping[str, Any]

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:tokflow:receipt:v1"
TREE = "RFC 9162 with SHA-256, over manifests without what is of a machine or a time"


def statement_of(export: StoredOutput, ancestry: Ancestry) -> dict[str, Any]:
    """Return the statement about an export, which any environment makes with the same root.

    Raises: MissingOutputError where the store lacks what it was made from; as `lineage`.
    """
    outputs = lineage(export, ancestry)
    facts, manifest = facts_of(outputs, {}), export.manifest
    leaves = leaves_of(outputs)
    beside = {name: export.store.read_beside(export.folder, name) for name in BESIDE}
    versions: dict[str, set[str]] = {}
    for output in outputs:
        for library, version in output.run().get("versions", {}).items():
            versions.setdefault(library, set()).add(version)
    predicate = {
        "merkle_root": merkle_root(leaves),
        "merkle_tree": TREE,
        "leaves": leaves,
        "dataset": manifest.dataset,
        "export": export.export_name,
        "fingerprint": manifest.recipe.fingerprint,
        "counts": dict(manifest.counts),
        "raw_files": raw_files_of(outputs),
        "recipes": facts.recipes,
        "selection": {"rules": facts.rules, "left_out": dict(facts.left_out)},
        "made_with": {library: sorted(of) for library, of in sorted(versions.items())},
        "written_with": installed_versions(),
        "beside": {of: _hex(data) for of, data in beside.items() if data is not None},
    }
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": entry.sha256}}
            for name, entry in manifest.files.items()
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }


def raw_files_of(outputs: Iterable[StoredOutput]) -> dict[str, str]:
    """Return the digest of each raw file, or group, by `<dataset>/<partition>`."""
    shards = [of.manifest for of in outputs if is_shard(of.manifest)]
    return {f"{of.dataset}/{of.partition}": of.recipe.parents["raw"] for of in shards}


OF_ENVIRONMENT = {"origin", "reference", DROPPED}
"""Details of a manifest that are not under the root: the place that a tokenizer came from, the
library that was its reference, and files that were dropped, which count as if they were there."""


def leaves_of(outputs: Iterable[StoredOutput]) -> dict[str, str]:
    """Return the hash of the leaf of each output by its name, sorted: of all of its manifest except
    OF_ENVIRONMENT, and files that have the time of their writing, as the commit of Lance."""
    found = {}
    for output in outputs:
        manifest = output.manifest
        leaf = replace(manifest, files={**manifest.dropped, **manifest.files}).fields()
        details, files = leaf["details"], leaf["files"]
        leaf["details"] = {of: details[of] for of in details if of not in OF_ENVIRONMENT}
        if reading.is_export(manifest):
            has_time = reading.Export(output).format.has_time
            leaf["files"] = {of: files[of] for of in files if not has_time(of)}
        name = "/".join(filter(None, (leaf["dataset"], leaf["stage"], leaf["partition"])))
        text = json.dumps(leaf, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        found[name] = _hex(b"\0" + text.encode())
    return dict(sorted(found.items()))


def merkle_root(leaves: Mapping[str, str]) -> str:
    """Return the root over the hashes of leaves, in their order; there is one at least."""
    return _root([bytes.fromhex(of) for of in leaves.values()]).hex()


def _root(hashes: Sequence[bytes]) -> bytes:
    if len(hashes) == 1:
        return hashes[0]
    middle = 1 << (len(hashes) - 1).bit_length() - 1
    halves = _root(hashes[:middle]) + _root(hashes[middle:])
    return hashlib.sha256(b"\1" + halves).digest()


def _hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def differences(statement: Statement, outputs: Sequence[StoredOutput]) -> list[TokflowError]:
    """Return how an export and what it was made from differ from a receipt: raw files first, then
    each manifest, then the root; empty where they are what the receipt says."""
    said = statement["predicate"]
    leaves, root = leaves_of(outputs), said["merkle_root"]
    found = [
        *unequal("raw file", said["raw_files"], raw_files_of(outputs)),
        *unequal("manifest", said["leaves"], leaves),
    ]
    roots = {merkle_root(said["leaves"]), merkle_root(leaves)} - {root}
    return [*found, *(different("Merkle root", root, of) for of in sorted(roots))]


def unequal(
    what: str, expected: Mapping[str, str], found: Mapping[str, str]
) -> Iterator[TokflowError]:
    """Yield an error for each name whose digest is another, or is in one of both alone."""
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            yield different(f"{what} {name}", expected.get(name), found.get(name))


def different(where: str, expected: str | None, found: str | None) -> TokflowError:
    """Return the error of something whose digest is not that of a receipt."""
    return TokflowError(
        where=where,
        expected=f"sha256 {expected}, as the receipt says" if expected else "none in the receipt",
        found=f"{found}" if found else "none",
        remedy="it is not what the receipt was written of: restore it, or ask for a new receipt",
    )


def check_store(statement: Statement, store: Store, folder: Path) -> Iterator[str]:
    """Yield how a store differs from a receipt: manifests, and every byte of the files that they
    list, of the export and of all that it was made from.

    `folder`: that of the store, of the dataset, of the export, or of the output itself. Raises:
    TokflowError where something is missing, or a manifest is damaged.
    """
    said = statement["predicate"]
    name = said["fingerprint"][:16]
    below = Path(said["dataset"], stage.EXPORT.path, said["export"], name)
    likely = [folder / Path(*below.parts[at:]) for at in range(5)]
    store.look_for(likely[:2])
    there = next((of for of in likely if is_complete(of)), None)
    if there is None:
        raise MissingOutputError(
            where=store.shown(folder),
            expected=f"the export of the receipt, {below}",
            found="none",
            remedy="name the store, the dataset or the export that has it, or add --rebuild",
        )
    export = store.find(resolved(there), stage.EXPORT.name, said["fingerprint"])
    outputs = lineage(export, Ancestry())
    yield from map(str, differences(statement, outputs))
    for problems in store.problems(outputs):
        yield from map(str, problems)


def check_dataset(statement: Statement, dataset: Dataset) -> Iterator[str]:
    """Yield how the raw files of a dataset, of a mixture those of its sources, and then its store,
    differ from a receipt; all are read. Raises: as `check_store`."""
    graph = graph_of(dataset, rehash=True)
    found = {}
    for of in (graph.of_sources or {"": graph}).values():
        for key in of.partitions:
            try:
                found[f"{of.dataset.name}/{key}"] = of.raw(key).sha256
            except (TokflowError, OSError) as error:
                yield message_of(error, where=key)
    yield from map(str, unequal("raw file", statement["predicate"]["raw_files"], found))
    yield from check_store(statement, dataset.store, dataset.folder)


def check_rebuilt(statement: Statement, dataset: Dataset) -> Iterator[str]:
    """Yield how the export that a dataset, whose store is empty, gives differs from a receipt.

    Raises: the error of what cannot be built.
    """
    said = statement["predicate"]
    exports = tuple(of for of in dataset.exports if of.name == said["export"])
    if not exports:
        raise MissingOutputError(
            where=dataset.name,
            expected=f"the export {said['export']} that the receipt is of",
            found=", ".join(of.name for of in dataset.exports) or "none",
            remedy="declare it as it was, or name the receipt of another",
        )
    built = build_dataset(dataset.model_copy(update={"exports": exports}))
    for failed in built.failed:
        raise failed.error
    export = built.export(said["export"]).stored
    yield from map(str, differences(statement, lineage(export, Ancestry())))


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
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    material = {"publicKey": {"hint": _hex(pem)}, "tlogEntries": []}
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
