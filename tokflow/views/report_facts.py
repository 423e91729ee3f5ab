"""Facts of a report: the counts of all outputs, the tokens of a bounded number of files, excerpts
of what a model sees, and selection: rates by rule, source and file, strata, near-duplicates, and
evaluation texts that stand in documents."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.attributes.contamination import LEAST_SHARE
from tokflow.attributes.stage import ATTRIBUTES, MATCHES_NAME
from tokflow.audit.inspection import Excerpt, Segment, inspect_output
from tokflow.audit.token_texts import TokenTexts, drawn_token
from tokflow.formatting import counted, ratio
from tokflow.near_duplicates.stage import NEAR_DUPLICATES
from tokflow.pipeline.describe import Description, Values, describe, describe_all
from tokflow.pipeline.mixture import mixture_rows
from tokflow.pipeline.plan import Plan
from tokflow.pipeline.status import FileStatus, file_statuses
from tokflow.selection.left_out import rule_rows
from tokflow.selection.stage import SELECTION
from tokflow.sequences.stage import SEQUENCES
from tokflow.split.stage import SPLIT
from tokflow.stage import Stage
from tokflow.store import integrity, stored_outputs, tables
from tokflow.store.manifest import Manifest
from tokflow.store.store import StoredOutput
from tokflow.strata.stage import STRATA, strata_rows
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.stage import TOKENS

FILE_BYTES = 2**23
"""Bytes of a sample for which one file is read: 64 files of a store on this disk."""

MAX_EXCERPTS = 4

FILES_LOOKED_AT = 16
"""Files in which a sequence of each part is looked for."""

SEGMENTS_SHOWN, TOKENS_SHOWN = 6, 60
"""Segments of an excerpt, and tokens of each, at most."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSample:
    """The token shards that are read, of all that there are."""

    shards: tuple[TokenShard, ...]
    num_all: int

    @property
    def files(self) -> str:
        """`4 files`, or `64 of 1,000 files`."""
        return files_of(len(self.shards), self.num_all)

    @property
    def num_tokens(self) -> int:
        """Tokens of the shards that have theirs, read or not."""
        return sum(of.num_tokens for of in self.shards if not of.manifest.dropped)

    def beginnings(self, most: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the first tokens of each shard, `most` of them together: an equal share of each,
        or all of it where it has fewer.

        Raises: CorruptOutputError where one is none of its vocabulary, since its file is damaged.
        """
        for shard, share in self.shares("num_tokens", most):
            if shard.manifest.dropped:
                continue
            vocab_size = shard.manifest.details["vocab_size"]
            with integrity.report_damage_on_error(shard):
                token_ids = shard.tokens(is_lazy=share < shard.num_tokens).read(0, share)
                if share and (largest := int(token_ids.max())) >= vocab_size:
                    raise ValueError(f"token id {largest:,} in a vocabulary of {vocab_size:,}")
            yield token_ids

    def shares(self, count: str, most: int) -> Iterator[tuple[TokenShard, int]]:
        """Yield each shard and its share of `most`, in what its manifest counts: an equal one, or
        all of it where it has less."""
        sizes = [(of.manifest.counts[count], str(of.manifest.partition), of) for of in self.shards]
        sizes.sort(key=lambda each: each[:2])
        for number, (size, _, shard) in enumerate(sizes):
            share = min(size, most // (len(sizes) - number))
            most -= share
            yield shard, share

    def read_of(self, most: int) -> str:
        """Return in words what `beginnings` reads."""
        if self.num_tokens <= most:
            return f"all {self.num_tokens:,} tokens of {self.files}"
        return f"{most:,} tokens, the first of each of {self.files}"


@dataclass(frozen=True)  # without slots, since it keeps what it read
class StoreFacts:
    """Outputs in the store of a dataset, for a plan of it."""

    plan: Plan

    @cached_property
    def statuses(self) -> Sequence[FileStatus]:
        """The status of each file."""
        return file_statuses(self.plan)

    def folders(self, step: Stage) -> list[Path]:
        """Return the folders of the outputs of a stage that a build would leave as they are: those
        before the split of a mixture's sources, what comes after them of the dataset itself,
        sequences by its own packing."""
        is_own = step.name in [of.name for of in self.plan.graph.dataset.stages]
        planned = self.plan.own if is_own else self.plan.planned
        made = (of for of in planned if of.is_made and of.output.step.name == step.name)
        return [of.folder for of in made if of.folder and not (step is SEQUENCES and of.packing)]

    @cached_property
    def text(self) -> Description | None:
        """The numbers of all token shards together; None where there is none."""
        return self._described(TOKENS)

    @cached_property
    def split(self) -> Description | None:
        """The numbers of all splits together; None where there is none."""
        return self._described(SPLIT)

    def _described(self, step: Stage) -> Description | None:
        store = self.plan.graph.dataset.store
        return describe_all(store.read(of).manifest for of in self.folders(step))

    @cached_property
    def exports(self) -> Mapping[str, tuple[StoredOutput, str]]:
        """The current output of each export or else its newest, by name and in the order of the
        config, with the reason why a build would make another."""
        store, found = self.plan.graph.dataset.store, dict[str, tuple[StoredOutput, str]]()
        for of in self.plan.own:
            if of.output.step.has_latest:
                kept = store.read(of.folder) if of.is_made and of.folder else None
                if newest := kept or stored_outputs.newest_output(store, of.output.place):
                    found[of.name] = newest, "" if kept else of.reason
        return found

    @cached_property
    def export_rows(self) -> list[Values]:
        """A row for each export and part: its numbers and, in the first of one that is stale, the
        reason."""
        return [
            {
                "export": name,
                "state": "stale" if reason else "built",
                "reason": reason if number == 0 else "",
                "format": made.manifest.details["format"],
                **row,
            }
            for name, (made, reason) in self.exports.items()
            for number, row in enumerate(describe(made.manifest).rows)
        ]

    @property
    def source_rows(self) -> list[Values]:
        """A row for each source and part of a mixture, as an export has it that is not stale or,
        before there is one, as it is planned; none of other datasets."""
        current = [made.manifest for made, reason in self.exports.values() if not reason]
        made = [of.details["mixture"] for of in current if "mixture" in of.details]
        return mixture_rows(made[0] if made else self.plan.of_mixture)

    def manifests(self, step: Stage) -> list[Manifest]:
        """Return the manifests of `folders`."""
        return [self.plan.graph.dataset.store.read(of).manifest for of in self.folders(step)]

    @cached_property
    def shards(self) -> ShardSample:
        """The token shards that are read."""
        folders = self.folders(TOKENS)
        opened = tuple(map(TokenShard, self.sampled(folders)))
        return ShardSample(shards=opened, num_all=len(folders))

    def sampled(self, folders: Sequence[Path]) -> list[StoredOutput]:
        """Return some of the outputs in folders, spread evenly, whether they were fetched before or
        not: the same store gives the same report."""
        store = self.plan.graph.dataset.store
        return [store.read(of) for of in spread(folders, store.sample_bytes // FILE_BYTES)]


def files_of(num: int, num_all: int) -> str:
    """Return `4 files`, or `64 of 1,000 files`."""
    return counted(num, "file") if num == num_all else f"{num:,} of {num_all:,} files"


def spread(all_of: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items at equal distances, beginning with the first."""
    if len(all_of) <= most:
        return list(all_of)
    return [all_of[number * len(all_of) // most] for number in range(most)]


def find_excerpts(facts: StoreFacts, texts: TokenTexts) -> list[Excerpt]:
    """Return the first sequence of each part as `tokflow inspect` finds it in one of the files, or
    its first tokens where no file that is looked at fills a sequence.

    Raises: CorruptOutputError.
    """
    trusted, dataset = texts.tokenizer.trust_remote_code, facts.plan.graph.dataset
    found: dict[str, Excerpt] = {}
    for step, count in ((SEQUENCES, "num_sequences"), (SPLIT, "num_tokens")):
        for folder in spread(facts.folders(step), FILES_LOOKED_AT):
            made = dataset.store.read(folder)
            parts, counts = made.manifest.details["parts"], made.manifest.counts
            lacking = [of for of in parts if of not in found and counts[f"{of}.{count}"]]
            if lacking:
                inspected = inspect_output(made, num_sequences=1, trust_remote_code=trusted)
                of_parts = {of.name.rpartition(": ")[0]: of for of in inspected.excerpts}
                found |= {part: of for part, of in of_parts.items() if part in lacking}
    for part, excerpt in found.items():
        if dataset.packing.of_part(part).padding_side == "left":  # which an export puts there
            padding_first = sorted(excerpt.segments, key=lambda of: not of.is_padding)
            found[part] = replace(excerpt, segments=tuple(padding_first))
    return [*found.values()][:MAX_EXCERPTS]


def shown_tokens(segment: Segment, texts: TokenTexts) -> Iterator[tuple[str, bool, bool]]:
    """Yield the first tokens of a segment: the text of each, whether it is a special token, and
    whether it is a loss token."""
    spans = [(of.is_supervised, of.token_ids) for of in segment.spans]
    is_loss = [of for of, ids in spans or [(True, segment.token_ids)] for _ in ids]
    at = 0
    for ids, text in texts.pieces(segment.token_ids[:TOKENS_SHOWN]):
        yield drawn_token(text), ids[0] in texts.special_ids, is_loss[at]
        at += len(ids)


CONTAMINATED = 2 * LEAST_SHARE
"""Share of an evaluation text from which a document counts as one that has it."""

OF_TEXT = ["evaluation_file", "evaluation_row"]

MAX_TEXTS = 20
"""Evaluation texts that are shown, those of most documents."""


def selection_values(facts: StoreFacts) -> dict[str, Any]:
    """Return what the template shows of the documents that there are."""
    selections = facts.manifests(SELECTION)
    selected = [{"file": str(of.partition), **describe(of).whole} for of in selections]
    return {
        "rules": [*_rules(selections)],
        "sources": _sources(selections),
        "selected": sorted(selected, key=lambda row: (row["kept_fraction"], row["file"])),
        "strata": strata_rows(facts.manifests(STRATA)),
        "alike": near_duplicates(facts).get("samples", []),
        "leaks": _leaks(facts),
    }


def _rules(selections: list[Manifest]) -> Iterator[Values]:
    """Yield a row for each rule, of each source of a mixture."""
    for _, of_source in groupby(selections, key=lambda of: of.dataset):
        each = [*of_source]
        num = sum(of.counts["num_documents"] + of.counts["num_unselected"] for of in each)
        for row in rule_rows(each):
            yield {**row, "kept_fraction": ratio(num - row["num_left_out"], num)}


def _sources(selections: list[Manifest]) -> list[Values]:
    """Return a row for each source of a mixture; of another dataset none."""
    sources = [(name, [*of]) for name, of in groupby(selections, key=lambda of: of.dataset)]
    rows = [(name, describe_all(of)) for name, of in sources if len(sources) > 1]
    return [{"source": name, **of.whole} for name, of in rows if of]


def near_duplicates(facts: StoreFacts) -> Mapping[str, Any]:
    """Return similarities and samples of the pairs of alike texts; nothing where there are none."""
    return next((of.details for of in facts.manifests(NEAR_DUPLICATES)), {})


def _leaks(facts: StoreFacts) -> dict[str, Any]:
    """Return a row for each file of evaluation texts, and one for each text that most documents
    have; nothing where there are none to look for."""
    outputs = (facts.plan.graph.dataset.store.read(of) for of in facts.folders(ATTRIBUTES))
    every = {of.folder: of.manifest for of in outputs if MATCHES_NAME in of.manifest.files}
    if not every:
        return {}
    some = facts.sampled([*every])
    names = ["share", *OF_TEXT, "ngram"]
    table = pa.concat_tables(tables.read_table(of.file(MATCHES_NAME), names) for of in some)
    table = table.filter(pc.greater_equal(table["share"], CONTAMINATED))
    found = table.group_by(OF_TEXT, use_threads=False).aggregate(
        [([], "count_all"), ("ngram", "first")]
    )
    texts = found.rename_columns([*OF_TEXT, "num_documents", "ngram"]).to_pylist()
    texts.sort(key=lambda of: (-of["num_documents"], of["evaluation_file"], of["evaluation_row"]))
    files: dict[str, Values] = {}
    for manifest in every.values():
        files |= manifest.details["evaluation_files"]
    for file, row in files.items():
        of_file = [of["num_documents"] for of in texts if of["evaluation_file"] == file]
        files[file] = {**row, "num_texts_found": len(of_file), "num_matches": sum(of_file)}
    return {
        "files": [{"evaluation_file": file, **row} for file, row in sorted(files.items())],
        "texts": texts[:MAX_TEXTS],
        "read": files_of(len(some), len(every)),
    }
