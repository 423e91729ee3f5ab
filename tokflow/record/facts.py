"""Facts of an export: its manifest, those of all that it was made from, and `card:`."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tokflow.audit.ancestry import Ancestry, lineage
from tokflow.errors import CorruptOutputError, ForeignOutputError, MissingOutputError
from tokflow.exports import Export
from tokflow.pipeline.describe import KINDS, label, total_counts
from tokflow.pipeline.fields import CardConfig, SourceCard
from tokflow.pipeline.output import Output
from tokflow.selection.left_out import rule_rows
from tokflow.split.stage import SPLIT
from tokflow.store.manifest import Manifest
from tokflow.store.store import StoredOutput
from tokflow.tokens.shard import is_shard


def lineage_in_graph(export: Output) -> list[StoredOutput]:
    """Return the lineage of an export whose graph is built, without a look at manifests that it has
    read."""
    graph, found = export.graph, [export.open()]
    wanted = {(of.stage, of.variant) for of in export.direct_inputs()}
    sources = (of.outputs(until=SPLIT.name) for _, of in sorted(graph.of_sources.items()))
    tokenizer: list[StoredOutput] = []
    for outputs in (graph.outputs(), *sources):
        for output in reversed([*outputs]):
            if (output.stage, output.variant) in wanted:
                stored = output.open()
                wanted |= {(name, "") for name in stored.manifest.recipe.parents}
                if not output.step.decides_all:
                    found.append(stored)
                elif not tokenizer:  # that of all sources
                    tokenizer = [stored]
    return found + tokenizer


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


def facts_of(outputs: Sequence[StoredOutput], cards: Mapping[str, CardConfig]) -> ExportFacts:
    """Return the facts of an export, the first of its lineage, or alone where the store lacks what
    it was made from; `cards`: those of its dataset and, of a mixture, of its sources, by name."""
    export, own = outputs[0], outputs[0].manifest.dataset
    by_stage: dict[str, list[Manifest]] = {}
    for of in outputs:
        manifest = of.manifest
        of_source = "" if manifest.dataset == own else f" of {manifest.dataset}"
        by_stage.setdefault(f"{manifest.recipe.stage}{of_source}", []).append(manifest)
    for manifests in by_stage.values():
        manifests.sort(key=lambda of: of.partition or "")
    selections = [of for of in by_stage.values() if "rules" in of[0].details]
    return ExportFacts(
        export=Export(export),
        card=cards.get(own, CardConfig()),
        sources=[*_sources([of.manifest for of in outputs if is_shard(of.manifest)], cards)],
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


def known_facts(
    export: StoredOutput, cards: Mapping[str, CardConfig], ancestry: Ancestry
) -> ExportFacts:
    """Return the facts of an export, without those of its ancestors where the store lacks some."""
    outputs = [export]
    with suppress(MissingOutputError, CorruptOutputError, ForeignOutputError):
        outputs = lineage(export, ancestry)
    return facts_of(outputs, cards)


def _sources(tokens: Sequence[Manifest], cards: Mapping[str, CardConfig]) -> Iterator[Source]:
    """Yield the sources of token shards, those of one dataset in the order of its card."""
    found: dict[tuple[str, str], list[Manifest]] = {}
    for shard in sorted(tokens, key=lambda of: (of.dataset, of.partition or "")):
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
    unselected = in_no_part = 0
    for stage, manifests in by_stage.items():
        counts = total_counts(of.counts for of in manifests)
        unselected += counts["num_unselected"]
        in_no_part += counts["no_part.num_documents"]
        prefixes = ["", *(f"{part}." for part in manifests[0].details.get("parts", ()))]
        for name, kind in KINDS.items():
            if kind.is_loss and (num := sum(counts[f"{of}{name}"] for of in prefixes)):
                phrase = kind.phrase.replace("{}", "").replace("{s}", "s").strip()
                yield f"{stage}: {phrase or label(name)}", num
    if in_no_part > unselected:
        yield "split: documents in no part", in_no_part - unselected


def _plain(value: Any) -> Any:
    """Return a config without the fields that are not set, the others sorted."""
    if isinstance(value, Mapping):
        return {name: _plain(of) for name, of in sorted(value.items()) if of is not None}
    return [_plain(of) for of in value] if isinstance(value, list | tuple) else value
