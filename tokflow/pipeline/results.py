"""Results of a build: outputs that were made, outputs that failed, the reporter of both; notices,
things that a person must know about outputs, from the counts of their manifests; and the check that
a training on chats has something to learn.

`tokflow run`, `tokflow plan`, Dagster and the report show the notices.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.documents.batch import ParsedBatch
from tokflow.errors import ConfigError, TokflowError, explained, first_five, shortened
from tokflow.exports.reading import is_export
from tokflow.formatting import counted
from tokflow.pipeline.output import Output
from tokflow.raw import LeftOut, RawPartition
from tokflow.split.stage import SPLIT
from tokflow.stage import RAW, Graph
from tokflow.store.manifest import Manifest
from tokflow.store.store import InStore, StoredOutput
from tokflow.tokenizers.chat import BadChatError, read_chat
from tokflow.tokens.shard import is_shard
from tokflow.tokens.shard_files import REASONS

SHORT_ROW = 8
"""Tokens of a row; fewer on average are a notice."""


REASONS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that a person must know of what was built."""

    name: str
    """Its key in `NOTICES`."""
    text: str
    """One line."""
    is_loss: bool
    """True if something of the raw files is not in the outputs."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts that notices are made from: those of all token shards together, and of each
    export. Manifests are added one by one, since those of 100,000 files fill gigabytes."""

    tokens: Counter[str] = field(default_factory=Counter)
    """Sums over the token shards; 0 for a count that none of them has."""
    reject_reasons: Counter[str] = field(default_factory=Counter)
    """Rejects by reason."""
    exports: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Counts of each export, by its name."""

    def add(self, manifest: Manifest, name: str) -> Self:
        """Add the counts of an output, which is called `name`; those of a split, of sequences and
        of the tokenizer say nothing here."""
        if is_shard(manifest):
            is_asked = manifest.recipe.config.get("special_tokens_in_text") == "control"
            as_asked = {"num_special_tokens_in_text": 0} if is_asked else {}
            all_tokens = {"num_loss_tokens": manifest.counts["num_tokens"]}
            is_masked = "num_loss_tokens" in manifest.counts
            of_chats = {"num_tokens_of_chats": manifest.counts["num_tokens"] * is_masked}
            self.tokens.update({**all_tokens, **manifest.counts, **as_asked, **of_chats})
            self.reject_reasons.update(manifest.details.get(REASONS, {}))
        elif is_export(manifest):
            self.exports[name] = manifest.counts
        return self

    def notices(self) -> list[Notice]:
        """Return the notices that there is a reason for, in the order of `NOTICES`."""
        said = []
        for name, (needed, line) in NOTICES.items():
            if num := sum(self.tokens[of] for of in needed):
                s = "" if num == 1 else "s"
                text = line(self) if callable(line) else line.format(f"{num:,}", s=s)
                said.append(Notice(name, text, name in LOSSES))
        short = []
        for name, counts in self.exports.items():
            num_rows = sum(num for key, num in counts.items() if key.endswith(".num_sequences"))
            num_tokens = sum(num for key, num in counts.items() if key.endswith(".num_tokens"))
            if num_rows and num_tokens < SHORT_ROW * num_rows:
                short.append(f"{num_tokens * 10 // num_rows / 10} tokens on average in {name}")
        if short:
            said.append(Notice("short_rows", f"short rows: {', '.join(short)}", is_loss=False))
        return said


def _supervised(of: Totals) -> str:
    num, whole = of.tokens["num_loss_tokens"], of.tokens["num_tokens"]
    return f"supervised: {num:,} of {counted(whole, 'token')} ({num * 1000 // whole / 10} %)"


def _no_stop(of: Totals) -> str:
    num, whole = of.tokens["num_turns_without_stop"], of.tokens["num_turns"]
    line = f"no stop token: after {num:,} of {counted(whole, 'turn')} of the assistant; name those "
    return f"{line}that end one in documents.stop_tokens"


def _other_blocks(of: Totals) -> str:
    found = [f"{text} ({num:,})" for name, text in BLOCKS.items() if (num := of.tokens[name])]
    return (
        "the template's {% generation %} blocks are what is supervised, and differ from what the "
        f"model has to emit, in the first chats: {', '.join(found)}"
    )


def _rejects(of: Totals) -> str:
    num, reasons = of.tokens["num_rejects"], of.reject_reasons.most_common()
    said = [f"{num_of:,} {_reason(reason)}" for reason, num_of in reasons]
    named = ", ".join(shortened(said, REASONS_SHOWN))
    lists = "`tokflow rejects` with the same NAME or --config lists them"
    return f"rejected: {counted(num, 'document')}: {named}; {lists}"


def _reason(reason: str) -> str:
    """Return `null in place of a string in 'text'` of `a string in 'text', found null`."""
    expected, _, found = reason.partition(", found ")
    found = found.replace("the number …", "number").removeprefix("…")
    found = "other keys" if found.startswith("the keys ") else found
    return f"{found or 'something else'} in place of {expected}" if expected != reason else reason


BLOCKS = {
    "num_blocks_with_more": "they have more, such as a role header or what follows a stop token",
    "num_blocks_with_less": "they leave out some of it, such as a stop token",
}
"""Counts of chats whose generation blocks differ, with the difference."""

Line: TypeAlias = str | Callable[[Totals], str]
"""The line of a notice, in which `{}` is the number and `{s}` an s unless that is 1."""

NOTICES: Mapping[str, tuple[Sequence[str], Line]] = {
    "supervised_tokens": (["num_tokens_of_chats"], _supervised),
    "documents_without_loss": (
        ["num_documents_without_loss"],
        "nothing to learn: {} document{s} without a supervised token",
    ),
    "stop_tokens": (["num_turns_without_stop"], _no_stop),
    "other_blocks": ([*BLOCKS], _other_blocks),
    "unwritten": (
        ["num_unwritten"],
        "left out: words of {} message{s} that the chat template does not write",
    ),
    "dropped_reasoning": (
        ["num_dropped_reasoning"],
        "not written by the chat template: reasoning of {} message{s}",
    ),
    "boundary_tokens": (
        ["num_boundary_tokens"],
        "boundary tokens: {} token{s}, not supervised, from a prompt into what is supervised; let "
        "the prompt end where a token ends, without a space",
    ),
    "special_tokens_in_text": (
        ["num_special_tokens_in_text"],
        "encoded as plain text: {} special token{s} that the documents contain; "
        "tokenizer.special_tokens_in_text: control makes control tokens of them",
    ),
    "unknown_tokens": (
        ["num_unknown_tokens"],
        "lost: {} unknown token{s}, each in the place of text that the vocabulary has no token for",
    ),
    "lost_text": (
        ["num_lost_bytes"],
        "lost: {} byte{s} of text that the vocabulary has no token for, without a trace in the "
        "tokens",
    ),
    "rejects": (["num_rejects"], _rejects),
    "lost_values": (
        ["num_lost_values"],
        "null: {} value{s} of documents.keep_columns (bytes that are no UTF-8, lone surrogates, "
        "NaN, infinity)",
    ),
    "uncut_files": (
        ["num_uncut_files"],
        "one document each: {} file{s} without documents.separator",
    ),
}
"""Name to the counts of token shards of which some must not be 0, and the line; the most important
first."""

LOSSES = {"unwritten", "unknown_tokens", "lost_text", "rejects", "lost_values"}
"""The notices of what is not in the outputs."""


@dataclass(frozen=True, slots=True)
class StageResult(InStore):
    """One output, and whether this call made it."""

    output: Output
    stored: StoredOutput
    is_new: bool
    run: dict[str, Any]
    """Seconds, engine and speed of the run that made it, whenever that was."""


@dataclass(frozen=True, slots=True)
class StageFailure:
    """One output that could not be made."""

    stage: str
    name: str
    error: Exception
    packing: str = ""
    """Packing of sequences, as in `Output`."""
    is_left_out: bool = False
    """True of a bad raw file, without which everything else is made."""

    @property
    def is_raw(self) -> bool:
        """True if a raw file could not be read, or fetched."""
        return self.stage == RAW

    @property
    def explained(self) -> TokflowError:
        """The error as it is shown to the user."""
        return explained(self.error, where=f"{self.stage} {self.name}")

    def as_document(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"stage": self.stage, "name": self.name, "error": self.explained.fields()}


@dataclass(frozen=True, slots=True)
class StageBegun:
    """The beginning of a stage, or more that it turns out to have to make."""

    stage: str
    num_outputs: int
    num_bytes: int
    """Raw bytes of the files that it has to do."""
    is_more: bool = False
    """True if these outputs come on top of those of the event before."""


Event: TypeAlias = StageBegun | StageResult | StageFailure
"""What a build yields."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Everything that `build_dataset` made, and what it could not make."""

    partitions: dict[str, RawPartition]
    """Partitions of which nothing failed, by key."""
    made: tuple[StageResult, ...]
    """Every output that is there now, in the order of the stages."""
    failed: tuple[StageFailure, ...]
    """Empty if all is well."""
    left_out: tuple[LeftOut, ...]
    """Files that the patterns of the raw files match and that were not read."""
    bad_files: tuple[StageFailure, ...]
    """Those of them that this build has found to be bad."""
    seconds: float
    stage_seconds: Mapping[str, float]
    """Seconds from the beginning of each stage to that of the next, by name; of a mixture those of
    its sources, too."""
    peak_bytes: int | None
    """Most memory that this process and its workers here took together; None if unknown."""
    dropped_bytes: int = 0
    """Bytes that are free since tokens were dropped at its end."""

    @property
    def num_files(self) -> int:
        """Raw files of the partitions."""
        return sum(len(raw.files) for raw in self.partitions.values())

    @property
    def num_new(self) -> int:
        """Outputs that were not there before."""
        return sum(made.is_new for made in self.made)

    @property
    def notices(self) -> list[Notice]:
        """Notices about the outputs that are there now, and about a mixture's sources."""
        totals = Totals()
        for made in self.made:
            totals.add(made.manifest, made.output.name)
        graphs = self.made[0].output.graph.of_sources.values() if self.made else ()
        for output in (of for graph in graphs for of in graph.outputs(until=SPLIT.name)):
            totals.add(output.manifest(), output.name)
        return totals.notices()

    def of(self, stage: str) -> list[StageResult]:
        """Return the outputs of one stage."""
        return [made for made in self.made if made.output.step.name == stage]

    def export(self, name: str) -> StageResult:
        """Return one export.

        Raises: the error that kept it from being made.
        """
        for made in self.of("export"):
            if made.output.name == name:
                return made
        for failed in self.failed:
            raise failed.error
        raise KeyError(name)


