"""Checks that follow every build: of each output, of a sample of files, of all files together.

A check that passed is remembered in the store and not computed again while all that it looked at
is as it was: the fingerprints of the outputs, and size, times and inode of each of their files. So
what is deleted and built again is checked again, and so is a store that was copied.
"""

import hashlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.attributes.stage import ATTRIBUTES
from tokflow.audit.verify.export import verify_export
from tokflow.audit.verify.remade import (
    verify_against_raw,
    verify_mixed_split,
    verify_sequences,
    verify_split,
)
from tokflow.audit.verify.tokens import verify_tokens
from tokflow.errors import TokflowError, message_of, shortened
from tokflow.exports.stage import EXPORT, parts_of
from tokflow.pipeline.describe import total_counts
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import Output
from tokflow.selection.left_out import rule_rows
from tokflow.selection.stage import SELECTION
from tokflow.sequences.stage import SEQUENCES
from tokflow.split import Split
from tokflow.split.stage import SPLIT
from tokflow.store.engine_verdicts import try_to_write_verdict
from tokflow.store.integrity import once_more, raise_damage
from tokflow.store.remembered import CheckMemory
from tokflow.store.tables import to_numpy
from tokflow.tokens import positions_of_runs
from tokflow.tokens.shard_files import hashes_as_array
from tokflow.tokens.stage import TOKENS

SAMPLED_FILES = 4
"""Files of a run that are compared with the reference: opening it takes up to a second each."""

SAMPLED_CHARACTERS = 1_000_000
"""Characters of a file after which that comparison stops."""

SAMPLED_DOCUMENTS = 16

CHECKS_VERSION = "1"
"""Raised when a check would find something else in the same outputs."""

MUCH_LOST, LITTLE_LOST = 0.8, 0.4
"""Shares of documents that `select` leaves out of one file, and of the middle one, of which a
person should hear: the file is of another kind than the rule was made for."""

MISSING_VALUES = 0.01
"""Share of documents without a value from which a rule names the wrong column, mostly."""

MAX_SHOWN = 20
"""Problems of one check that a message lists."""

MIN_SHARED_CHARS = 32
"""Shorter texts (an empty file, a licence's one line) are equal by chance and teach nothing."""

MAX_READ_BYTES = 2_000_000_000
"""A larger export is not read again after it was written; `tokflow verify` does that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputCheck:
    """One check of the outputs of a stage."""

    find: Callable[..., list[str]]
    """From the graph and an output, or all of a run, to sentences, none if all is well.

    Its docstring is the check's description in the web UI.
    """
    covers: Literal["each", "sample", "all"] = "each"
    """Each output by itself, some of those that are new, or all of a run together."""
    is_warning: bool = False
    """True if a person should look at it; else, where it fails, a run of the assets builds nothing
    downstream, and a build of everything no export."""
    needs_tokens: bool = False
    """True if it is not computed where tokens were dropped; others then look at what is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOutcome:
    """The result of one check of outputs of a stage."""

    name: str
    check: OutputCheck
    findings: Mapping[str, Sequence[str]]
    """Findings by output: a partition key, an export's name, or "" for all together."""
    num_checked: int
    num_remembered: int
    """Outputs that were found well, or warned of, before, and were not looked at again."""
    num_not_computed: int
    """Outputs whose tokens, which the check needs, were dropped."""

    @property
    def problems(self) -> list[str]:
        """All findings."""
        return [problem for of_output in self.findings.values() for problem in of_output]

    @property
    def is_news(self) -> bool:
        """True if something was computed for it."""
        return self.num_remembered + self.num_not_computed < self.num_checked

    def not_computed(self, stage: str) -> list[str]:
        """Say, in a list, of how many outputs of a stage it was not computed; [] if of none."""
        num = self.num_not_computed
        return [f"{stage} {self.name} ({num:,} of {self.num_checked:,})"] if num else []


def _tokens_close(graph: BuildGraph, output: Output) -> list[str]:
    """Documents in = documents + rejects + left out; characters, tokens and bytes add up; every id
    is below vocab_size; BOS and EOS are where they belong."""
    return verify_tokens(graph.open_tokens(output.name))


