"""The recipe of each stage's outputs, by the function that stands beside the stage."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tokflow.build.output import Stage
from tokflow.exports import ExportConfig, export_recipe
from tokflow.sequences.segments import sequences_recipe
from tokflow.split.mixed_split import mixed_split_recipe
from tokflow.split.shuffle import ShuffleConfig
from tokflow.split.spans import split_recipe
from tokflow.store.manifest import Recipe
from tokflow.tokens.shard import tokens_recipe

if TYPE_CHECKING:
    from tokflow.build.graph import BuildGraph


def stage_of_inputs(config: ExportConfig, shuffle: ShuffleConfig) -> Stage:
    """Return the stage whose outputs an export is made from."""
    is_of_files = shuffle.documents != "dataset"
    return "sequences" if config.layout.is_packed and is_of_files else "split"


def _recipe_of_tokens(graph: "BuildGraph", key: str, _: str) -> Recipe:
    dataset, documents = graph.dataset, graph.documents(key)
    return tokens_recipe(graph.raw(key), documents, dataset.tokenizer, graph.tokenizer)


def _recipe_of_split(graph: "BuildGraph", key: str, _: str) -> Recipe:
    if graph.mixture is not None:
        source, of_source = graph.mixture.at(key)
        split, share = source.split(of_source).fingerprint, graph.mixture.share(key)
        return mixed_split_recipe(split, share, shuffle_seed=graph.dataset.shuffle.of_documents)
    tokens = graph.tokens(key).fingerprint
    first_file = graph.partitions[key][0].key
    position, seed = graph.position(key), graph.dataset.shuffle.of_documents
    return split_recipe(tokens, graph.split_config(key), position, first_file, shuffle_seed=seed)


def _recipe_of_sequences(graph: "BuildGraph", key: str, packing: str) -> Recipe:
    return sequences_recipe(graph.split(key).fingerprint, graph.dataset.packings[packing])


def _recipe_of_export(graph: "BuildGraph", name: str, _: str) -> Recipe:
    config = graph.export_config(name)
    parents = {key: output.fingerprint for key, output in graph.inputs(config).items()}
    packing = graph.dataset.packing_of(config)
    return export_recipe(config, packing, parents, order=graph.dataset.shuffle.of_export)


RECIPES: Mapping[Stage, Callable[["BuildGraph", str, str], Recipe]] = {
    "tokenizer": lambda graph, *_: graph.tokenizer_source().recipe,
    "tokens": _recipe_of_tokens,
    "split": _recipe_of_split,
    "sequences": _recipe_of_sequences,
    "export": _recipe_of_export,
}
"""The recipe of each stage's outputs, by their name and packing, by the function that stands beside
the stage."""
