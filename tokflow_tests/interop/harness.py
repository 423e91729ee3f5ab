"""Known datasets, and the peers that read and write them, each in an environment of its own.

    known = known_dataset(tmp_path, "megatron", ids="many")       # builds, exports
    found = read_with("megatron", known.folder, "train")          # calls peers/megatron.py
    assert found["token_ids"].tolist() == known.token_ids("train").tolist()

What is expected is worked out here from the texts, by Python alone: nothing of tokflow's is used.
"""

import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tokflow.store.manifest import Manifest
from tokflow_tests.fuzz.packing import pack
from tokflow_tests.tiny import EOS, build, declare, many_ids

Arrays = dict[str, np.ndarray]

PARTS = ("train", "validation")

KINDS: dict[str, dict[str, Any]] = {
    "bytes": {},
    "without EOS": {"with_eos": False},
    "many": {"ids": "many"},
}
"""Known datasets: of 257 ids, of 257 and documents of no tokens, of more than 65,536 ids."""

SCRIPTS = Path(__file__).parent / "peers"
ENVIRONMENTS = Path(__file__).parents[2] / ".venv-interop"
SHARED = {"trl": "trainers"}
"""Peers in the environment of others."""

BYTES = {
    "train-0.jsonl": ["", "a", "The quick brown fox jumps over the lazy dog.", "", "", "bc"],
    "train-1.jsonl": [""],
    "train-2.jsonl": ["größe 漢字 😀", "seven..", "fifteen letters", "x" * 99, "y"],
    "train-3.jsonl": [],
    "validation-0.jsonl": ["z", "", "not seen in training"],
    "validation-1.jsonl": ["the end", ""],
}
"""Texts by raw file: empty ones, of one token, of exactly one row and two (rows of 8, with EOS),
longer than a row; a file of one empty text and a file of none."""

MANY = {
    "train-0.jsonl": ["", "w65536", "w0 w1 w65535 w65536 w69999 w7", "", "w3 w4"],
    "train-1.jsonl": [""],
    "train-2.jsonl": [" ".join(f"w{65_500 + step}" for step in range(75)), "w69999"],
    "validation-0.jsonl": ["w68000", "", "w12 w67001 w65535 w2 w2 w2 w2 w2 w2"],
}
"""The word w123 is the token 123; ids pass 65,535."""

MANY_EOS = 70_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """An export, and the tokens that must be in it."""

    folder: Path
    manifest: Manifest
    vocab_size: int
    eos_id: int | None
    sequence_length: int
    files: Mapping[str, Sequence[Sequence[Sequence[int]]]]
    """Part -> raw files -> documents -> token ids."""

    def documents(self, part: str) -> list[list[int]]:
        """Return the token ids of each document of a part, in order."""
        return [list(document) for file in self.files[part] for document in file]

    def token_ids(self, part: str) -> np.ndarray:
        """Return the tokens of all documents, end to end; int64."""
        return np.array([*itertools.chain(*self.documents(part))], dtype=np.int64)

    def offsets(self, part: str) -> np.ndarray:
        """Return where each document begins, and the last ends; int64 (num_documents + 1,)."""
        lengths = map(len, self.documents(part))
        return np.array([*itertools.accumulate(lengths, initial=0)], dtype=np.int64)

    @property
    def dtype(self) -> str:
        """The dtype that holds every id."""
        return "uint32" if self.vocab_size > 65_536 else "uint16"

    def rows(self, part: str) -> Arrays:
        """Return the rows of the strategy concat, padded: token_ids, segment_ids, position_ids.

        The documents of each raw file end to end, cut into rows; then, again end to end and cut,
        what filled no row. A document that a row's edge cuts begins again as a new segment.
        """
        lengths = [[*map(len, file)] for file in self.files[part]]
        documents, length = self.documents(part), self.sequence_length
        cells = np.zeros((0, length, 3), dtype=np.int64)
        for row in pack(lengths, {"sequence_length": length}).rows:
            found = [
                (documents[run.piece][run.start + position], segment, position)
                for segment, run in enumerate(row, 1)
                for position in range(run.size)
            ]
            found += [(self.eos_id or 0, 0, 0)] * (length - len(found))
            cells = np.concatenate([cells, [found]])
        names = ("token_ids", "segment_ids", "position_ids")
        return dict(zip(names, np.moveaxis(cells, -1, 0), strict=True))

    def columns(self, part: str, *, padding: bool = True) -> Arrays:
        """Return each column of the rows end to end, and as `<name>.lengths` what each row has."""
        rows = self.rows(part)
        is_token = rows["segment_ids"] != 0
        values = {
            "input_ids": rows["token_ids"],
            "attention_mask": is_token.astype(np.int64),
            "segment_ids": rows["segment_ids"],
            "position_ids": rows["position_ids"],
            "loss_mask": is_token.astype(np.int64),
            "labels": np.where(rows["position_ids"] > 0, rows["token_ids"], -100),
        }
        kept = np.ones_like(is_token) if padding else is_token
        lengths = [np.bincount(row[row > 0])[1:] for row in rows["segment_ids"]]
        arrays = {name: column[kept] for name, column in values.items()}
        arrays |= {f"{name}.lengths": kept.sum(axis=1) for name in values}
        arrays["seq_lengths"] = np.concatenate(lengths)
        arrays["seq_lengths.lengths"] = np.array([*map(len, lengths)])
        return arrays