def _tokens_equal_reference(graph: BuildGraph, output: Output) -> list[str]:
    """A sample of documents, read again from the raw file, has the tokens of the reference
    tokenizer and, where that loses nothing, decodes to its text."""
    return verify_against_raw(
        graph.raw(output.name),
        graph.open_tokens(output.name),
        graph.documents(output.name),
        graph.encoding,
        num_samples=SAMPLED_DOCUMENTS,
        max_characters=SAMPLED_CHARACTERS,
        on_difference=partial(try_to_write_verdict, graph.tokenizer),
    )


def _split_closes(graph: BuildGraph, output: Output) -> list[str]:
    """Every character of every document is in one part or in none; of a mixture, every part has
    the documents and tokens that it takes of its source."""
    split = graph.open_split(output.name)
    if not graph.of_sources:
        return verify_split(split, given=output.given)
    graph_of_source, of_source = graph.at(output.name)
    return verify_mixed_split(split, graph_of_source.open_split(of_source), graph.tokenizer)


def _split_shares_no_text(graph: BuildGraph, *outputs: Output) -> list[str]:
    """No text of 32 characters or more is in two parts of the files of this run."""
    return find_shared_texts([graph.open_split(of.name) for of in outputs])


def find_shared_texts(splits: Sequence[Split]) -> list[str]:
    """Return one sentence for each pair of parts that have a text in common.

    All files are looked at together. Only documents of at least MIN_SHARED_CHARS characters
    that are whole in their part are compared, by text_hash; memory takes 16 bytes for each.
    """
    hashes: dict[str, npt.NDArray[np.void]] = {}
    problems = []
    for part in splits[0].parts if splits else ():
        of_files = [_whole_documents(split, part)[0] for split in splits]
        hashes[part] = np.unique(np.concatenate(of_files))
        for other in [*hashes][:-1]:
            shared = np.intersect1d(hashes[other], hashes[part], assume_unique=True)
            if len(shared):
                number = next(n for n, of in enumerate(of_files) if np.isin(of, shared).any())
                own, rows = _whole_documents(splits[number], part)
                first = f"{splits[number].manifest.partition}:{rows[np.isin(own, shared)][0]}"
                found = f"found {len(shared):,}, such as {first}"
                problems.append(f"{other} and {part}: expected no text in both, {found}")
    return problems


def _whole_documents(split: Split, part: str) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
    """Return the hashes of one file's long whole documents in a part, and their rows."""
    table, rows = split.shard.documents(["row", "num_chars", "text_hash"]), split.rows(part)
    runs = (rows[name][~rows["is_cut"]] for name in ("document", "num_documents"))
    documents = np.sort(positions_of_runs(*runs))
    documents = documents[to_numpy(table["num_chars"])[documents] >= MIN_SHARED_CHARS]
    return hashes_as_array(table["text_hash"])[documents], to_numpy(table["row"])[documents]


def _attributes_fit(graph: BuildGraph, *outputs: Output) -> list[str]:
    """Some document of this run has a row in the tables, or a value of the function."""
    problems = []
    for name in dict.fromkeys(of.variant for of in outputs):
        counts = total_counts(of.counts for of in outputs if of.variant == name)
        if counts["num_documents"] and counts["num_without"] == counts["num_documents"]:
            problems.append(f"attributes.{name}: no document has a value; correct its `key`")
    return problems


def _selection_is_even(graph: BuildGraph, *outputs: Output) -> list[str]:
    """No raw file, or group, loses more than 80 % of its documents to `select` where the middle one
    of the rest loses less than 40 %, and no rule finds more than 1 % of documents without a
    value."""
    found = {of.name: of.open().manifest for of in outputs}
    counts = {key: of.counts for key, of in found.items()}
    sizes = {key: of["num_documents"] + of["num_unselected"] for key, of in counts.items()}
    lost = {key: counts[key]["num_unselected"] / num for key, num in sizes.items() if num}
    usual = [share for share in lost.values() if share <= MUCH_LOST]
    middle = float(np.median(usual)) if usual else 1.0
    uneven = [
        f"{key}: select leaves out {share:.0%} of the documents, of other files {middle:.0%}"
        for key, share in lost.items()
        if share > MUCH_LOST and middle < LITTLE_LOST
    ]
    num_documents = sum(sizes.values())
    return uneven + [
        f"{row['rule']}: {num:,} of {num_documents:,} documents have no value"
        for row in rule_rows([*found.values()])
        if (num := row["num_without_value"]) > MISSING_VALUES * num_documents
    ]


