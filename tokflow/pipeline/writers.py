"""The functions that write the outputs of each stage, with what they are given."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from tokflow.exports.writing import ExportWriter
from tokflow.pipeline.export_details import export_details
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import Mixture
from tokflow.pipeline.output import Stage
from tokflow.pipeline.supervision import check_supervised
from tokflow.sequences.segments import write_sequences
from tokflow.split.cut_tokens import CutEncoder, write_cut_tokens
from tokflow.split.mixed_split import write_mixed_split
from tokflow.split.spans import write_split
from tokflow.store.verdicts import spread_verdict
from tokflow.tokenizers.sources import write_tokenizer
from tokflow.tokens.shard import write_token_shard

Write: TypeAlias = Callable[..., None]
"""The function that writes an output's files into an empty folder, but for that folder."""


def _tokenizer(graph: BuildGraph, *_: str) -> Write:
    return partial(write_tokenizer, graph.tokenizer_source(), dataset=graph.dataset.name)


def _tokens(graph: BuildGraph, key: str, _: str) -> Write:
    dataset, tokenizer = graph.dataset, graph.tokenizer
    spread_verdict(tokenizer)
    raw, documents = graph.raw(key), graph.documents(key)
    return partial(write_token_shard, raw, documents, graph.encoding, dataset=dataset.name)


def _split(graph: BuildGraph, key: str, _: str) -> Write:
    dataset, upstream = graph.dataset, graph.upstream
    if isinstance(upstream, Mixture):
        source, of_source = upstream.at(key)
        return partial(
            write_mixed_split,
            source.open_split(of_source),
            upstream.share(key),
            dataset=dataset.name,
            tokenizer=graph.tokenizer,
            shuffle_seed=dataset.shuffle.of_documents,
        )
    return partial(
        write_split,
        graph.open_tokens(key),
        upstream.split_config(key),
        dataset=dataset.name,
        position=upstream.position(key),
        encode_cut=cut_encoder(graph, key),
        shuffle_seed=dataset.shuffle.of_documents,
    )


def cut_encoder(graph: BuildGraph, key: str) -> CutEncoder:
    """Return the encoder of what the split of one file cuts."""
    return partial(
        write_cut_tokens,
        raw=graph.raw(key),
        documents=graph.documents(key),
        encoding=graph.encoding,
    )


def _sequences(graph: BuildGraph, key: str, packing: str) -> Write:
    split, dataset = graph.open_split(key), graph.dataset.name
    return partial(write_sequences, split, graph.packings[packing], dataset=dataset)


def _export(graph: BuildGraph, name: str, _: str) -> Write:
    config = graph.export_config(name)
    parts = graph.parts(config)
    check_supervised(graph, (split.shard.manifest for split in parts[0].splits))
    return ExportWriter(
        parts=parts,
        config=config,
        dataset=graph.dataset.name,
        recipe=graph.export(config).recipe,
        details=export_details(graph),
    )


WRITERS: Mapping[Stage, Callable[[BuildGraph, str, str], Write]] = {
    "tokenizer": _tokenizer,
    "tokens": _tokens,
    "split": _split,
    "sequences": _sequences,
    "export": _export,
}
"""The function that writes each stage's outputs, with what it is given."""
