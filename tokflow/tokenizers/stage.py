"""The stage that saves a dataset's tokenizer in the store, and how each kind of it is made."""

import dataclasses
import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokflow.documents import DocumentsConfig, deciding_fields
from tokflow.errors import TokenizerError, UnknownTokenizerError, first_five, nearest
from tokflow.raw import RawFile
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, WholeWriter, Writer
from tokflow.store.config import expanded
from tokflow.store.manifest import Manifest, Recipe, checksum, checksums, write_manifest
from tokflow.store.store import StoredOutput
from tokflow.store.versions import known_changes
from tokflow.tokenizers import hub, vocabulary
from tokflow.tokenizers.auto_tokenizer import check_added_tokens
from tokflow.tokenizers.engines.hugging_face import holds_code
from tokflow.tokenizers.engines.reference import MODEL_NAME, reference_of
from tokflow.tokenizers.tokenizer import (
    BYTES_ENDS,
    GENERATION_NAME,
    Kind,
    Tokenizer,
    TokenizerConfig,
    content_fingerprint,
    is_path,
    tokenizer_of,
    write_encoding,
)
from tokflow.tokenizers.training import train_tokenizer

TOKENIZER_VERSION = 2
"""Raised when the same origin would be saved as other bytes."""

ABOUT = """\
The tokenizer ({}) that makes the tokens. It is saved in the store, so that later runs use exactly \
its bytes."""


class TokenizerStage(Stage):
    """The tokenizer: one folder of a dataset, made from a hub, a file, or the raw files."""

    name = "tokenizer"
    is_of_file = False
    decides_all = True
    config = TokenizerConfig
    cost = Cost(1.0, 1 / 2e6)

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the raw files that a tokenizer is trained on, if it is."""
        is_trained = dataset.of(TokenizerConfig).kind == "trained"
        return [Input(stage="raw", reach="all")] if is_trained else []

    def recipe(self, making: Making) -> Recipe:
        """Return what decides the tokenizer; raw files to train on are read for it."""
        source = tokenizer_source(making)
        parents = {key: raw.sha256 for key, raw in source.raw_files.items()}
        if source.is_local:
            parents = {file.name: checksum(file).sha256 for file in source.local_files()}
        sizes = {raw.path: raw.num_bytes for raw in source.raw_files.values()}
        return tokenizer_recipe(source.config, source.documents, sizes, parents)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides, whatever files there are."""
        return tokenizer_recipe(dataset.of(TokenizerConfig), dataset.of(DocumentsConfig), {}, {})

    def writer(self, making: Making) -> Writer:
        """Return what saves the tokenizer."""
        source, dataset = tokenizer_source(making), making.graph.dataset.name
        return WholeWriter(partial(write_tokenizer, source, dataset=dataset, recipe=making.recipe))

    def open(self, stored: StoredOutput, inputs: Opened) -> Tokenizer:
        """Return the tokenizer, whose code may not run."""
        return tokenizer_of(stored)

    def kinds(self, dataset: DatasetConfig, variant: str) -> Sequence[str]:
        """Return the tag of where the tokenizer comes from."""
        kind = dataset.of(TokenizerConfig).kind
        return [{"tiktoken": "openai", "huggingface": kind}.get(kind, "file")]

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        return ABOUT.format(dataset.of(TokenizerConfig).kind)


TOKENIZER = TokenizerStage()


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerSource:
    """The config, files and documents that a tokenizer is made from."""

    config: TokenizerConfig
    base: Path
    """Folder that relative paths in the config start from."""
    raw_files: Mapping[str, RawFile]
    """For kind trained: the raw files it is trained on, by key, sorted."""
    documents: DocumentsConfig
    """For kind trained: how their documents are read."""

    @property
    def is_local(self) -> bool:
        """True if `config.name` is a local file or folder, or could only be one."""
        kind = self.config.kind
        return kind in ("file", "sentencepiece") or (
            kind == "huggingface" and (self.path.exists() or is_path(str(self.config.name)))
        )

    @property
    def path(self) -> Path:
        """The path that `config.name` is, if it is one."""
        return self.base / expanded(str(self.config.name))

    def local_files(self) -> list[Path]:
        """Return the files on this disk that make the tokenizer, the named one first.

        Raises: TokenizerError where there are none.
        """
        path = self.path
        if path.is_file():
            companions = ("tokenizer_config.json", "chat_template.jinja", GENERATION_NAME)
            beside = [path.parent / name for name in companions if self.config.kind == "file"]
            return [path, *(file for file in beside if file.is_file())]
        names = [file.name for file in path.iterdir() if file.is_file()] if path.is_dir() else []
        taken = hub.files_to_take(names, trust_remote_code=self.config.trust_remote_code)
        if taken:
            return [path / name for name in taken]
        state = "is empty" if path.is_dir() else "is missing"
        where = "tokenizer.name"
        expected = "an existing file, or a folder with files"
        found = f"{str(path)!r}, which {'holds no file of a tokenizer' if names else state}"
        remedy = (
            "correct the path; a relative one starts at the root of the project that the YAML "
            "is in or, in none, at its own folder"
        )
        raise UnknownTokenizerError(where=where, expected=expected, found=found, remedy=remedy)


