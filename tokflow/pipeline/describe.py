"""Descriptions of what was built: the numbers of each stage, their order, and their notation.

The run's log, its closing tables, `--json`, Dagster's metadata, the report and the viewer show
these numbers, all of them. A new number is a line in the function of its stage, and a line in
`KINDS` if its name in plain words is not enough.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

from tokflow.exports.stage import EXPORT
from tokflow.formatting import ratio, size, speed
from tokflow.pipeline.mixture import mixture_rows_of
from tokflow.pipeline.results import BuildResult
from tokflow.selection.left_out import rule_rows
from tokflow.selection.stage import SELECTION
from tokflow.sequences.stage import SEQUENCES
from tokflow.split.mixed_split import BUDGET_CUTS
from tokflow.split.rule import LONGEST
from tokflow.split.stage import SPLIT
from tokflow.store.manifest import Manifest
from tokflow.strata.stage import STRATA, strata_rows
from tokflow.tokenizers.chat.renderer import ROLES
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokens.stage import TOKENS

Values: TypeAlias = dict[str, Any]
"""Numbers by their names, and words such as an engine, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Notation of one number, wherever it is shown."""

    phrase: str = ""
    """Its place in a sentence: `{}` is the number, and `{s}` an s unless that is 1. Without one
    the number stands in tables alone."""
    label: str = ""
    """Heading of its column; by default its name without prefix and underscores."""
    is_in_log: bool = False
    """True if the log's line of an output without parts has it."""
    is_optional: bool = False
    """True if 0 has no phrase, and a column of zeros is not shown."""
    is_loss: bool = False
    """True if it counts what is not in the output."""


KINDS: dict[str, Kind] = {
    "vocab_size": Kind("{} id{s}", is_in_log=True),
    "vocab_size_asked": Kind("{} asked for", is_in_log=True),
    "num_documents": Kind("{} document{s}", is_in_log=True),
    "num_empty_documents": Kind("{} empty document{s}", is_optional=True),
    "num_cut_pieces": Kind(label="spans of cut documents", is_optional=True),
    "num_chars": Kind("{} character{s}", "characters"),
    "num_bytes": Kind("{}", "bytes"),
    "num_tokens": Kind("{} token{s}", is_in_log=True),
    "num_exported_tokens": Kind("{} token{s}"),
    "num_loss_tokens": Kind("{} supervised token{s}", "supervised tokens", is_in_log=True),
    "supervised_fraction": Kind("{} supervised", "supervised", is_optional=True),
    "num_turns": Kind("{} turn{s}", "turns", is_in_log=True),
    "num_turns_without_stop": Kind(label="turns without a stop token", is_optional=True),
    "num_dropped_reasoning": Kind(label="reasoning not written", is_optional=True),
    "num_unwritten": Kind(label="messages not written", is_optional=True, is_loss=True),
    "num_with_tools": Kind(label="chats with tools", is_optional=True),
    "num_boundary_tokens": Kind(label="boundary tokens", is_optional=True),
    "num_system_tokens": Kind(label="tokens of the system", is_optional=True),
    "num_user_tokens": Kind(label="tokens of the user", is_optional=True),
    "num_assistant_tokens": Kind(label="tokens of the assistant", is_optional=True),
    "num_tool_tokens": Kind(label="tokens of tools", is_optional=True),
    "tokens_fraction": Kind(label="share"),
    "bytes_per_token": Kind("{} bytes per token"),
    "chars_per_token": Kind(label="characters per token"),
    LONGEST: Kind(label="tokens of the longest"),
    "megabytes_per_second": Kind("{} MB/s", "MB/s", is_in_log=True, is_optional=True),
    "engine": Kind("{}", is_in_log=True),
    "num_rejects": Kind("{} reject{s}", is_in_log=True, is_optional=True, is_loss=True),
    "kept_fraction": Kind("{} kept", "kept", is_in_log=True),
    "num_unselected": Kind("{} not selected", is_in_log=True, is_loss=True),
    "num_in_no_stratum": Kind("{} in no stratum", is_in_log=True, is_optional=True),
    "num_left_out_alone": Kind(label="by it alone"),
    "num_without_value": Kind(label="without a value"),
    "num_left_out": Kind("{} record{s} left out", is_in_log=True, is_optional=True, is_loss=True),
    "num_sequences": Kind("{} sequence{s}"),
    "fill_fraction": Kind("{} full", "fill", is_optional=True),
    "num_padding": Kind("{} token{s} of padding", is_optional=True),
    "num_cut_documents": Kind("{} document{s} cut", is_optional=True),
    "num_truncated_documents": Kind("{} document{s} truncated", is_optional=True),
    "num_dropped_documents": Kind("{} document{s} dropped", is_optional=True),
    "num_dropped_tokens": Kind("{} token{s} dropped", is_optional=True, is_loss=True),
    "num_cut_turns": Kind("{} turn{s} cut", is_optional=True),
    "num_dropped_turns": Kind("{} turn{s} dropped", is_optional=True, is_loss=True),
    "num_unsupervised_sequences": Kind(
        "{} sequence{s} without a supervised token", "unsupervised sequences", is_optional=True
    ),
    "num_dropped_sequences": Kind(
        "{} sequence{s} without a supervised token dropped", is_optional=True, is_loss=True
    ),
    "num_repeated_tokens": Kind("{} token{s} repeated", is_optional=True),
    "num_tail_tokens": Kind("{} leftover token{s} packed at export", is_optional=True),
    BUDGET_CUTS: Kind(label="documents cut by the budget", is_optional=True),
    "is_new": Kind(label="made by this run"),
}
"""Name of a number to its notation."""


