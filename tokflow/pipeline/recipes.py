"""Recipe builders by stage."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tokflow.exports import ExportConfig, export_recipe
from tokflow.pipeline.output import Stage
from tokflow.sequences.segments import sequences_recipe
from tokflow.split.shuffle import ShuffleConfig
from tokflow.store.manifest import Recipe
from tokflow.tokens.shard import tokens_recipe

if TYPE_CHECKING:
    from tokflow.pipeline.graph import BuildGraph


def stage_of_inputs(config: ExportConfig, shuffle: ShuffleConfig) -> Stage:
    """Return the stage whose outputs an export is made from."""
    is_of_files = shuffle.documents != "dataset"
    return "sequences" if config.layout.is_packed and is_of_files else "split"


def _recipe_of_tokens(graph: "BuildGraph", key: str, _: str) -> Recipe:
    dataset, documents = graph.dataset, graph.documents(key)
    return tokens_recipe(graph.raw(key), documents, dataset.tokenizer, graph.tokenizer)


def _recipe_of_sequences(graph: "BuildGraph", key: str, packing: str) -> Recipe:
    return sequences_recipe(graph.split(key).fingerprint, graph.packings[packing])


def _recipe_of_export(graph: "BuildGraph", name: str, _: str) -> Recipe:
    config = graph.export_config(name)
    parents = {key: output.fingerprint for key, output in graph.inputs(config).items()}
    packing = graph.dataset.packing_of(config)
    return export_recipe(config, packing, parents, order=graph.dataset.shuffle.of_export)


RECIPES: Mapping[Stage, Callable[["BuildGraph", str, str], Recipe]] = {
    "tokenizer": lambda graph, *_: graph.tokenizer_source().recipe,
    "tokens": _recipe_of_tokens,
    "split": lambda graph, key, _: graph.upstream.split_recipe(key),
    "sequences": _recipe_of_sequences,
    "export": _recipe_of_export,
}
"""Recipe builders by stage, of an output's name and packing."""
