"""The functions that write the outputs of each stage, with what they are given."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.documents.batch import ParsedBatch
from tokflow.errors import ConfigError, MissingOutputError, TokflowError, first_five
from tokflow.exports.config import ExportConfig
from tokflow.exports.part import Part, make_parts
from tokflow.exports.writing import ExportWriter
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import Stage
from tokflow.pools.pool import Advance, ignore
from tokflow.raw import RawPartition
from tokflow.sequences.segments import write_sequences
from tokflow.shown import counted
from tokflow.split.cut_tokens import CutEncoder, write_cut_tokens
from tokflow.split.mixed_split import write_mixed_split
from tokflow.split.shuffle import DOCUMENT_ORDER, shuffle_fields
from tokflow.split.spans import write_split
from tokflow.store.integrity import Reading
from tokflow.store.manifest import Manifest, Recipe
from tokflow.store.store import StoredOutput
from tokflow.store.verdicts import spread_verdict
from tokflow.tokenizers.chat_renderer import read_messages
from tokflow.tokenizers.chat_template import BadChatError
from tokflow.tokenizers.engines import GatedEngine
from tokflow.tokenizers.sources import write_tokenizer
from tokflow.tokenizers.tokenizer import Encoding
from tokflow.tokens.encoder import engine_for
from tokflow.tokens.shard import write_token_shard
from tokflow.tokens.shard_files import ShardSegment, join_segments, segments_of

Write: TypeAlias = Callable[..., None]
"""The function that writes an output's files into an empty folder, but for that folder."""


def engine_of(graph: BuildGraph) -> GatedEngine:
    """Return the engine that makes the tokens of a dataset. Raises: as `engine_for`."""
    with Reading():
        return engine_for(graph.encoding, graph.dataset.documents)