def _sequences_close(graph: BuildGraph, output: Output) -> list[str]:
    """Every token of every part is in exactly one sequence, is a leftover token of the file, or is
    counted as dropped or repeated."""
    return verify_sequences(graph.open(output))


def _export_is_complete(graph: BuildGraph, output: Output) -> list[str]:
    """The files can be read, and hold the tokens of the split but for those that the config drops
    by name; where these were dropped, the files have the checksums of the manifest."""
    made = output.open()

    def verified() -> list[str]:
        parts = parts_of(output)
        inputs = parts[0].packed.inputs_within()
        reads_files = made.manifest.num_bytes <= MAX_READ_BYTES
        is_alone = any(of.manifest.dropped for of in inputs)
        if is_alone and reads_files:
            raise_damage(made)
        problems = verify_export(made, None if is_alone else parts, reads_files=reads_files)
        if problems:
            raise_damage(made, *inputs)
            made.store.note_damage(made.folder)  # so that the next run makes it again
        return problems

    return once_more(verified)


def _export_has_all_files(graph: BuildGraph, output: Output) -> list[str]:
    """No raw file is left out since it cannot be read, as `raw.on_bad_file: skip` allows."""
    bad = output.manifest().details.get("bad_files", {})
    return [f"{key} is left out: {reason}" for key, reason in bad.items()]


CHECKS: Mapping[str, Mapping[str, OutputCheck]] = {
    TOKENS.name: {
        "accounting_closes": OutputCheck(find=_tokens_close),
        "equal_to_reference": OutputCheck(
            find=_tokens_equal_reference, covers="sample", needs_tokens=True
        ),
    },
    ATTRIBUTES.name: {"fit": OutputCheck(find=_attributes_fit, covers="all")},
    SELECTION.name: {
        "is_even": OutputCheck(find=_selection_is_even, covers="all", is_warning=True),
    },
    SPLIT.name: {
        "accounting_closes": OutputCheck(find=_split_closes),
        "no_shared_text": OutputCheck(find=_split_shares_no_text, covers="all", is_warning=True),
    },
    SEQUENCES.name: {"accounting_closes": OutputCheck(find=_sequences_close)},
    EXPORT.name: {
        "complete": OutputCheck(find=_export_is_complete),
        "has_all_files": OutputCheck(find=_export_has_all_files, is_warning=True),
    },
}
"""Stage to checks by name."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Outputs that a check looks at together: one, or all of a run."""

    outputs: tuple[Output, ...]
    place: str
    """Key in the memory: the output's folder below the dataset's, or the number of outputs."""
    lacks_tokens: bool
    """True if tokens were dropped that it was made from."""
    digest: str | None
    """Digest of all that a check looks at; None where some of it is missing, as the check finds."""

    @property
    def name(self) -> str:
        """The output; "" of several."""
        return self.outputs[0].name if len(self.outputs) == 1 else ""