def tokenizer_source(making: Making) -> TokenizerSource:
    """Return what the tokenizer of a dataset is made from.

    Raises: TokenizerError where the pattern of files to train on matches none; RawFileError where
    one of them cannot be read.
    """
    config, selected = making.of(TokenizerConfig), list[str]()
    if config.kind == "trained":  # the others are made without a look at the raw files
        keys = list(making.graph.sources)
        selected = [of for of in keys if config.files is None or fnmatch.fnmatch(of, config.files)]
        if not selected:
            raise TokenizerError(
                where="tokenizer.files",
                expected="a pattern that matches a raw file",
                found=f"{config.files!r}, and the raw files are {first_five(keys) or '(none)'}",
                remedy=nearest(config.files, keys)
                or "correct the pattern; it is compared with the keys of raw files",
            )
    return TokenizerSource(
        config=config,
        base=making.graph.dataset.base,
        raw_files={key: making.graph.raw_file(key) for key in selected},
        documents=making.of(DocumentsConfig),
    )


def tokenizer_recipe(
    config: TokenizerConfig,
    documents: DocumentsConfig,
    sizes: Mapping[Path, int],
    parents: Mapping[str, str],
) -> Recipe:
    """Return the recipe of a tokenizer; its parents are raw files, or its own files on this disk.

    `documents`: how those that it is trained on are read from files of these `sizes`.
    """
    fields: dict[str, Any] = {
        "kind": config.kind,
        "eos_token": config.eos_token,
        "bos_token": config.bos_token,
        **known_changes("tokenizer", config.kind),
    }
    if config.kind == "trained":
        trained = ("vocab_size", "special_tokens", "pattern")
        reading = deciding_fields(documents.for_training, sizes)
        most = [num for num in (reading["limit"]["characters"], config.max_characters) if num]
        limit = {**reading["limit"], "characters": min(most, default=None)}
        fields |= {name: getattr(config, name) for name in trained}
        fields |= {"documents": {**reading, "limit": limit}}
    elif config.kind != "bytes" and not parents:
        fields["name"] = config.name
    if config.kind == "huggingface":
        fields["trust_remote_code"] = config.trust_remote_code
        fields |= {} if parents else {"revision": config.revision}
        fields |= {"pattern": config.named_pattern} if config.named_pattern is not None else {}
    return Recipe(stage="tokenizer", version=TOKENIZER_VERSION, config=fields, parents=parents)