CHAT_NUMBERS = (
    *("num_turns", "num_loss_tokens", "supervised_fraction"),
    *("num_turns_without_stop", "num_dropped_reasoning", "num_unwritten", "num_with_tools"),
    *("num_boundary_tokens", *(f"num_{role}_tokens" for role in ROLES)),
)
"""The numbers of chats, in the order in which they are shown."""


def kind_of(name: str) -> Kind:
    """Return the notation of a number; of one without its own it is its name in plain words."""
    return KINDS.get(name) or Kind(f"{{}} {label(name)}" * name.startswith("num_"), is_in_log=True)


def label(name: str) -> str:
    """Return the heading of a number: `num_cut_documents` is `cut documents`."""
    short = name.removeprefix("num_").removesuffix("_fraction").replace("_", " ")
    return KINDS[name].label or short if name in KINDS else short


def formatted(name: str, value: Any) -> str:
    """Return a value as people read it: `595,409`, `3.75`, `98.2 %`, `12.3 MB`."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return size(value) if name == "num_bytes" else f"{value:,}"
        case float() if name == "fill_fraction":
            return f"{round(10_000 * value) // 10 / 10:g} %"  # of 0.9999 not 100
        case float() if name == "megabytes_per_second":
            return speed(value).removesuffix(" MB/s")
        case float():
            return f"{100 * value:.2f} %" if name.endswith("_fraction") else f"{value:,.2f}"
        case Mapping():
            return ", ".join(f"{of} {formatted(of, each)}" for of, each in value.items())
    return str(value)


def phrases(values: Values, which: Callable[[str, Kind], bool]) -> list[str]:
    """Return some numbers as they stand in a sentence, such as `3 documents cut`."""
    found = []
    for name, value in values.items():
        kind, text = kind_of(name), formatted(name, value)
        if kind.phrase and which(name, kind) and text and (value or not kind.is_optional):
            found.append(kind.phrase.format(text, s="" if value == 1 else "s"))
    return found


def phrase_of_part(values: Values) -> str:
    """Return the numbers of a part in words, `72 tokens in 9 sequences (98.4 % full, 31 tokens of
    padding)`; of a stream `72 tokens`. The percentage is rounded down: with padding it is below
    100."""
    heads = ("num_tokens", "num_exported_tokens", "num_sequences")
    counts = " in ".join(phrases(values, lambda name, _: name in heads))
    rest = ", ".join(phrases(values, lambda _, kind: kind.is_optional))
    return f"{counts} ({rest})" if rest else counts


def formatted_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return rows as a table, the heading of each column and the cells of each row, without columns
    of optional numbers that are all 0."""
    names = shown_columns(rows)
    return [*map(label, names)], [[formatted(of, row.get(of)) for of in names] for row in rows]


