"""Build five fixed datasets, on this disk and at s3://, and compare every file with the digests in
digests.json: `make golden`. `make golden ARGS=--write` writes them anew, which a commit does only
with its reason. They hold for the versions of constraints.txt, which write the same bytes.

Exit status 1 if a file is new, gone or another.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from tokflow_tests.golden.datasets import declared, write_inputs
from tokflow_tests.object_store import another_machine, serve_objects

DIGESTS = Path(__file__).parent / "digests.json"

Digests = dict[str, dict[str, str]]
"""The first digits of the sha256 of files, by output (without its fingerprint) and name."""

NOT_COMPARED = re.compile(
    r"(^|/)(run\.json|hashes\.jsonl|checks\.jsonl|failures\.json)$|/latest(/|$)"
    r"|/_tokflow/(README\.md|croissant\.json)$"
)
"""Times and notes of a run, links, and text for people."""
LANCE = re.compile(r"/lance[^/]*/(.*/)?(manifest\.json|_versions/.*|_transactions/.*)$")
"""Lance writes the time into its own manifests, whose digests are in ours."""
FINGERPRINTS = re.compile(r"/[0-9a-f]{16}(?=[/.])")


def main() -> int:
    """Compare, or write; return the exit status."""
    parser = argparse.ArgumentParser(prog="make golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="take what is made now as right")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = _made(Path(folder))
    if arguments.write:
        lines = (f"{json.dumps(of)}: {json.dumps(files)}" for of, files in sorted(made.items()))
        DIGESTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    differences = [*_differences(json.loads(DIGESTS.read_text()), made)]
    for line in differences:
        print(line)
    num_files = sum(len(files) for files in made.values())
    print(f"golden: {len(made)} outputs, {num_files} files, {len(differences)} differ")
    return 1 if differences else 0


def _made(folder: Path) -> Digests:
    """Build both stores; what stands at s3:// must be what stands on this disk."""
    write_inputs(folder)
    _build(folder, "store")
    of_disk = {
        path.relative_to(folder / "store").as_posix(): path.read_bytes()
        for path in sorted((folder / "store").rglob("*"))
        if path.is_file()
    }
    with serve_objects() as server, another_machine(server, folder) as objects:
        _build(folder, f"{objects.url}/store")
        of_objects = {key.removeprefix("store/"): data for key, data in objects.contents().items()}
    disk, at_url = _digests(of_disk), _digests(of_objects)
    for line in _differences(disk, at_url):
        print(f"s3: {line} than on this disk")
    return disk | {f"s3:{of}": at_url[of] for of in at_url if at_url[of] != disk.get(of)}


def _build(folder: Path, store: str) -> None:
    path = folder / "golden.yaml"
    path.write_text(yaml.safe_dump(declared(store), sort_keys=False))
    command = [sys.executable, "-m", "tokflow", "run", "--config", str(path), "--jobs", "2"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def _digests(files: Mapping[str, bytes]) -> Digests:
    digests: Digests = {}
    for path, data in files.items():
        name = FINGERPRINTS.sub("", path)
        dataset, _, rest = name.partition("/")
        if rest.startswith("manifests/"):
            name = (
                f"{dataset}/{rest.removeprefix('manifests/').removesuffix('.json')}/manifest.json"
            )
        if not NOT_COMPARED.search(name) and not LANCE.search(name):
            output, file = _output_and_file(name.replace("/_tokflow/", "/"))
            digests.setdefault(output, {})[file] = hashlib.sha256(data).hexdigest()[:12]
    return digests


def _output_and_file(name: str) -> tuple[str, str]:
    """Split a path without fingerprints into its output and the name of the file in that."""
    dataset, stage, *rest = name.split("/")
    depth = 0 if stage == "tokenizer" else 2 if rest[0] == "group" else 1
    return "/".join([dataset, stage, *rest[:depth]]), "/".join(rest[depth:])


def _differences(expected: Digests, found: Digests) -> Iterator[str]:
    for output in sorted({*expected, *found}):
        before, now = expected.get(output, {}), found.get(output, {})
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                state = "new" if name not in before else "gone" if name not in now else "another"
                yield f"{output}/{name}: {state}"


if __name__ == "__main__":
    sys.exit(main())
