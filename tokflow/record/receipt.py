"""The receipt of an export: one Merkle root over its manifest and those of all that it was made
from, in an in-toto statement.

    leaf     sha256 of 0x00 and the JSON of `leaf_of`, keys sorted, without spaces, in UTF-8
    node     sha256 of 0x01, the left and the right half, cut at the largest power of two
    leaves   sorted by their names, `<dataset>/<stage>/<partition>`

So one root comes of the same raw files and recipes, whatever machine, worker count, order or folder
they meet: a manifest has nothing of these, and what it says of the environment is left out. Times,
versions of libraries and what people write in `card:` are in the statement alone.

Source: RFC 9162, section 2.1.1; in-toto attestation, spec v1, statement.md.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokflow.audit.ancestry import Ancestry, lineage
from tokflow.errors import TokflowError
from tokflow.exports.reading import Export, is_export
from tokflow.record.facts import facts_of
from tokflow.store.listed_files import BESIDE
from tokflow.store.manifest import DROPPED
from tokflow.store.store import StoredOutput
from tokflow.store.versions import installed_versions
from tokflow.tokens.shard import is_shard

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:tokflow:receipt:v1"
TREE = "RFC 9162 with SHA-256, over manifests without what is of a machine or a time"


def statement_of(export: StoredOutput, ancestry: Ancestry) -> dict[str, Any]:
    """Return the statement about an export, which any environment makes with the same root.

    Raises: MissingOutputError where the store lacks what it was made from; as `lineage`.
    """
    outputs = lineage(export, ancestry)
    facts, manifest = facts_of(export, {}, ancestry), export.manifest
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


def leaf_of(output: StoredOutput) -> dict[str, Any]:
    """Return what is hashed of a manifest: all of it except OF_ENVIRONMENT, and files that have the
    time of their writing, as the commit of Lance."""
    manifest = output.manifest
    fields = replace(manifest, files={**manifest.dropped, **manifest.files}).fields()
    details = {of: value for of, value in fields["details"].items() if of not in OF_ENVIRONMENT}
    files = fields["files"]
    if is_export(manifest):
        files = {of: files[of] for of in files if not Export(output).format.has_time(of)}
    return {**fields, "details": details, "files": files}


def leaves_of(outputs: Iterable[StoredOutput]) -> dict[str, str]:
    """Return the hash of the leaf of each output by its name, sorted."""
    found = {}
    for output in outputs:
        leaf = leaf_of(output)
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


def differences(
    statement: Mapping[str, Any], outputs: Sequence[StoredOutput]
) -> list[TokflowError]:
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
