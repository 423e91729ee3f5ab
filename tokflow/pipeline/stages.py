"""The stages of a dataset, in the order in which data goes through them."""

from collections.abc import Collection

from tokflow.attributes.stage import ATTRIBUTES
from tokflow.exclusion.stage import EXCLUSION
from tokflow.exports.stage import EXPORT
from tokflow.near_duplicates.stage import NEAR_DUPLICATES, SIGNATURES
from tokflow.selection.stage import SELECTION
from tokflow.sequences.stage import SEQUENCES
from tokflow.split.stage import MIXED_SPLIT, SPLIT
from tokflow.stage import DatasetConfig, Stage
from tokflow.strata.stage import STRATA
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokens.stage import TOKENS

STAGES: tuple[Stage, ...] = (
    TOKENIZER,
    TOKENS,
    ATTRIBUTES,
    SIGNATURES,
    NEAR_DUPLICATES,
    EXCLUSION,
    SELECTION,
    STRATA,
    SPLIT,
    SEQUENCES,
    EXPORT,
)
"""Stages of a dataset that has raw files of its own; a new stage is a line here."""


def for_mixtures(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Return the stages whose outputs a mixture needs of a source, the split last."""
    return stages[: [of.name for of in stages].index(MIXED_SPLIT.name) + 1]


def token_readers(dataset: DatasetConfig) -> list[tuple[str, str]]:
    """Return stages and variants whose outputs of a partition are made of its token ids."""
    found = [(of, variant) for of in dataset.stages for variant in of.variants(dataset)]
    return [(of.name, variant) for of, variant in found if of.reads_tokens(dataset, variant)]


def needed_for(asked: Collection[tuple[str, str]], dataset: DatasetConfig) -> set[tuple[str, str]]:
    """Return the outputs asked for and all that they are made from, by stage and variant."""
    needed = set(asked)
    for step in reversed(dataset.stages):
        for variant in step.variants(dataset):
            if (step.name, variant) in needed:
                needed |= {(of.stage, of.variant) for of in step.inputs(dataset, variant)}
    return needed