def recheck(graph: BuildGraph, keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Compute all checks of the outputs of some files, and of exports that are there; return what
    those find that are no warnings, each a text that begins with the stage, and which were not
    computed."""
    checker, found, not_computed = Checker(graph, recheck=True), list[str](), list[str]()
    is_built = not graph.unbuilt(graph.partitions)
    for stage in (of.name for of in graph.stages):
        outputs = graph.outputs_of(stage, keys)
        made = [of for of in outputs if (is_built or not of.is_of_all_files) and of.is_made]
        for outcome in checker.outcomes(stage, made) if made else ():
            not_computed += outcome.not_computed(stage)
            for name, problems in outcome.findings.items() if not outcome.check.is_warning else ():
                told = "\n".join(shortened(problems, MAX_SHOWN))
                found.append(f"{graph.dataset.name}/{stage}{name and f' {name}'}: {told}")
    return found, not_computed


class Checker:
    """Checks of the outputs of a dataset, each computed unless it is known what it finds.

    How files look is asked once, so one checker is for one moment.
    """

    def __init__(self, graph: BuildGraph, *, recheck: bool = False) -> None:
        """`recheck`: compute everything, whatever is remembered."""
        self.graph = graph
        self._recheck = recheck
        self._memory = CheckMemory(graph.folder)
        self._looks: dict[Output, str] = {}
        """Fingerprints of outputs, and how their files look on disk."""

    def outcomes(
        self, stage: str, outputs: Sequence[Output], *, only: Container[str] | None = None
    ) -> Iterator[CheckOutcome]:
        """Yield the outcome of each check of a stage, or of those called `only`, in `outputs`."""
        for name, check in CHECKS.get(stage, {}).items():
            if only is None or name in only:
                yield self._outcome(stage, name, check, outputs)

    def _outcome(
        self, stage: str, name: str, check: OutputCheck, outputs: Sequence[Output]
    ) -> CheckOutcome:
        """Return what a check finds now, or found before in the same."""
        together = [tuple(outputs)] if check.covers == "all" else [(each,) for each in outputs]
        groups = [self._group(stage, some) for some in together]
        groups = [of for of in groups if not (of.lacks_tokens and check.needs_tokens)]
        found = {of: self._memory.find(name, of.place, of.digest) for of in groups}
        due = [  # of errors only that there were none is believed
            of
            for of, told in found.items()
            if self._recheck or told is None or (told and not check.is_warning)
        ]
        looked_at = due
        if check.covers == "sample":  # some of the files, evenly spread, and those found wrong
            failed = [of for of in due if self._memory.has_failed(name, of.place)]
            step = max(1, -(-len(due) // SAMPLED_FILES))
            looked_at = [*dict.fromkeys([*due[::step], *failed])]
        now = {of: self._compute(name, check, of) for of in looked_at}
        findings = found | {of: now.get(of) for of in due}
        if check.covers == "sample" and not any(now.values()):
            for of in due:  # files outside the sample count as well, too
                self._memory.keep(name, of.place, of.digest, [])
        num_computed, num_due = (sum(len(of.outputs) for of in some) for some in (groups, due))
        return CheckOutcome(
            name=name,
            check=check,
            findings={of.name: told for of, told in findings.items() if told},
            num_checked=len(outputs),
            num_remembered=num_computed - num_due,
            num_not_computed=len(outputs) - num_computed,
        )

    def _group(self, stage: str, outputs: tuple[Output, ...]) -> _Group:
        place, digest, lacks_tokens = f"{stage} of {len(outputs):,}", None, False
        with suppress(TokflowError, OSError):
            if len(outputs) == 1:
                place = outputs[0].folder.relative_to(self.graph.folder).as_posix()
            looked_at = [of for output in outputs for of in self._looked_at(output)]
            lacks_tokens = any(of.manifest().dropped for of in looked_at)
            for of in looked_at:
                if of not in self._looks:
                    marks = of.graph.store.marks(of.folder, of.manifest())
                    self._looks[of] = f"{of.fingerprint} {marks}"
            looks = [self._looks[of] for of in looked_at]
            digest = hashlib.sha256("\n".join([CHECKS_VERSION, *looks]).encode()).hexdigest()[:32]
        return _Group(outputs, place, lacks_tokens, digest)

    def _looked_at(self, output: Output) -> Iterator[Output]:
        """Yield all outputs that the checks of one look at: itself, and what it is made from, up to
        the tokens."""
        yield output
        stages = {of.stage for of in output.direct_inputs() if output.graph.is_of_file(of.stage)}
        for stage in sorted(stages):
            inputs = output.inputs(stage).values() if output.is_of_all_files else ()
            for each in inputs or [output.input(stage)]:
                yield from self._looked_at(each)

    def _compute(self, name: str, check: OutputCheck, of: _Group) -> list[str]:
        try:
            findings = check.find(self.graph, *of.outputs)
        except (TokflowError, OSError, pa.ArrowException) as error:  # too damaged to be read
            findings = [message_of(error, where=name)]
        if findings or check.covers != "sample":
            self._memory.keep(name, of.place, of.digest, findings)
        return findings