def write_tokenizer(source: TokenizerSource, folder: Path, *, dataset: str, recipe: Recipe) -> None:
    """Write the tokenizer's files and manifest into the empty `folder`.

    Raises: TokenizerError.
    """
    started = time.perf_counter()
    facts = MAKERS[source.config.kind](source, folder)
    if source.is_local:
        for file in source.local_files():
            if checksum(file).sha256 != recipe.parents[file.name]:
                expected = "the file that was there when the run began"
                remedy = "run again, and leave it alone meanwhile"
                raise TokenizerError(where=file, expected=expected, found="another", remedy=remedy)
    eos_token = source.config.eos_token or facts.eos_token
    bos_token = source.config.bos_token or facts.bos_token
    files = checksums(folder)
    special = {
        "kind": facts.kind or source.config.kind,
        "special_tokens": dict(facts.special_tokens),
        "eos_token": eos_token,
        "eos_id": facts.id_of("eos", eos_token),
        "bos_token": bos_token,
        "bos_id": facts.id_of("bos", bos_token),
    }
    manifest = Manifest(
        recipe=recipe,
        dataset=dataset,
        partition=None,
        counts={"vocab_size": facts.vocab_size},
        details={
            **special,
            "tokenizer_fingerprint": content_fingerprint(special, files, version=TOKENIZER_VERSION),
            "origin": dict(facts.origin),
            "reference": reference_of(str(special["kind"]), folder),
        },
        files=files,
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def _make_bytes(source: TokenizerSource, folder: Path) -> vocabulary.Facts:
    return vocabulary.Facts(
        vocab_size=258,
        special_tokens={},  # no text can spell an id past 255
        added_tokens={name.decode(): id_ for id_, name in BYTES_ENDS.items()},
        find=lambda name: name.encode()[0] if len(name.encode()) == 1 else None,
        eos_token="<eos>",
        bos_token="<bos>",
    )


def _make_tiktoken(source: TokenizerSource, folder: Path) -> vocabulary.Facts:
    import tiktoken

    name, known = str(source.config.name), tiktoken.list_encoding_names()
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:
        if name not in known:
            raise UnknownTokenizerError(
                where="tokenizer.name",
                expected=f"one of {', '.join(known)}",
                found=repr(name),
                remedy=nearest(name, known) or "name one of them",
            ) from error
        expected = "its files on the network or in TIKTOKEN_CACHE_DIR"
        remedy = "fetch them once where there is a network; later runs use the copy in the store"
        raise hub.refused_name(name, expected, vocabulary.shown(error), remedy) from error
    write_encoding(
        folder,
        encoding._mergeable_ranks,
        name=encoding.name,
        pattern=encoding._pat_str,
        special_tokens=encoding._special_tokens,
    )
    return vocabulary.facts_of_tiktoken(folder)


def _make_published(source: TokenizerSource, folder: Path) -> vocabulary.Facts:
    config, name = source.config, str(source.config.name)
    fetched: dict[str, Any] = {}
    if source.is_local:
        for file in source.local_files():
            is_json = config.kind == "file" and file == source.path
            saved = folder / ("tokenizer.json" if is_json else file.name)
            saved.write_bytes(file.read_bytes())
    else:
        fetched = {"hub_id": name, "commit": hub.download_tokenizer(config, folder)}
    if (folder / "tokenizer.json").is_file():
        facts = vocabulary.facts_of_json(folder, fetched)
        check_added_tokens(folder, name)
        return facts
    if config.kind == "file":
        raise UnknownTokenizerError(
            where=f"tokenizer.name: {name}",
            expected="a tokenizer.json, or a folder that holds one",
            found="a folder without",
            remedy="set tokenizer.kind: huggingface, which converts other files",
        )
    hub.refuse_code(folder, config)
    if not holds_code(folder):
        facts_of_model = hub.facts_of_model_file(folder, config)
        if facts_of_model is not None:
            return dataclasses.replace(facts_of_model, origin=fetched)
    hub.make_with_transformers(folder, config)
    if (folder / "tokenizer.json").is_file():
        return vocabulary.facts_of_json(folder, fetched)
    return vocabulary.facts_of_transformers(folder, config, fetched)


def _make_sentencepiece(source: TokenizerSource, folder: Path) -> vocabulary.Facts:
    found = "a folder"
    if not source.path.is_dir():
        [path] = source.local_files()
        (folder / MODEL_NAME).write_bytes(path.read_bytes())
        try:
            return vocabulary.facts_of_sentencepiece(folder)
        except ValueError as error:
            found = vocabulary.shown(error)
    raise hub.refused_name(
        source.config.name,
        "a .model file that SentencePiece has made",
        found,
        "name the .model itself, and copy it anew if it was cut short; a "
        "tokenizer.json is kind: file, a folder of transformers kind: huggingface",
    )


def _make_trained(source: TokenizerSource, folder: Path) -> vocabulary.Facts:
    config, documents = source.config, source.documents.for_training
    seen = train_tokenizer(source.raw_files, documents, config, folder / "tokenizer.json")
    first = next(iter(config.special_tokens), None)
    return dataclasses.replace(vocabulary.facts_of_json(folder, seen), eos_token=first)


MAKERS: dict[Kind, Callable[[TokenizerSource, Path], vocabulary.Facts]] = {
    "bytes": _make_bytes,
    "file": _make_published,
    "huggingface": _make_published,
    "sentencepiece": _make_sentencepiece,
    "tiktoken": _make_tiktoken,
    "trained": _make_trained,
}
