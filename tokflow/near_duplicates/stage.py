"""Section `near_duplicates` of a dataset's YAML, and its stages: keys by which alike texts meet, of
each token shard, and the pairs of all of them that are proven."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from tokflow.errors import ConfigError
from tokflow.stage import (
    Cost,
    DatasetConfig,
    Input,
    Making,
    Stage,
    TablesWriter,
    WholeWriter,
    Writer,
)
from tokflow.store.config import Config, Count
from tokflow.store.manifest import Manifest, Recipe, checksums, joined_digest, write_manifest
from tokflow.store.tables import TableWriter
from tokflow.tokens.shard import TokenShard

COPIES = ("duplicate", "near_duplicate")
"""What `select` leaves out by `not NAME`, a term of the outermost `and`: which document goes for
the sake of another is decided among those that all other terms keep."""

MAX_SLOTS = 512
"""Numbers of a signature; more would only take time."""


class NearDuplicatesConfig(Config):
    """Texts that are nearly the same; `select: not near_duplicate` keeps one of them."""

    section: ClassVar[str] = "near_duplicates"

    threshold: Annotated[float, Field(ge=0.1, le=1)] | None = None
    """Jaccard similarity from which two texts are near-duplicates: n-grams of tokens that both
    have over those that either has; default: none are looked for.

    0.7 is about one word in sixteen changed. Each pair is proven by its n-grams; a pair is looked
    at if all `rows` of one of the `bands` agree, which happens with probability
    1 - (1 - s**rows)**bands at similarity s: 0.99 at 0.7 with the defaults.
    """
    ngram: Count = 5
    """Tokens of an n-gram; a shorter text has copies only."""
    bands: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 25
    """Bands of a signature: more find more pairs, and take time and 8 bytes a document each."""
    rows: Annotated[int, Field(ge=1, le=100)] = 5
    """Numbers of a signature in each band: more find fewer pairs that are not alike."""

    def check(self) -> None:
        """Refuse signatures that would only take time."""
        if self.num_slots > MAX_SLOTS:
            raise ConfigError(
                where="bands",
                expected=f"at most {MAX_SLOTS} numbers in a signature, bands times rows",
                found=f"{self.num_slots:,}",
                remedy="lower bands or rows",
            )

    @property
    def num_slots(self) -> int:
        """Numbers of a signature."""
        return self.bands * self.rows

    def needed(self) -> float:
        """Return the threshold. Raises: ConfigError where there is none."""
        if self.threshold is None:
            raise ConfigError(
                where="",
                expected="near_duplicates.threshold, which says what near_duplicate is",
                found="none",
                remedy="add `near_duplicates: {threshold: 0.7}` to the dataset",
            )
        return self.threshold


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
        from tokflow.near_duplicates.pairs import proven_pairs

        config = making.of(NearDuplicatesConfig)
        inputs = (making.opened_all(of, "") for of in ("tokens", SIGNATURES.name))
        how = config.bands, config.ngram, config.needed(), making.opened("tokenizer")
        return TablesWriter.of(making, proven_pairs, *inputs, *how)

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
    with TableWriter(folder / ngrams.KEYS_NAME, schema) as table:
        for some in ngrams.batches(texts.lengths):
            lengths = texts.lengths[some]
            tokens = texts.read(np.arange(some.start, some.stop))
            hashes, num = ngrams.ngrams_within(tokens, lengths, config.ngram)
            signatures = ngrams.signatures(hashes, num, config.num_slots)
            keys = ngrams.band_keys(signatures, config.bands)
            columns = [
                pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(8), len(key), [None, pa.py_buffer(key.astype("<u8", copy=False))]
                )
                for key in keys
            ]
            table.add(pa.table(columns, schema=schema))
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