def shown_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the columns that `formatted_rows` shows."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [of for of in names if not kind_of(of).is_optional or any(row.get(of) for row in rows)]


@dataclass(frozen=True, slots=True)
class Description:
    """The numbers of one output, or of several of one stage together."""

    whole: Values
    parts: Mapping[str, Values] = field(default_factory=dict)
    """The numbers of each part; empty where the output has none."""

    @property
    def rows(self) -> list[Values]:
        """A row for each part."""
        return [{"part": part, **values} for part, values in self.parts.items()]

    def __str__(self) -> str:
        """Return a line of a log: `4 documents, 29 tokens`, or of parts `train 72 tokens`."""
        parts = [f"{part} {phrase_of_part(values)}" for part, values in self.parts.items()]
        return ", ".join(parts or phrases(self.whole, lambda _, kind: kind.is_in_log))


Describe: TypeAlias = Callable[[Manifest, Mapping[str, Any]], Description]
"""From the manifest of an output, and facts of the run that made it, to its description."""


def _tokenizer(manifest: Manifest, run: Mapping[str, Any]) -> Description:
    size, asked = manifest.counts["vocab_size"], manifest.recipe.config.get("vocab_size")
    of_asked = {} if asked in (None, size) else {"vocab_size_asked": asked}
    return Description({"vocab_size": size, **of_asked})


def _tokens(manifest: Manifest, run: Mapping[str, Any]) -> Description:
    counts = manifest.counts
    of_chats = {**counts, **_supervised(counts)}
    first = ("num_documents", "num_empty_documents", "num_chars", "num_bytes", "num_tokens")
    return Description(
        {
            **{name: counts[name] for name in first},
            "bytes_per_token": ratio(counts["num_bytes"], counts["num_tokens"]),
            **{name: of_chats[name] for name in CHAT_NUMBERS if name in of_chats},
            **{name: run[name] for name in ("megabytes_per_second", "engine") if name in run},
            "num_rejects": counts["num_rejects"],
            "num_left_out": counts.get("num_left_out", 0),
        }
    )


def _selection(manifest: Manifest, run: Mapping[str, Any]) -> Description:
    counts = manifest.counts
    num_tokens = counts["num_tokens"]
    return Description(
        {
            **{name: counts[name] for name in ("num_documents", "num_chars", "num_tokens")},
            "kept_fraction": ratio(num_tokens, num_tokens + counts["num_tokens_unselected"]),
            "num_unselected": counts["num_unselected"],
        }
    )


def _split(manifest: Manifest, run: Mapping[str, Any]) -> Description:
    of_parts = _counts_of_parts(manifest)
    num_tokens = sum(of["num_tokens"] for of in of_parts.values())

    def numbers(of: Mapping[str, int]) -> Values:
        return {
            "num_documents": of["num_documents"] + of["num_cut_pieces"],
            "num_cut_pieces": of["num_cut_pieces"],
            "num_chars": of["num_chars"],
            "num_tokens": of["num_tokens"],
            "tokens_fraction": ratio(of["num_tokens"], num_tokens),
            "chars_per_token": ratio(of["num_chars"], of["num_tokens"]),
            LONGEST: of.get(LONGEST, 0),
        }

    whole = numbers(total_counts(of_parts.values()))
    whole.pop("tokens_fraction")
    return Description(whole, {part: numbers(of) for part, of in of_parts.items()})


def _sequences(
    manifest: Manifest, run: Mapping[str, Any], tokens: str = "num_tokens"
) -> Description:
    of_parts = _counts_of_parts(manifest)
    whole = _packed(total_counts(of_parts.values()))
    return Description(whole, {part: _packed(of, tokens) for part, of in of_parts.items()})


def _export(manifest: Manifest, run: Mapping[str, Any]) -> Description:
    found = _sequences(manifest, run, "num_exported_tokens")
    return replace(found, whole={**found.whole, "num_bytes": manifest.num_bytes})