def known_dataset(
    folder: Path,
    format_: str,
    *,
    ids: Literal["bytes", "many"] = "bytes",
    with_eos: bool = True,
    sequence_length: int = 8,
    files: Mapping[str, Sequence[str]] | None = None,
    attributes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Known:
    """Build a dataset of several raw files with the parts train and validation, and export it.

    ids: bytes (257 ids, EOS 256) or many (70,001 ids, EOS 70,000). with_eos: if not, empty texts
    are documents of no tokens. files: other texts by raw file, whose names begin with their part.
    attributes: of the dataset's YAML, over those made here. options: of the format.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = files or (MANY if ids == "many" else BYTES)
    tokenizer: dict[str, Any] = {"kind": "bytes"}
    if ids == "many":
        (folder / "many.json").write_text(many_ids())
        tokenizer = {"kind": "file", "name": "many.json", "eos_token": "<eos>"}
        tokenizer |= {"engine": "reference"}
    if not with_eos:
        tokenizer["eos"] = "none"
    parts = dict.fromkeys(name.partition("-")[0] for name in sorted(texts))
    given = {
        "tokenizer": tokenizer,
        "packing": {"sequence_length": sequence_length},
        "split": {"parts": {part: {"files": f"{part}-*"} for part in parts}},
        "exports": [{"format": format_, "name": "export", **options}],
    }
    made = build(declare(folder, texts, **{**given, **(attributes or {})})).export("export")
    eos_id = (MANY_EOS if ids == "many" else EOS) if with_eos else None
    end = [eos_id] if with_eos else []
    return Known(
        folder=made.output.folder,
        manifest=made.manifest,
        vocab_size=int(made.manifest.details["vocab_size"]),
        eos_id=eos_id,
        sequence_length=sequence_length,
        files={
            part: [
                [[*_encode(text, ids), *end] for text in texts[name]]
                for name in sorted(texts)
                if name.startswith(part)
            ]
            for part in ("train", "validation")
        },
    )


def read_with(peer: str, folder: Path, part: str, **options: Any) -> Arrays:
    """Return what the peer's own reader finds of one part of an export in `folder`."""
    return read_parts(peer, folder, [part], **options)[part]


def read_parts(peer: str, folder: Path, parts: Sequence[str], **options: Any) -> dict[str, Arrays]:
    """Return what the peer's own reader finds of each part, in one process: most take longer to
    import the peer than to read."""
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        given = ",".join(parts), json.dumps(options)
        _run(peer, "read", folder, temporary, *given, run_in=temporary)
        for part in parts:
            with np.load(Path(temporary) / f"{part}.npz") as arrays:
                found[part] = dict(arrays)
    return found


def write_with(
    peer: str,
    documents: Sequence[Sequence[int]],
    folder: Path,
    *,
    arrays: Mapping[str, np.ndarray] | None = None,
    **options: Any,
) -> None:
    """Let the peer's own writer write documents into `folder`; `arrays` go to its script too."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    token_ids = np.array([*itertools.chain(*documents)], dtype=np.int64)
    with tempfile.TemporaryDirectory() as temporary:
        given = Path(temporary) / "documents.npz"
        np.savez(given, token_ids=token_ids, offsets=offsets, **(arrays or {}))
        _run(peer, "write", given, folder, json.dumps(options), run_in=temporary)


def _run(peer: str, *arguments: object, run_in: str) -> None:
    """Run a peer's script in a folder that is removed: archai writes a log where it is run."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(Path(__file__).parent), "HF_HUB_OFFLINE": "1"}
    # -P: the folder of the script, megatron.py, must not hide the package of that name.
    command = [python_of(peer), "-P", SCRIPTS / f"{peer}.py", *arguments]
    done = subprocess.run(
        [str(argument) for argument in command],
        cwd=run_in,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}\n{done.stdout[-2_000:]}{done.stderr[-4_000:]}")


def printed_by(peer: str, code: str, *arguments: object, home: Path, **variables: str) -> str:
    """Return what Python code prints in the peer's environment; in `home` Hugging Face's libraries
    keep what they keep."""
    done = subprocess.run(
        [str(python_of(peer)), "-P", "-c", code, *map(str, arguments)],
        env={**os.environ, "HF_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout


def python_of(peer: str) -> Path:
    """Return the Python of the peer's environment, which `make test-interop` makes."""
    peer = SHARED.get(peer, peer)
    selected = os.environ.get("TOKFLOW_PEERS", "").split()
    if selected and peer not in selected:
        pytest.skip(f"{peer} is not among PEERS='{' '.join(selected)}'")
    if not (ENVIRONMENTS / peer / "ready").exists():
        pytest.fail(f"{peer} is not installed: run `make test-interop PEERS={peer}`")
    return ENVIRONMENTS / peer / "bin" / "python"


def assert_same(found: Mapping[str, np.ndarray], expected: Mapping[str, Any]) -> None:
    """Compare shapes and values, and dtypes where the expected one is not Python's own."""
    for name, value in expected.items():
        array = np.asarray(value)
        assert found[name].shape == array.shape, name
        assert found[name].tolist() == array.tolist(), name
        if array.dtype.itemsize < 8:
            assert found[name].dtype == array.dtype, name


def _encode(text: str, ids: str) -> list[int]:
    return [int(word[1:]) for word in text.split()] if ids == "many" else [*text.encode()]
