"""The stages of near-duplicates: keys by which alike texts meet, of each token shard, and the pairs
of all of them that are proven."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tokflow.near_duplicates.config import NearDuplicatesConfig
from tokflow.stage import Cost, DatasetConfig, Input, Making, Stage, WholeWriter, Writer
from tokflow.store.manifest import Manifest, Recipe, checksums, joined_digest, write_manifest
from tokflow.store.tables import TableWriter
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import ROWS_PER_GROUP

if TYPE_CHECKING:
    from tokflow.near_duplicates.ngrams import Hashes

SIGNATURES_VERSION = NEAR_DUPLICATES_VERSION = 1
"""Raised when the same input would give other bytes."""


class SignaturesStage(Stage):
    """The band keys of each token shard."""

    name = "signatures"
    config, needs = NearDuplicatesConfig, "threshold"
    cost = Cost(0.05, per_byte=1 / 70e6)

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the tokens."""
        return [Input(stage="tokens")]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides the keys: the tokens, and how keys are made of them."""
        config = making.of(NearDuplicatesConfig)
        return _signatures_recipe(config, tokens=making.input("tokens").fingerprint)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the keys of any shard."""
        return _signatures_recipe(dataset.of(NearDuplicatesConfig))

    def writer(self, making: Making) -> Writer:
        """Return what reads the tokens."""
        made_of = making.opened("tokens"), making.of(NearDuplicatesConfig)
        return WholeWriter(partial(write_signatures, *made_of, recipe=making.recipe))

    def reads_tokens(self, dataset: DatasetConfig, variant: str) -> bool:
        """Return True: keys are made of n-grams of tokens."""
        return True

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        return "Keys by which texts that are nearly the same are found."


class NearDuplicatesStage(Stage):
    """The pairs of texts that are alike, of the whole dataset."""

    name = "near_duplicates"
    config, needs = NearDuplicatesConfig, "threshold"
    is_of_file = False
    cost = Cost(1.0)

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return keys and tokens of all partitions."""
        return [Input(stage=of, reach="all") for of in (SIGNATURES.name, "tokens")]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides the pairs: the texts and keys of all partitions, the threshold."""
        inputs = making.inputs(SIGNATURES.name, "")
        digest = joined_digest(sorted(of.fingerprint for of in inputs.values()))
        return _pairs_recipe(making.of(NearDuplicatesConfig), all_files=digest)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides, whatever files there are."""
        return _pairs_recipe(dataset.of(NearDuplicatesConfig))

    def writer(self, making: Making) -> Writer:
        """Return what joins the keys and proves the pairs."""
        from tokflow.near_duplicates.pairs import write_pairs

        shards = making.opened_all("tokens", "")
        keys = making.opened_all(SIGNATURES.name, "")
        config = making.of(NearDuplicatesConfig)
        how = {"tokenizer": making.opened("tokenizer"), "dataset": making.graph.dataset.name}
        made_of = shards, keys, config
        return WholeWriter(partial(write_pairs, *made_of, **how, recipe=making.recipe))

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        config = dataset.of(NearDuplicatesConfig)
        return (
            f"Pairs of texts of which at least {config.threshold:.0%} of the {config.ngram}-grams "
            "of tokens are in both, each proven. `select: not near_duplicate` keeps one of them."
        )


SIGNATURES = SignaturesStage()
NEAR_DUPLICATES = NearDuplicatesStage()


def _signatures_recipe(config: NearDuplicatesConfig, **parents: str) -> Recipe:
    fields = config.model_dump(exclude={"threshold"})
    return Recipe(stage="signatures", version=SIGNATURES_VERSION, config=fields, parents=parents)


def _pairs_recipe(config: NearDuplicatesConfig, **decides: str) -> Recipe:
    fields = {**config.model_dump(), **decides}
    return Recipe(
        stage="near_duplicates", version=NEAR_DUPLICATES_VERSION, config=fields, parents={}
    )


def write_signatures(
    shard: TokenShard, config: NearDuplicatesConfig, folder: Path, *, recipe: Recipe
) -> None:
    """Write the band keys of one shard into the empty `folder`, manifest last."""
    from tokflow.near_duplicates import ngrams

    started = time.perf_counter()
    texts = ngrams.texts_of(shard)
    names = [str(number) for number in range(config.bands)]
    schema = pa.schema([pa.field(name, pa.binary(8), nullable=False) for name in names])
    num_short = 0
    with TableWriter(folder / ngrams.KEYS_NAME, schema, rows_per_group=ROWS_PER_GROUP) as table:
        for some in ngrams.batches(texts.lengths):
            lengths = texts.lengths[some]
            tokens = texts.read(np.arange(some.start, some.stop))
            hashes, num = ngrams.ngrams_within(tokens, lengths, config.ngram)
            signatures = ngrams.signatures(hashes, num, config.num_slots)
            keys = ngrams.band_keys(signatures, config.bands)
            table.add(pa.table([_as_binary(key) for key in keys], schema=schema))
            num_short += int(np.count_nonzero(num == 0))
            texts.tokens.release()
    manifest = Manifest(
        recipe=recipe,
        dataset=shard.manifest.dataset,
        partition=shard.manifest.partition,
        counts={"num_documents": len(texts.lengths), "num_without_ngrams": num_short},
        files=checksums(folder, known={ngrams.KEYS_NAME: table.entry()}),
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def _as_binary(keys: "Hashes") -> pa.FixedSizeBinaryArray:
    buffer = pa.py_buffer(keys.astype("<u8", copy=False))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(keys), [None, buffer])