def _tokenizer(graph: BuildGraph, *_: str) -> Write:
    return partial(write_tokenizer, graph.tokenizer_source(), dataset=graph.dataset.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensWriter:
    """The writer of a token shard and of its segments; goes to another process as it is."""

    raw: RawPartition
    documents: DocumentsConfig
    encoding: Encoding
    dataset: str
    recipe: Recipe

    def __call__(
        self, folder: Path, *, progress: Advance = ignore, segment: ShardSegment | None = None
    ) -> None:
        """Write the shard, or a segment of it, as `write_token_shard` does."""
        write_token_shard(
            self.raw,
            self.documents,
            self.encoding,
            folder,
            dataset=self.dataset,
            recipe=segment.recipe if segment else self.recipe,
            segment=segment,
            progress=progress,
        )

    def segments(self) -> list[ShardSegment]:
        """Return the segments that the shard of a large raw file is made of; of others none."""
        return segments_of(self.raw, self.documents, self.recipe)

    def join(self, segments: Sequence[StoredOutput], folder: Path) -> None:
        """Make the shard of its segments, as `join_segments` does."""
        raw, documents, recipe = self.raw, self.documents, self.recipe
        join_segments(segments, folder, raw=raw, documents=documents, recipe=recipe)


def _tokens(graph: BuildGraph, key: str, _: str) -> Write:
    spread_verdict(graph.tokenizer)
    return TokensWriter(
        raw=graph.raw(key),
        documents=graph.documents(key),
        encoding=graph.encoding,
        dataset=graph.dataset.name,
        recipe=graph.tokens(key).recipe,
    )


def _split(graph: BuildGraph, key: str, _: str) -> Write:
    about: dict[str, Any] = {
        "dataset": graph.dataset.name,
        "recipe": graph.split(key).recipe,
        "shuffle_seed": graph.dataset.shuffle.of_documents,
    }
    if graph.of_sources:
        source, of_source = graph.at(key)
        taken = source.open_split(of_source), graph.mixture_plan.share(key)
        return partial(write_mixed_split, *taken, tokenizer=graph.tokenizer, **about)
    cut = cut_encoder(graph, key)
    taken_by = graph.open_tokens(key), graph.split_config(key)
    return partial(write_split, *taken_by, position=graph.position(key), encode_cut=cut, **about)


def cut_encoder(graph: BuildGraph, key: str) -> CutEncoder:
    """Return the encoder of what the split of one file cuts."""
    return partial(
        write_cut_tokens,
        raw=graph.raw(key),
        documents=graph.documents(key),
        encoding=graph.encoding,
    )


def _sequences(graph: BuildGraph, key: str, packing: str) -> Write:
    recipe, dataset = graph.sequences(key, packing).recipe, graph.dataset.name
    made_of = graph.open_split(key), graph.packings[packing]
    return partial(write_sequences, *made_of, dataset=dataset, recipe=recipe)


def _export(graph: BuildGraph, name: str, _: str) -> Write:
    config = graph.dataset.export_config(name)
    parts = parts_of(graph, config)
    _check_supervised(graph, (split.shard.manifest for split in parts[0].splits))
    return ExportWriter(
        parts=parts,
        config=config,
        dataset=graph.dataset.name,
        recipe=graph.export(config).recipe,
        details=_export_details(graph),
    )


def parts_of(graph: BuildGraph, config: ExportConfig) -> Sequence[Part]:
    """Return what an export is made from; every listed file must have been built.

    Raises: MissingOutputError that names the first files that have not.
    """
    dataset, inputs = graph.dataset, graph.inputs(config)
    stage = dataset.stage_of_inputs(config)
    missing = [key for key, output in inputs.items() if not output.is_made]
    if missing:
        raise MissingOutputError(
            where=f"{dataset.name}/exports/{config.name}",
            expected=f"the {stage} of all {len(graph.partitions):,} partitions",
            found=f"{len(missing):,} not built: {first_five(missing)}",
            remedy=f"materialize {dataset.name}/{stage} for them, or run `tokflow run`",
        )
    files = [
        graph.open_sequences(key, of.packing) if stage == "sequences" else graph.open_split(key)
        for key, of in inputs.items()
    ]
    return make_parts(
        dataset.split.parts,
        _token_details(graph),
        files,
        dataset.packing_of(config),
        order=dataset.shuffle.of_export,
        is_packed=config.layout.is_packed,
    )


def _token_details(graph: BuildGraph) -> dict[str, Any]:
    """Return what the manifest of each export says of token ids."""
    tokenizer, encoding = graph.tokenizer, graph.encoding
    return {
        "dtype": tokenizer.dtype.str,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": encoding.eos_id,
        "bos_id": encoding.bos_id,
    }


def _export_details(graph: BuildGraph) -> dict[str, Any]:
    """Return what the manifest of each export says of its tokens; all files are looked through."""
    dataset = graph.dataset
    details = {
        **_token_details(graph),
        "tokenizer_fingerprint": graph.tokenizer.fingerprint,
        "names": dataset.names.fields(),
        **({"commits": commits} if (commits := graph.listing.commits) else {}),
        **shuffle_fields(dataset.shuffle.of_documents, DOCUMENT_ORDER),
        **dataset.shuffle.of_export.document_fields(),
    }
    if graph.of_sources:
        counts = {key: graph.split(key).counts for key in graph.partitions}
        details["mixture"] = graph.mixture_plan.realised(counts)
    return details


def _check_supervised(graph: BuildGraph, shards: Iterable[Manifest]) -> None:
    """Check that some token of the token shards of a dataset is supervised.

    Raises: ConfigError where they are of chats and none is.
    """
    graphs = list(graph.of_sources.values()) or [graph]
    configs = [of.dataset.documents for of in graphs]
    counts = [shard.counts for shard in shards]
    num_tokens = sum(of["num_tokens"] for of in counts)
    is_chat = all("num_loss_tokens" in of for of in counts)
    if not num_tokens or not is_chat or any(of["num_loss_tokens"] for of in counts):
        return
    if any(config.on_no_loss == "accept" for config in configs):
        return
    is_rendered = configs[0].messages is not None
    found = f"none of {counted(num_tokens, 'token')}"
    remedy = "put what is to be learnt into the completion"
    if is_rendered:
        roles = dict.fromkeys(repr(role) for of in graphs for role in _roles(of))
        found += f", in messages of the roles {first_five([*roles])}"
        remedy = "give the messages that are to be learnt the role 'assistant'"
    raise ConfigError(
        where=f"{graph.dataset.name}: documents.{'messages' if is_rendered else 'completion'}",
        expected="tokens that are supervised",
        found=found,
        remedy=f"{remedy}, or set documents.on_no_loss: accept",
    )


def _roles(graph: BuildGraph) -> list[str]:
    """Return the roles in the first batch of chats of a dataset, each once."""
    roles: dict[str, None] = {}

    def read(found: ParsedBatch) -> ParsedBatch:
        for text in found.batch.texts.to_pylist():
            with suppress(BadChatError):
                roles.update(dict.fromkeys(of["role"] for of in read_messages(text.encode())))
        return found

    with suppress(TokflowError, OSError):
        paths = graph.raw(next(iter(graph.partitions))).paths
        next(DocumentSource(paths, graph.dataset.documents).batches(render=read), None)
    return list(roles)


WRITERS: Mapping[Stage, Callable[[BuildGraph, str, str], Write]] = {
    "tokenizer": _tokenizer,
    "tokens": _tokens,
    "split": _split,
    "sequences": _sequences,
    "export": _export,
}
"""The function that writes each stage's outputs, with what it is given."""