class Reporter:
    """A reader of a build's events, each kind by a method; a progress display overrides those that
    it shows."""

    def hear(self, event: Event) -> None:
        """Hear of an event."""
        if isinstance(event, StageBegun):
            self.begun(event)
        elif isinstance(event, StageResult):
            self.made(event)
        else:
            self.failed(event)

    def recorded(self, num_files: int, of_files: int) -> None:
        """Raw files were entered in Dagster's history, before anything is made of them."""

    def begun(self, begun: StageBegun) -> None:
        """A stage begins, or has more to make."""

    def advance(self, num_documents: int, num_bytes: int) -> None:
        """Documents with `num_bytes` of text were tokenized."""

    def made(self, made: StageResult) -> None:
        """An output is there."""

    def failed(self, failed: StageFailure) -> None:
        """An output could not be made."""


def check_supervised(graph: Graph, shards: Sequence[Mapping[str, int]]) -> None:
    """Check that some token of a dataset of chats is supervised; `shards`: counts of the tokens.

    Raises: ConfigError.
    """
    documents = graph.dataset.of(DocumentsConfig)
    num_tokens = sum(of["num_tokens"] for of in shards)
    is_supervised = any(of.get("num_loss_tokens", 1) for of in shards)
    if is_supervised or not num_tokens or documents.on_no_loss == "accept":
        return
    found = f"none of {counted(num_tokens, 'token')}"
    remedy = "put what is to be learnt into the completion"
    if documents.is_rendered:
        roles: dict[str, None] = {}

        def read(parsed: ParsedBatch) -> ParsedBatch:
            for text in parsed.batch.texts.to_pylist():
                with suppress(BadChatError):
                    messages = read_chat(text.encode(), documents).messages
                    roles.update(dict.fromkeys(repr(of["role"]) for of in messages))
            return parsed

        with suppress(TokflowError, OSError):
            paths = graph.raw(next(iter(graph.partitions))).paths
            next(DocumentSource(paths, documents).batches(render=read), None)
        found += f", in messages of the roles {first_five([*roles])}"
        remedy = "give what is to be learnt to messages of the role 'assistant' that have words and"
        remedy += " no `train: false` or `weight: 0`"
    field = next(of for of in ("messages", "completion", "chat_format") if getattr(documents, of))
    raise ConfigError(
        where=f"{graph.dataset.name}: documents.{field}",
        expected="tokens that are supervised",
        found=found,
        remedy=f"{remedy}, or set documents.on_no_loss: accept",
    )
