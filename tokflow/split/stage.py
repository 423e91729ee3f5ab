"""The stage that gives each document, or span of one, to a part."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.raw import RawPartition
from tokflow.split import CUT_TOKENS_NAME, CutEncoder, Split, split_recipe, write_split
from tokflow.split.mixed_split import (
    MixtureShare,
    mixed_split_recipe,
    shard_in_mixture,
    share_of,
    write_mixed_split,
)
from tokflow.split.mixture import MixtureConfig
from tokflow.split.permutation import ShuffleConfig
from tokflow.split.rule import NO_PART, FilePosition, FileSpans, SplitConfig
from tokflow.stage import (
    Cost,
    DatasetConfig,
    Input,
    Making,
    Opened,
    Stage,
    WholeWriter,
    Writer,
    stages_giving,
)
from tokflow.store.config import Config
from tokflow.store.manifest import Recipe
from tokflow.store.store import StoredOutput
from tokflow.store.tables import to_texts
from tokflow.tokenizers.tokenizer import Encoding
from tokflow.tokens.encoder import DocumentEncoder, engine_for
from tokflow.tokens.loss_mask import add_bos_eos
from tokflow.tokens.stage import BATCH_BYTES

ABOUT = "Which text belongs to {}. It is a table of spans; no token is copied."


class SplitStage(Stage):
    """The split of each token shard: spans of its documents by part."""

    name = "split"
    config: ClassVar[type[Config]] = SplitConfig
    cost = Cost(0.005)

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the tokens, and selections of their documents, those of all partitions where
        parts count through the dataset; and their strata."""
        strata = [Input(stage=of.name) for of in stages_giving(dataset, "strata")]
        stages = ["tokens", *(of.name for of in stages_giving(dataset, "selection"))]
        if dataset.of(SplitConfig).scope == "file":
            return [*(Input(stage=of) for of in stages), *strata]
        why, remedy = ", through which scope: dataset counts", "set split.scope: file"
        remedy = f"fix what is wrong with them, or {remedy}"
        of_all = [Input(stage=of, reach="all", why_all=why, remedy=remedy) for of in stages]
        return [*of_all, *strata]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a split: the tokens, the rule, and where the file stands."""
        config, seed = making.of(SplitConfig), making.of(ShuffleConfig).of_documents

        def own() -> Recipe:
            first = making.graph.partitions[making.key][0]  # of one part where parts take files
            of_file, position = config.of_file(first.key, first.source_split), FilePosition()
            if config.scope == "dataset":
                position = making.graph.shared(SPLIT, partial(_positions, making))[making.key]
            return split_recipe(of_file, position, first.key, shuffle_seed=seed)

        is_by_key = config.takes_whole_files or (config.form == "fraction" and config.is_drawn)
        is_alike = config.scope == "file" and seed is None and not is_by_key
        found = making.graph.shared((self, "recipe"), own) if is_alike else own()
        giving = stages_giving(making.graph.dataset, "selection", "strata")
        stages = ["tokens", *(of.name for of in giving if not of.keeps_all(making))]
        return found.with_parents({name: making.input(name).fingerprint for name in stages})

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the split of any partition."""
        config = dataset.of(SplitConfig)
        of_any = {field.name: int(config.scope == "dataset") for field in fields(FilePosition)}
        seed = dataset.of(ShuffleConfig).of_documents
        return split_recipe(config, FilePosition(**of_any), "", shuffle_seed=seed)

    def writer(self, making: Making) -> Writer:
        """Return what makes a split; spans of cut documents are tokenized again."""
        return WholeWriter(
            partial(
                write_split,
                making.opened("tokens"),
                encode_cut=cut_encoder(making),
                selections=making.given("selection"),
                strata=making.given("strata"),
                dataset=making.graph.dataset.name,
                recipe=making.recipe,
            )
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> Split:
        """Return the split over its token shard."""
        return Split(stored, inputs.opened("tokens"))

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        *rest, last = dataset.parts
        return ABOUT.format(f"{', '.join(rest)} or {last}" if rest else last)


SPLIT = SplitStage()


def _positions(making: Making) -> dict[str, FilePosition]:
    """Return where each partition stands, by the selected documents of those before it.

    Raises: MissingOutputError.
    """
    stages = [of.name for of in stages_giving(making.graph.dataset, "selection")] or ["tokens"]
    counts = {key: of.counts for key, of in making.inputs(stages[0]).items()}
    is_drawn = making.of(SplitConfig).form == "fraction"
    total = sum(of["num_documents"] for of in counts.values()) if is_drawn else 0
    positions = {}
    first_char = first_document = 0
    for key, of_file in counts.items():
        positions[key] = FilePosition(
            first_char=first_char, first_document=first_document, total_documents=total
        )
        first_char += of_file["num_chars"]
        first_document += of_file["num_documents"]
    return positions


def cut_encoder(making: Making) -> CutEncoder:
    """Return the encoder of what the split of one partition cuts."""
    documents = making.of(DocumentsConfig)
    return partial(
        write_cut_tokens,
        raw=making.graph.raw(making.key),
        documents=documents,
        encoding=making.graph.encoding,
    )


def write_cut_tokens(
    spans: FileSpans,
    folder: Path,
    *,
    raw: RawPartition,
    documents: DocumentsConfig,
    encoding: Encoding,
) -> npt.NDArray[np.int64]:
    """Write the tokens of the cut spans that parts take, end to end, and count those of all.

    Returns the tokens of each span, shape (num_spans,): 0 for one that is not cut. Each span has
    the tokens of the reference on its text alone. One that no part takes is encoded to be counted.
    Memory is that of the longest document that is cut, as a string too, and of a batch.

    Raises: RawFileError, TokenizerError; EngineDiffersError where gigatoken turns out to be wrong
    on a span; CorruptOutputError where a file of the tokenizer is damaged.
    """
    num_tokens = np.zeros(len(spans.part), dtype=np.int64)
    engine = engine_for(encoding, documents)
    with (folder / CUT_TOKENS_NAME).open("wb") as file:
        for name, ordinals, texts in _texts_of_cut_spans(spans, raw, documents, encoding):
            tokens = add_bos_eos(engine.encode(texts), encoding, name=_called(name))
            num_tokens[ordinals] = tokens.num_tokens
            is_taken = np.repeat(spans.part[ordinals] != NO_PART, tokens.num_tokens)
            tokens.token_ids[is_taken].tofile(file)
    raw.check_unchanged()
    return num_tokens


def _called(name: str) -> Callable[[int], str]:
    return lambda _: name


def _texts_of_cut_spans(
    spans: FileSpans, raw: RawPartition, documents: DocumentsConfig, encoding: Encoding
) -> Iterator[tuple[str, npt.NDArray[np.int64], pa.LargeStringArray]]:
    """Yield ordinals of cut spans and their texts, in order: those of one document, which errors
    call by the name before them, that begin in the same BATCH_BYTES of its characters. No document
    is read behind the last that is cut."""
    cut = np.flatnonzero(spans.is_cut)
    document_of = spans.document[cut]
    first = 0
    source = DocumentSource(raw.paths, documents)
    # Which documents of a group's later files there are depends on the limit of those before.
    encode = DocumentEncoder(source, documents, encoding).for_limit if raw.is_group else None
    for batch in source.batches(encode=encode):
        is_in_batch = (first <= document_of) & (document_of < first + len(batch.rows))
        for document in np.unique(document_of[is_in_batch]).tolist():
            ordinals = cut[document_of == document]
            index = document - first
            name = "{}: a span of document {:,}".format(*source.place(batch, index))
            text = batch.texts[index].as_py()
            batch_of = spans.char_start[ordinals] // BATCH_BYTES
            for some in np.split(ordinals, np.flatnonzero(np.diff(batch_of)) + 1):
                of_spans = zip(spans.char_start[some], spans.num_chars[some], strict=True)
                yield name, some, to_texts([text[start : start + size] for start, size in of_spans])
        first += len(batch.rows)
        if first > document_of[-1]:
            return


class MixedSplitStage(SplitStage):
    """The splits of a mixture: spans of the splits of its sources, as its plan has them."""

    config = MixtureConfig

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the splits of all partitions of each source."""
        sources = dataset.of(MixtureConfig).datasets
        return [Input(stage=self.name, reach="all", dataset=of) for of in sources]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a split: the source's and the share of it."""
        plan = cast(Any, making.graph).mixture_plan  # of a MixtureGraph, which knows this stage
        share = cast(MixtureShare, plan.share(making.key))
        seed = making.of(ShuffleConfig).of_documents
        return mixed_split_recipe(making.input(self.name).fingerprint, share, shuffle_seed=seed)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of any split."""
        config = dataset.of(MixtureConfig)
        seed = dataset.of(ShuffleConfig).of_documents
        share = MixtureShare(key="", tokens={}, seed=config.seed)
        recipe = mixed_split_recipe("", share, shuffle_seed=seed)
        own = config.model_dump(exclude={"sources": {"__all__": {"config"}}})
        return replace(recipe, config={**recipe.config, "mixture_config": own})

    def writer(self, making: Making) -> Writer:
        """Return what takes the share of a source's split."""
        return WholeWriter(
            partial(
                write_mixed_split,
                making.opened(self.name),
                tokenizer=making.opened("tokenizer"),
                dataset=making.graph.dataset.name,
                recipe=making.recipe,
            )
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> Split:
        """Return the split over its source's."""
        shard = shard_in_mixture(inputs.opened(self.name), share_of(stored.manifest.recipe))
        return Split(stored, shard)


MIXED_SPLIT = MixedSplitStage()
