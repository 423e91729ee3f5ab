"""Facts of an export: its manifest, those of all that it was made from, and `card:`."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tokflow.audit.ancestry import Ancestry, lineage
from tokflow.errors import CorruptOutputError, ForeignOutputError, MissingOutputError
from tokflow.exports import Export
from tokflow.pipeline.card import CardConfig, SourceCard
from tokflow.pipeline.describe import describe_all, kind_of, label, total_counts
from tokflow.selection.left_out import rule_rows
from tokflow.selection.stage import SELECTION
from tokflow.store.manifest import Manifest
from tokflow.store.store import StoredOutput
from tokflow.tokens.shard import is_shard


@dataclass(frozen=True, slots=True)
class Source:
    """Raw files of one origin."""

    card: SourceCard
    raw_files: Mapping[str, str]
    """Each file, or group of files, by its key: the sha256 of its content or, where its server
    tells none, of what the server tells of it."""
    counts: Mapping[str, int]
    """Counts of their tokens."""

    @property
    def digest(self) -> str:
        """The sha256 of lines `<sha256>  <key>`, one for each raw file, sorted by keys."""
        lines = (f"{digest}  {key}\n" for key, digest in sorted(self.raw_files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFacts:
    """All that is known of an export without reading a token."""

    export: Export
    card: CardConfig
    sources: Sequence[Source] = ()
    """Empty where the store has no more what the export was made from."""
    left_out: Sequence[tuple[str, int]] = ()
    """What is not in the export, in words, and how much of it."""
    rules: Sequence[Mapping[str, Any]] = ()
    """A row for each rule of `select`."""
    recipes: Mapping[str, Any]
    """By stage; that of the first raw file, where each has one."""
    tokenizer: Manifest | None = None


def facts_of(
    export: StoredOutput, cards: Mapping[str, CardConfig], ancestry: Ancestry | None = None
) -> ExportFacts:
    """Return the facts of an export, given the cards of its dataset and, of a mixture, of its
    sources, by their names; without those of its ancestors where the store lacks some."""
    outputs = [export]
    with suppress(MissingOutputError, CorruptOutputError, ForeignOutputError):
        outputs = lineage(export, ancestry or Ancestry())
    by_stage: dict[str, list[Manifest]] = {}
    for of in outputs:
        manifest = of.manifest
        is_own = manifest.dataset == export.manifest.dataset
        name = manifest.recipe.stage if is_own else f"{manifest.recipe.stage} of {manifest.dataset}"
        by_stage.setdefault(name, []).append(manifest)
    for manifests in by_stage.values():
        manifests.sort(key=lambda of: of.partition or "")
    tokens = [of.manifest for of in outputs if is_shard(of.manifest)]
    selections = [of for of in by_stage.values() if of[0].recipe.stage == SELECTION.name]
    return ExportFacts(
        export=Export(export),
        card=cards.get(export.manifest.dataset, CardConfig()),
        sources=[*_sources(sorted(tokens, key=_place), cards)],
        left_out=[*_left_out(by_stage)],
        rules=[
            ({"dataset": of[0].dataset} if len(selections) > 1 else {}) | row
            for of in selections
            for row in rule_rows(of)
        ],
        recipes={
            name: {"version": of[0].recipe.version, **_plain(of[0].recipe.config)}
            for name, of in by_stage.items()
        },
        tokenizer=outputs[-1].manifest if len(outputs) > 1 else None,
    )


def _place(manifest: Manifest) -> tuple[str, str]:
    return manifest.dataset, manifest.partition or ""


def _sources(tokens: Sequence[Manifest], cards: Mapping[str, CardConfig]) -> Iterator[Source]:
    """Yield the sources of token shards, those of one dataset in the order of its card."""
    found: dict[tuple[str, str], list[Manifest]] = {}
    for shard in tokens:
        pattern = cards.get(shard.dataset, CardConfig()).source_of(str(shard.partition))
        found.setdefault((shard.dataset, pattern), []).append(shard)
    for (dataset, pattern), shards in found.items():
        card = cards.get(dataset, CardConfig()).card_of(pattern)
        if card.title is None:
            card = card.model_copy(update={"title": dataset})
        raw_files = {str(of.partition): of.recipe.parents["raw"] for of in shards}
        yield Source(card, raw_files, total_counts(of.counts for of in shards))


def _left_out(by_stage: Mapping[str, Sequence[Manifest]]) -> Iterator[tuple[str, int]]:
    """Yield what each stage leaves out, and what is in no part of the split."""
    unselected = 0
    for stage, manifests in by_stage.items():
        described = describe_all(manifests)
        numbers = described.whole if described else {}
        unselected += numbers.get("num_unselected", 0)
        lost = {name: num for name, num in numbers.items() if num and kind_of(name).is_loss}
        yield from ((f"{stage}: {_in_words(name)}", num) for name, num in lost.items())
    num_documents = sum(
        of.counts.get("no_part.num_documents", 0) for each in by_stage.values() for of in each
    )
    if num_documents > unselected:
        yield "split: documents in no part", num_documents - unselected


def _in_words(name: str) -> str:
    phrase = kind_of(name).phrase.replace("{}", "").replace("{s}", "s").strip()
    return phrase or label(name)


def _plain(value: Any) -> Any:
    """Return a config without the fields that are not set, the others sorted."""
    if isinstance(value, Mapping):
        return {name: _plain(of) for name, of in sorted(value.items()) if of is not None}
    return [_plain(of) for of in value] if isinstance(value, list | tuple) else value
