"""A tokenizer as people compare it: ids, engine, and a measurement on a file."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokflow.documents import DocumentsConfig, DocumentSource, Render
from tokflow.errors import RawFileError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.run import make_output
from tokflow.store.integrity import Reading
from tokflow.tokenizers.auto_tokenizer import describe_rebuilt, find_other_ids
from tokflow.tokenizers.chat_renderer import open_renderer
from tokflow.tokenizers.engines import GatedEngine
from tokflow.tokenizers.engines.protocol import text_buffers
from tokflow.tokenizers.patterns import describe_splitting
from tokflow.tokenizers.tokenizer import (
    Encoding,
    Tokenizer,
    read_encoding,
    read_tokenizer_json,
)
from tokflow.tokens.encoder import engine_for
from tokflow.tokens.shard import BATCH_BYTES

SAMPLE_BYTES = 4_000_000
"""Text, in bytes of UTF-8, after which the measurement of a tokenizer ends with its batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Measurement of a tokenizer on a raw file's first documents, without BOS and EOS."""

    path: Path
    """The raw file."""
    num_documents: int
    num_chars: int
    num_bytes: int
    num_tokens: int
    seconds: float
    """Of encoding alone, with caches that were cold at the start."""
    bytes_per_token: float | None
    """Bytes of text that a token stands for; None where there is no token."""
    tokens_per_character: float | None
    """Tokens for each code point; None where there is no text."""
    megabytes_per_second: float
    """Text encoded in a second, in units of 1,000,000 bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerReport:
    """One tokenizer of the store, and a sample of what it does."""

    tokenizer: Tokenizer
    name: str | None
    """As the config names it."""
    revision: str | None
    """As the config names it; `origin` has the commit that it led to."""
    origin: dict[str, Any]
    """The place it was fetched from, or what it was trained on."""
    engine: str
    """The library that makes the tokens."""
    engine_reason: str
    """The finding of the equality gate."""
    vocab_size_asked: int | None
    """Ids that it was to have; None for one that is not trained."""
    splitting: str
    """The split pattern by its name or itself, or how else the text is split."""
    auto_tokenizer: str | None
    """Texts to which transformers' AutoTokenizer gives other ids than tokenizer.json."""
    sample: Sample | None
    """None where there is no file to measure on."""

    def as_document(self) -> dict[str, Any]:
        """Return everything as `print_json` takes it."""
        folder, fields = self.tokenizer.folder, asdict(self)
        tokenizer = fields.pop("tokenizer")
        del tokenizer["stored"]
        tokenizer["folder"] = folder if folder.is_dir() else None  # one that was not to be kept
        return {**tokenizer, "dtype": self.tokenizer.dtype.name, **fields}


def report_tokenizer(dataset: Dataset, *, file: Path | None, is_measured: bool) -> TokenizerReport:
    """Return the report of a dataset's tokenizer, which is made in its store if it is not there.

    It is measured on `file`, read as the dataset reads documents, or else on the first raw file;
    that of a mixture as its first source has it.

    Raises: TokflowError.
    """
    dataset = dataset.sources[0] if dataset.sources else dataset
    graph = BuildGraph(dataset)
    make_output(graph, "tokenizer", "tokenizer")
    tokenizer, manifest = graph.tokenizer, graph.tokenizer_output.manifest()
    # Any tokenizer can be looked at, one without an EOS too.
    encoding = Encoding(config=dataset.tokenizer, tokenizer=tokenizer, bos_id=None, eos_id=None)
    with Reading():
        render = open_renderer(dataset.documents, tokenizer) if is_measured else None
        engine = engine_for(encoding, dataset.documents)
    if is_measured and file is None:
        file = graph.raw_file(_first_key(graph)).path
    sample = None if file is None else _measure(engine, file, dataset.documents, render)
    return TokenizerReport(
        tokenizer=tokenizer,
        vocab_size_asked=manifest.config.get("vocab_size"),
        name=dataset.tokenizer.name,
        revision=dataset.tokenizer.revision,
        origin=manifest.details["origin"],
        engine=engine.name,
        engine_reason=engine.reason,
        splitting=_splitting(tokenizer),
        auto_tokenizer=find_other_ids(tokenizer.folder) or describe_rebuilt(tokenizer.folder),
        sample=sample,
    )


def _first_key(graph: BuildGraph) -> str:
    for key in graph.sources:
        return key
    raise RawFileError(
        where=f"dataset {graph.dataset.name}",
        expected="a raw file to measure its tokenizer on",
        found="none",
        remedy="name one with --file",
    )


def _measure(
    engine: GatedEngine, path: Path, documents: DocumentsConfig, render: Render | None
) -> Sample:
    num_documents = num_chars = num_bytes = num_tokens = 0
    seconds = 0.0
    most = min(documents.limit.characters or SAMPLE_BYTES, SAMPLE_BYTES)  # a character has a byte
    limit = documents.limit.model_copy(update={"characters": most})
    limited = documents.model_copy(update={"limit": limit})
    for batch in DocumentSource([path], limited).batches(batch_bytes=BATCH_BYTES, render=render):
        offsets, _ = text_buffers(batch.texts)
        started = time.perf_counter()
        encoded = engine.encode(batch.texts)
        seconds += time.perf_counter() - started
        num_documents += len(batch.texts)
        num_chars += int(batch.num_chars.sum())
        num_bytes += int(offsets[-1] - offsets[0])
        num_tokens += len(encoded.token_ids)
        if num_bytes >= SAMPLE_BYTES:
            break
    return Sample(
        path=path,
        num_documents=num_documents,
        num_chars=num_chars,
        num_bytes=num_bytes,
        num_tokens=num_tokens,
        seconds=seconds,
        bytes_per_token=num_bytes / num_tokens if num_tokens else None,
        tokens_per_character=num_tokens / num_chars if num_chars else None,
        megabytes_per_second=num_bytes / 1e6 / seconds if seconds else 0.0,
    )


def _splitting(tokenizer: Tokenizer) -> str:
    if tokenizer.kind in ("bytes", "sentencepiece"):
        return "none"
    if tokenizer.kind == "tiktoken":
        return str(read_encoding(tokenizer.folder)["pattern"])
    fields = read_tokenizer_json(tokenizer.folder)
    return describe_splitting(fields["pre_tokenizer"]) if fields else "in its own code"
