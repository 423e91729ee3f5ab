"""Keys of objects below the URL of a place, and the paths on this disk that stand for them.

<dataset>/manifests/<stage>/<partition>/<fingerprint[:16]>.json    a manifest
<dataset>/manifests/exports/<name>/latest                          the name of a folder
<dataset>/manifests/.verdicts/<tokenizer[:16]>.json                a verdict; also .verdicts/...
<dataset>/<stage>/<partition>/<fingerprint[:16]>/<digest[:16]>/..  files of an output
<dataset>/packs/...                                                many manifests together
"""

import hashlib
import re
from pathlib import Path

from tokflow.store.manifest import MANIFEST_NAME, is_output_name
from tokflow.store.remote.places import Place
from tokflow.store.segments import is_segments_folder

MANIFESTS = "manifests"
"""The second part of the keys of what is mirrored, as no stage is called."""

PACKS = "packs"
"""The second part of the keys of packs."""

SUFFIX = ".json"

STAGES = {"raw", "tokenizer", "tokens", "split", "sequences", "exports"}
"""The folders below the manifests of a dataset."""

_FOLDER = r"(?!(?:\.\.?|latest|[0-9a-f]{16})/)[^/\\\x00-\x1f\x7f]+/"
_OUTPUT = r"(?:[0-9a-f]{16}|\.[0-9a-f]{16}\.segments/\d+)\.json"
_VERDICT = r"\.verdicts/[0-9a-f]+\.json"
_MIRRORED = re.compile(
    rf"(?:{'|'.join(sorted(STAGES))})/(?:{_FOLDER})*{_OUTPUT}|exports/{_FOLDER}latest|{_VERDICT}"
)
"""Keys below the manifests of a dataset that are tokflow's."""


def mirror_key(place: Place, path: Path) -> str:
    """Return the key of what `path` is the mirror of: a folder of a dataset or in one, an output's
    manifest by its folder's path, a link `latest`, a verdict."""
    dataset, slash, rest = place.key(path).partition("/")
    if dataset.startswith("."):
        return place.key(path)
    return f"{dataset}/{MANIFESTS}{slash}{rest}"


def manifest_key(place: Place, folder: Path) -> str:
    """Return the key of the manifest of the output in a folder."""
    return mirror_key(place, folder) + SUFFIX if place.is_store else MANIFEST_NAME


def mirror_path(place: Place, key: str) -> str | None:
    """Return the path on this disk of what has this key, which `mirror_key` or `manifest_key` gave
    it; as text, for there are many. None for any other key: it may be anybody's, and lead anywhere.
    """
    dataset, manifests, rest = key.partition(f"/{MANIFESTS}/")
    if not manifests:
        return f"{place.root}/{key}" if re.fullmatch(_VERDICT, key) else None
    if not is_dataset_name(dataset) or _MIRRORED.fullmatch(rest) is None:
        return None
    if rest.endswith(SUFFIX) and not rest.startswith("."):
        return f"{place.root}/{dataset}/{rest.removesuffix(SUFFIX)}/{MANIFEST_NAME}"
    return f"{place.root}/{dataset}/{rest}"


def is_dataset_name(name: str) -> bool:
    """Return whether a dataset may have a name that was found at a URL."""
    return re.fullmatch(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*", name) is not None


def data_prefix(place: Place, folder: Path, manifest: bytes) -> str:
    """Return what the keys of an output's files begin with, up to a `/`; it has the digest of the
    bytes of their manifest, so that writers whose bytes differ never write to one name."""
    if not place.is_store:
        return ""
    return f"{place.key(folder)}/{hashlib.sha256(manifest).hexdigest()[:16]}/"


def output_folder(place: Place, path: Path) -> Path | None:
    """Return the folder of the output that a path of a file is in; None where it is in none."""
    if not place.is_store:
        return place.root
    for folder in path.parents:
        if is_output_name(folder.name) or is_segments_folder(folder.parent):
            return folder
        if folder == place.root:
            break
    return None
