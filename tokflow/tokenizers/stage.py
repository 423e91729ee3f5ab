"""The stage that saves a dataset's tokenizer in the store."""

from collections.abc import Mapping, Sequence
from functools import partial

from tokflow.documents import DocumentsConfig, deciding_fields
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, WholeWriter, Writer
from tokflow.store.manifest import Recipe
from tokflow.store.store import StoredOutput
from tokflow.tokenizers.sources import (
    TokenizerSource,
    select_training_keys,
    tokenizer_recipe,
    write_tokenizer,
)
from tokflow.tokenizers.tokenizer import Encoding, Tokenizer, TokenizerConfig, resolve_encoding
from tokflow.tokenizers.tokenizer import tokenizer_of as open_tokenizer

KINDS = {"tiktoken": "openai", "huggingface": "huggingface"}
"""Dagster's names for where a tokenizer comes from."""

ABOUT = """\
The tokenizer ({}) that makes the tokens. It is saved in the store, so that later runs use exactly \
its bytes."""


class TokenizerStage(Stage):
    """The tokenizer: one folder of a dataset, made from a hub, a file, or the raw files."""

    name = "tokenizer"
    is_of_file = False
    decides_all = True
    cost = Cost(1.0, 1 / 2e6)

    def variants(self, dataset: DatasetConfig) -> Mapping[str, TokenizerConfig]:
        """Return the config of the tokenizer."""
        return {"": dataset.of(TokenizerConfig)}

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the raw files that a tokenizer is trained on, if it is."""
        is_trained = dataset.of(TokenizerConfig).kind == "trained"
        return [Input(stage="raw", reach="all")] if is_trained else []

    def recipe(self, making: Making) -> Recipe:
        """Return what decides the tokenizer; raw files to train on are read for it."""
        return tokenizer_source(making).recipe

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides, whatever files there are."""
        documents = deciding_fields(dataset.of(DocumentsConfig).for_training, {})
        return tokenizer_recipe(dataset.of(TokenizerConfig), documents, {})

    def writer(self, making: Making) -> Writer:
        """Return what saves the tokenizer."""
        source, dataset = tokenizer_source(making), making.graph.dataset.name
        return WholeWriter(partial(write_tokenizer, source, dataset=dataset))

    def open(self, stored: StoredOutput, inputs: Opened) -> Tokenizer:
        """Return the tokenizer."""
        return open_tokenizer(stored, trust_remote_code=inputs.trust_remote_code)

    def kinds(self, dataset: DatasetConfig, variant: str) -> Sequence[str]:
        """Return the tag of where the tokenizer comes from."""
        return [KINDS.get(dataset.of(TokenizerConfig).kind, "file")]

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        return ABOUT.format(dataset.of(TokenizerConfig).kind)


TOKENIZER = TokenizerStage()


def tokenizer_source(making: Making) -> TokenizerSource:
    """Return what the tokenizer of a dataset is made from.

    Raises: RawFileError, where it is trained on a raw file that cannot be read.
    """
    config = making.of(TokenizerConfig)
    is_trained = config.kind == "trained"  # the others are made without a look at the raw files
    keys = select_training_keys(config, list(making.graph.sources)) if is_trained else []
    return TokenizerSource(
        config=config,
        base=making.graph.dataset.base,
        raw_files={key: making.graph.raw_file(key) for key in keys},
        documents=making.of(DocumentsConfig).for_training,
    )


def encoding_of(making: Making) -> Encoding:
    """Return the tokenizer of a dataset as its config uses it.

    Raises: MissingOutputError; TokenizerError where it has no such EOS or BOS.
    """
    return resolve_encoding(making.of(TokenizerConfig), making.opened("tokenizer"))
