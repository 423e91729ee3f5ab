"""Build a case with tokflow by its public road, and compare all of it with the model."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
import yaml

from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.errors import BadDocumentError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.results import BuildResult
from tokflow.pipeline.run import build_dataset
from tokflow.tokenizers.engines import code_points
from tokflow_tests.fuzz.cases import Case
from tokflow_tests.fuzz.chats import is_chat
from tokflow_tests.fuzz.check_export import check_export, check_kept
from tokflow_tests.fuzz.check_rows import ExportToCheck
from tokflow_tests.fuzz.check_trace import check_document, check_traces
from tokflow_tests.fuzz.difference import DifferenceError, same
from tokflow_tests.fuzz.model import (
    NO_PART,
    NONE,
    Documents,
    Pieces,
    RawFile,
    check_draw,
    divided,
    form_of,
    pieces_of,
    read_all,
    selected,
    shuffled,
    tokens_of,
)
from tokflow_tests.fuzz.packing import packing_of_parts
from tokflow_tests.fuzz.references import Reference, open_reference
from tokflow_tests.tiny import load_dataset

COMMAND_SECONDS = 300


Tally = Counter[str]
"""Cases, documents, tokens, exports and traces that were looked at."""


def check_case(case: Case, folder: Path) -> Tally:
    """Build a case and compare it; cases in one folder share the tokenizers that they save.

    Raises: DifferenceError at the first difference.
    """
    work = folder / "work"
    for stale in work.glob("store/fuzz/*"):
        if stale.is_file():
            stale.unlink()
        elif stale.name != "tokenizer":
            shutil.rmtree(stale)
    run = _Run(case, work, open_reference(case.tokenizer, folder))
    run.build(case.files)
    if case.later is not None:
        run.build(case.later)
    return run.tally


class _Run:
    def __init__(self, case: Case, folder: Path, reference: Reference) -> None:
        self.case = case
        self.folder = folder
        self.tally = Tally(cases=1, documents=0, tokens=0, exports=0, traces=0)
        self.random = Random(f"check {case.seed}")
        self.config: dict[str, Any] = case.attributes
        tokenizer = self.config["tokenizer"]
        is_one_id = tokenizer.get("bos_token") == tokenizer.get("eos_token") is not None
        self.reference = replace(reference, bos_id=reference.eos_id) if is_one_id else reference
        self._part_of_text: dict[str, str] = {}

    def build(self, files: Sequence[RawFile]) -> None:
        """Write the raw files, build, and compare everything."""
        documents, tokenizer = self.config["documents"], self.config["tokenizer"]
        encode = partial(tokens_of, reference=self.reference, config=tokenizer)
        self.files = files
        self.documents = read_all(files, documents, encode, self.config.get("shuffle", {}))
        dataset = self._declare(files)
        expects_error = any(found.error_row is not None for found in self.documents.values())
        if self.case.is_command_line:
            self._run_command(dataset, expects_error=expects_error)
        built = build_dataset(dataset)
        if self.case.is_command_line and not expects_error:
            same("outputs that a second run makes", expected=0, found=built.num_new)
        if expects_error:
            self._check_errors(built)
            return
        pieces = self._check_stages(built)
        for failed in built.failed:
            where = f"{failed.stage} {failed.name}"
            raise DifferenceError(f"{where}: {failed.explained!s}") from failed.error
        self._check_exports(built, pieces)
        self._verify(dataset)

    def _declare(self, files: Sequence[RawFile]) -> Dataset:
        shutil.rmtree(self.folder / "raw", ignore_errors=True)
        for file in files:
            path = self.folder / "raw" / file.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
        path = self.folder / "dataset.yaml"
        path.write_text(yaml_of(self.config), encoding="utf-8")
        return load_dataset(path, store=self.folder / "store")

    def _run_command(self, dataset: Dataset, *, expects_error: bool) -> None:
        store = dataset.store.name
        command = [sys.executable, "-m", "tokflow", "run", "--store", store]
        done = subprocess.run(
            [*command, "--config", str(self.folder / "dataset.yaml")],
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
        if expects_error:
            same("exit status", expected=1, found=done.returncode)
        elif done.returncode:
            raise DifferenceError(f"tokflow run: {done.returncode}: {done.stderr[-2000:]}")

    def _check_errors(self, built: BuildResult) -> None:
        """A file with a bad document fails, at that row, and no other; no export is made."""
        found = {}
        for failed in built.failed:
            if failed.stage == "tokens":
                if not isinstance(failed.error, BadDocumentError):
                    raise DifferenceError(f"{failed.name}: {failed.error}") from failed.error
                found[failed.name] = failed.error.row
        expected = {
            key: documents.error_row
            for key, documents in self.documents.items()
            if documents.error_row is not None
        }
        same("row of the bad document of each file", expected=expected, found=found)
        made = [made for made in built.made if made.output.stage == "export"]
        same("exports of a dataset with a bad file", expected=0, found=len(made))

    def _check_stages(self, built: BuildResult) -> Pieces:
        """Compare tokens and splits of all files; return the pieces of the parts."""
        outputs = {(made.output.stage, made.output.name): made for made in built.made}
        config = self.config["tokenizer"]
        encode = partial(tokens_of, reference=self.reference, config=config)
        failed = [f for f in built.failed if f.stage != "export"]
        if failed:
            where = f"{failed[0].stage} of {failed[0].name}"
            raise DifferenceError(f"{where}: {failed[0].explained!s}") from failed[0].error
        for key, documents in self.documents.items():
            _check_tokens(outputs["tokens", key], documents, encode, self.reference)
            self.tally["documents"] += len(documents.accepted)
        split, select = self.config.get("split"), self.config.get("select")
        kept = selected(self.documents, select, encode) if select else self.documents
        assigned = None
        if form_of(split) in ("fraction", "hash_fraction"):
            assigned = _assigned_parts(outputs, self.documents)
            of_kept = {(key, row) for key, of in kept.items() for row, _ in of.accepted}
            assigned = {
                id_: part.partition(".")[0] for id_, part in assigned.items() if id_ in of_kept
            }
            check_draw(kept, split, assigned)
            self._check_stable(kept, assigned)
        pieces = pieces_of(kept, split, encode, assigned)
        if strata := self.config.get("strata"):
            pieces = divided(pieces, self.documents, strata, encode)
        if select:
            left_out = selected(self.documents, f"not ({select})", encode)
            of_none = pieces_of(left_out, None, encode, None)
            for key, some in of_none["train"].items():
                pieces[NO_PART][key] += some
        for key in self.documents:
            _check_split(outputs["split", key], pieces, key)
        return shuffled(pieces, self.config.get("shuffle", {}))

    def _check_stable(
        self, kept: Mapping[str, Documents], assigned: dict[tuple[str, int], str]
    ) -> None:
        """With hash_fraction a text stays in its part when files come and go."""
        if form_of(self.config["split"]) != "hash_fraction":
            return
        for key, documents in kept.items():
            for row, text in documents.accepted:
                part = self._part_of_text.setdefault(text, assigned[key, row])
                same(f"part of {key}, row {row}, later", expected=part, found=assigned[key, row])

    def _check_exports(self, built: BuildResult, pieces: Pieces) -> None:
        of_documents, shuffle = self.config["documents"], self.config.get("shuffle", {})
        parts = {name: of_files for name, of_files in pieces.items() if name not in NONE}
        for entry in self.config["exports"]:
            name = entry["name"]
            made = built.export(name)
            export = ExportToCheck(
                folder=made.output.folder,
                manifest=made.manifest,
                options={key: of for key, of in entry.items() if key not in ("name", "packing")},
                packings=packing_of_parts(
                    parts, self.config.get("packing", {}), entry.get("packing", {})
                ),
                shuffle_seed=shuffle.get("seed", 0) if shuffle.get("sequences") else None,
                parts=parts,
                reference=self.reference,
                config=self.config["tokenizer"],
                keep_columns=of_documents.get("keep_columns", ()),
                is_chat=is_chat(of_documents),
            )
            checked = check_export(export)
            check_kept(made.output.folder, of_documents, self.files, self.documents)
            dataset = made.output.graph.dataset
            self.tally.update(exports=1, tokens=checked.num_tokens)
            self.tally["traces"] += check_traces(checked, self.random)
            self.tally["traces"] += check_document(dataset, checked, pieces, self.random)

    def _verify(self, dataset: Dataset) -> None:
        """Neither the dataset nor the store has a problem."""
        is_store = self.random.random() < 0.5
        results = verify_path(self.folder / "store") if is_store else verify_dataset(dataset)
        problems = [problem for result in results for problem in result.problems]
        if problems:
            raise DifferenceError(f"verify: {problems[0]}")


def _check_tokens(
    made: Any, documents: Documents, encode: Callable[[str], tuple[int, ...]], reference: Reference
) -> None:
    """Compare the token shard of one file: documents, rejects, tokens and counts."""
    where, folder = f"tokens of {made.output.name}", made.output.folder
    rows = [row for row, _ in documents.accepted]
    texts = [text for _, text in documents.accepted]
    tokens = [encode(text) for text in texts]
    table = pq.read_table(folder / "documents.parquet").to_pydict()
    same(f"{where}: rows", expected=rows, found=table["row"])
    lengths = list(map(len, texts))
    sizes = list(map(len, tokens))
    flat = np.fromfile(folder / "tokens.bin", dtype=reference.dtype).tolist()
    for row, text, ids, start in zip(rows, texts, tokens, table["token_offset"], strict=True):
        found = flat[start : start + len(ids)]
        same(f"{where}: row {row}: {text!r}", expected=list(ids), found=found)
    same(f"{where}: tokens", expected=[t for ids in tokens for t in ids], found=flat)
    same(f"{where}: num_chars", expected=lengths, found=table["num_chars"])
    same(f"{where}: char_offset", expected=_before(lengths), found=table["char_offset"])
    same(f"{where}: num_tokens", expected=sizes, found=table["num_tokens"])
    same(f"{where}: token_offset", expected=_before(sizes), found=table["token_offset"])
    hashes = [xxhash.xxh3_128_digest(text.encode()) for text in texts]
    same(f"{where}: text_hash", expected=hashes, found=table["text_hash"])
    rejects = folder / "rejects.jsonl"
    lines = rejects.read_text().splitlines() if rejects.is_file() else []
    rejected = [json.loads(line)["row"] for line in lines]
    same(f"{where}: rejects", expected=list(documents.rejected), found=rejected)
    if documents.records:
        same(f"{where}: records", expected=list(documents.records), found=table["record"])
    has_transform = "num_records" in made.manifest.counts
    of_records = ("num_records", "num_left_out") if has_transform else ()
    expected = {
        **{name: getattr(documents, name) for name in of_records},
        "num_documents": len(rows),
        "num_rejects": len(documents.rejected),
        "num_empty_documents": texts.count(""),
        "num_chars": sum(lengths),
        "num_bytes": sum(len(text.encode()) for text in texts),
        "num_tokens": sum(sizes),
        "num_special_tokens_in_text": sum(  # of which none is part of another
            text.count(name) for text in texts for name in reference.special_tokens
        ),
    }
    counts = made.manifest.counts
    same(f"{where}: counts", expected=expected, found={name: counts[name] for name in expected})


def _before(sizes: list[int]) -> list[int]:
    return [sum(sizes[:number]) for number in range(len(sizes))]


def _assigned_parts(
    outputs: Mapping[tuple[str, str], Any], documents: Mapping[str, Documents]
) -> dict[tuple[str, int], str]:
    """Return the part of each document as the splits have them, by raw file and row."""
    assigned = {
        (key, row): NO_PART for key, found in documents.items() for row, _ in found.accepted
    }
    for key, found in documents.items():
        path = outputs["split", key].output.folder / "spans.parquet"
        for span in pq.read_table(path).to_pylist():
            for number in range(span["document"], span["document"] + span["num_documents"]):
                before = assigned[key, found.accepted[number][0]]
                same(f"{key}: part of document {number}", expected=NO_PART, found=before)
                assigned[key, found.accepted[number][0]] = span["part"]
    return assigned


def _check_split(made: Any, pieces: Pieces, key: str) -> None:
    """Compare what the split of a file counts in each part."""
    expected: dict[str, int] = {}
    for part, of_files in pieces.items():
        some = of_files[key]
        expected[f"{part}.num_documents"] = sum(not piece.is_cut for piece in some)
        expected[f"{part}.num_cut_pieces"] = sum(piece.is_cut for piece in some)
        expected[f"{part}.num_chars"] = sum(len(piece.text) for piece in some)
        sizes = [len(piece.tokens) for piece in some]
        expected[f"{part}.num_tokens"] = sum(sizes)
        expected[f"{part}.num_tokens_of_longest"] = max(sizes, default=0)
    counts = dict(made.manifest.counts)
    has_mask = any(name.endswith(".num_loss_tokens") for name in counts)
    for part, of_files in pieces.items() if has_mask else ():
        expected[f"{part}.num_loss_tokens"] = sum(sum(piece.mask) for piece in of_files[key])
    found = {name: of for name, of in counts.items() if name in expected or not has_mask}
    same(f"split of {key}: counts", expected=expected, found=found)


def yaml_of(config: dict[str, Any]) -> str:
    """Return a config as the YAML that is built."""
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def hurry() -> None:
    """Let a build not wait for the disk, and Arrow for other threads; leave parts of texts to the
    reference though there is little text.

    What is built here need not outlive the machine, and is too small to be divided.
    """
    code_points.WHOLE_BYTES = 1_000
    os.fsync = lambda descriptor: None
    pa.set_cpu_count(1)