def _packed(counts: Mapping[str, int], tokens: str = "num_tokens") -> Values:
    """Return the tokens and, of sequences, how full these are and what packing did."""
    num_tokens = counts["num_tokens"]
    found: Values = {tokens: num_tokens}
    if "num_sequences" in counts:
        fill = full(num_tokens, num_tokens + counts["num_padding"])
        found |= {"num_sequences": counts["num_sequences"], "fill_fraction": fill}
    optional = (name for name, kind in KINDS.items() if kind.is_optional and name in counts)
    return found | _supervised(counts) | {name: counts[name] for name in optional}


def _supervised(counts: Mapping[str, int]) -> Values:
    """Return the supervised tokens and their share, of what has a loss mask."""
    if (num := counts.get("num_loss_tokens")) is None:
        return {}
    return {"num_loss_tokens": num, "supervised_fraction": full(num, counts["num_tokens"])}


def _counts_of_parts(manifest: Manifest) -> dict[str, Counter[str]]:
    """Return the counts of each part, without its name before them."""
    found = {part: Counter[str]() for part in manifest.details["parts"]}
    for name, num in manifest.counts.items():
        part, _, own = name.rpartition(".")
        if part in found:
            found[part][own] = num
    return found


def _counts(manifest: Manifest, run: Mapping[str, Any]) -> Description:
    return Description({name: num for name, num in manifest.counts.items() if "." not in name})


DESCRIBE: dict[str, Describe] = {
    TOKENIZER.name: _tokenizer,
    TOKENS.name: _tokens,
    SELECTION.name: _selection,
    SPLIT.name: _split,
    SEQUENCES.name: _sequences,
    EXPORT.name: _export,
}
"""Stage to the description of its outputs; of another stage it is the counts."""


def describe(manifest: Manifest, run: Mapping[str, Any] | None = None) -> Description:
    """Return the description of an output. `run`: facts of the run that made it, if its speed is to
    be shown."""
    return DESCRIBE.get(manifest.recipe.stage, _counts)(manifest, run or {})


def describe_all(manifests: Iterable[Manifest]) -> Description | None:
    """Return the description of all outputs of one stage together; None of none. Manifests are
    read one by one, since those of 100,000 files fill gigabytes."""
    manifests = iter(manifests)
    if (first := next(manifests, None)) is None:
        return None
    counts = total_counts(of.counts for of in chain([first], manifests))
    return describe(replace(first, counts=counts))


def total_counts(of_outputs: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the sums of counts; of the longest document the largest."""
    total = Counter[str]()
    for counts in of_outputs:
        longest = {of: max(total[of], num) for of, num in counts.items() if of.endswith(LONGEST)}
        total.update(counts)
        dict.update(total, longest)
    return total


def statistics_of(built: BuildResult) -> dict[str, Any]:
    """Return the descriptions of all outputs of a build, as plain JSON.

    text: sums over the token shards, {} where there is none; select, with a selection: a row for
    each rule; strata, with some: a row for each; parts: a row for each part over all splits;
    mixture, of one that is built whole: a row for each source and part; exports: by name a row for
    each part. A build of some files tells of these alone.
    """
    text = describe_all(made.manifest for made in built.of(TOKENS.name))
    split = describe_all(made.manifest for made in built.of(SPLIT.name))
    exports = {of.output.name: describe(of.manifest).rows for of in built.of(EXPORT.name)}
    selections = [made.manifest for made in built.of(SELECTION.name)]
    strata = [made.manifest for made in built.of(STRATA.name)]
    mixed = mixture_rows_of(built)
    return {
        "text": text.whole if text else {},
        **({"select": rule_rows(selections)} if selections else {}),
        **({"strata": strata_rows(strata)} if strata else {}),
        "parts": split.rows if split else [],
        **({"mixture": mixed} if mixed else {}),
        "exports": exports,
    }


def full(num_tokens: int, num_slots: int) -> float:
    """Return a fraction to four digits, rounded down: 1 is without padding; 0 of nothing."""
    return num_tokens * 10_000 // num_slots / 10_000 if num_slots else 0.0
