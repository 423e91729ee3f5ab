"""One tokenizer, whatever its origin: its files in the store, ids, special ids, fingerprint."""

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from pydantic import Field

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError, CorruptOutputError, TokenizerError, shortened
from tokflow.store.config import Config, Listed
from tokflow.store.engine_verdicts import read_verdict
from tokflow.store.manifest import FileEntry, Manifest, Recipe, damaged
from tokflow.store.store import InStore, StoredOutput
from tokflow.store.urls import is_url
from tokflow.tokenizers import check_pattern
from tokflow.tokenizers.engines import InText

Kind = Literal["trained", "bytes", "tiktoken", "huggingface", "file", "sentencepiece"]

SpecialTokensInText = Literal["ordinary", "control", "error"]

BYTES_ENDS = {256: b"<eos>", 257: b"<bos>"}
"""EOS and BOS of kind bytes."""

END_OF_TEXT = "<|endoftext|>"

RANKS_NAME = "ranks.tiktoken"
"""The file of tiktoken's ranks in the tokenizer's folder."""

GENERATION_NAME = "generation_config.json"
"""The file of stop tokens of chats, which no token of a text depends on."""


class TokenizerConfig(Config):
    """The tokenizer, and the special tokens around and inside a document."""

    section: ClassVar[str] = "tokenizer"

    kind: Annotated[Kind, Field(examples=["tiktoken"])]
    """trained: byte-level BPE trained on the raw files; bytes: a token is a byte; tiktoken: an
    encoding of OpenAI's; huggingface: a hub id or a local folder; file: a tokenizer.json;
    sentencepiece: a .model file, BPE or unigram."""
    name: str | None = None
    """The encoding's name, the hub id or folder, or the path of the tokenizer.json or .model."""
    revision: str | None = None
    """Branch, tag or commit on the hub; the commit it led to is recorded. Default: main."""
    trust_remote_code: bool = False
    """huggingface: true lets Python code that was published with the tokenizer run on this
    machine, with your rights. It is asked for only where there is no tokenizer.json and
    transformers has no class of its own. The code is copied into the store; later runs use it."""
    eos: Literal["last", "none"] = "last"
    """last: the EOS id ends each document; none: nothing ends it."""
    bos: Literal["first", "none"] = "none"
    """first: the BOS id begins each document; none: nothing begins it."""
    eos_of_empty: bool = True
    """False: a document whose text gives no tokens has no EOS and no BOS, so none at all; it is
    counted and stays in the index of documents."""
    eos_token: str | None = None
    """The vocabulary's name for EOS, a special token or any other; default: what the tokenizer
    itself names."""
    bos_token: str | None = None
    """The vocabulary's name for BOS, likewise."""
    special_tokens_in_text: SpecialTokensInText = "ordinary"
    """Treatment of a special token that occurs in a text. ordinary: plain text, counted; control:
    the control token; error: the run stops."""
    engine: Literal["auto", "gigatoken", "reference"] = "auto"
    """auto: gigatoken where it proves equal to the reference, else the reference."""
    vocab_size: int = 8192
    """trained: how many ids, special tokens included; a text with fewer pairs gives fewer."""
    special_tokens: Listed[str] = (END_OF_TEXT,)
    """trained: names of the special tokens, given the last ids in this order."""
    files: str | None = None
    """trained: the raw files to train on, a pattern over their keys; default: all."""
    max_characters: int | None = None
    """trained: characters to read from the beginning of each raw file; the document that reaches
    the number is taken whole. Ten files and 1,000,000 train on ten million
    characters. Default: all that the dataset itself reads."""
    pattern: str = "gpt2"
    """trained: what text is split by before pairs are merged: gpt2, cl100k, o200k, llama3, qwen2,
    or a regular expression (Oniguruma's), whose matches and what lies between them are words.
    huggingface: the same of a file of tiktoken's ranks that has no tokenizer.json beside it and is
    not that of Llama 3 or 4."""

    @property
    def named_pattern(self) -> str | None:
        """The split pattern of a published tokenizer, if one was written."""
        is_named = self.kind == "huggingface" and "pattern" in self.model_fields_set
        return self.pattern if is_named else None

    def check(self) -> None:
        """Refuse fields that do not go with the kind."""
        problems: list[tuple[str, str, str, str]] = []
        special, least = self.special_tokens, 256 + len(self.special_tokens)
        what = _WHAT_NAME_IS.get(self.kind, "none")
        if self.kind in _WHAT_NAME_IS and not self.name:
            problems += [("name", f"{what} for kind {self.kind}", "nothing", "add `name:`")]
        if self.name and is_url(self.name):
            remedy = "name the hub id, or download its files and name their path"
            problems += [("name", what, f"the URL {self.name}", remedy)]
        if "" in special or len(set(special)) < len(special):
            expected = "names of one character or more, each once"
            problems += [("special_tokens", expected, repr(list(special)), "correct them")]
        if self.kind == "trained" and self.vocab_size < least:
            expected = f"at least {least} (256 bytes and the special tokens)"
            problems += [("vocab_size", expected, repr(self.vocab_size), "raise it")]
        for name, kinds in _OF_KINDS.items():
            value = getattr(self, name)
            if self.kind not in kinds and value != type(self).model_fields[name].default:
                expected = f"none, for it is a field of kind {' and '.join(kinds)}"
                found = f"{value!r} with kind {self.kind}"
                problems += [(name, expected, found, "remove it, or name that kind")]
        for name, expected, found, remedy in problems[:1]:
            raise ConfigError(where=name, expected=expected, found=found, remedy=remedy)
        if not self.is_as_usual("pattern"):
            check_pattern(self.pattern)


_WHAT_NAME_IS = {
    "tiktoken": "an encoding's name such as gpt2 or cl100k_base",
    "huggingface": "a hub id such as openai-community/gpt2 or a local folder",
    "file": "the path of a tokenizer.json",
    "sentencepiece": "the path of a .model file",
}

_OF_KINDS: Mapping[str, tuple[str, ...]] = {
    "name": tuple(_WHAT_NAME_IS),
    **dict.fromkeys(("revision", "trust_remote_code"), ("huggingface",)),
    **dict.fromkeys(("vocab_size", "special_tokens", "files", "max_characters"), ("trained",)),
    "pattern": ("trained", "huggingface"),
}
"""Fields that not every kind has."""


def fields_of_name(name: str) -> dict[str, str]:
    """Return the config fields that a tokenizer's bare name stands for.

    `bytes` and `trained`: those kinds; what ends in .json: a file; in .model: sentencepiece; an
    encoding of tiktoken, as gpt2; anything else is a folder or a hub id, as org/name or ./gpt2.
    """
    if name in ("bytes", "trained"):
        return {"kind": name}
    if (suffix := PurePath(name).suffix) in (".json", ".model"):
        return {"kind": "file" if suffix == ".json" else "sentencepiece", "name": name}
    import tiktoken

    kind = "tiktoken" if name in tiktoken.list_encoding_names() else "huggingface"
    return {"kind": kind, "name": name}


def is_path(name: str) -> bool:
    """Return whether a name is a path whatever lies there: it cannot be a hub id."""
    return name.count("/") > 1 or name.startswith(("/", "./", "../", "~"))


def with_kind(tokenizer: object) -> object:
    """Return the fields that a bare name stands for; anything else as it is."""
    return fields_of_name(tokenizer) if isinstance(tokenizer, str) and tokenizer else tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer(InStore):
    """A tokenizer saved in the store. Equal where fingerprint, folder and verdict are equal."""

    folder: Path
    """Holds the very bytes that later runs use; no network is needed again."""
    fingerprint: str
    """sha256 of its files and special ids, wherever they came from."""
    kind: Kind = field(compare=False)
    vocab_size: int = field(compare=False)
    """One more than the largest id it can emit, added tokens included."""
    special_tokens: Mapping[str, int] = field(compare=False)
    """Name to id of every token that a text may not be able to spell."""
    eos_id: int | None = field(compare=False)
    eos_token: str | None = field(compare=False)
    bos_id: int | None = field(compare=False)
    bos_token: str | None = field(compare=False)
    stored: StoredOutput = field(compare=False, repr=False)
    """The tokenizer's output in the store."""
    trust_remote_code: bool = False
    """True if Python code that was saved with it may run. A store cannot allow it: whoever opens
    the tokenizer does, by a dataset's YAML or on the command line."""
    verdict: str | None = None
    """The fault of gigatoken with it, so that the reference makes all its tokens; None where
    nothing is known."""

    def __post_init__(self) -> None:
        """Fetch its files."""
        self.stored.fetch()

    def ask_for_files(self) -> None:
        """Have its files compared, as all that something is made from; what is read of them is kept
        in this process."""
        for name in self.manifest.files:
            self.stored.file(name)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return partial(Tokenizer, **fields), ()  # on another machine its files come again

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The little-endian type that holds every id: uint16 up to id 65,535, else uint32."""
        return np.dtype("<u2") if self.vocab_size <= 65_536 else np.dtype("<u4")


def tokenizer_of(stored: StoredOutput, *, trust_remote_code: bool = False) -> Tokenizer:
    """Return the tokenizer that is in a store, with its files."""
    manifest, folder = stored.manifest, stored.folder
    fingerprint = manifest.details["tokenizer_fingerprint"]
    return Tokenizer(
        folder=folder,
        fingerprint=fingerprint,
        vocab_size=manifest.counts["vocab_size"],
        stored=stored,
        trust_remote_code=trust_remote_code,
        verdict=read_verdict(folder, fingerprint),
        **{name: manifest.details[name] for name in _SPECIAL},
    )


def content_fingerprint(
    details: Mapping[str, Any], files: Mapping[str, FileEntry], *, version: int
) -> str:
    """Return the fingerprint of a tokenizer: of its files and special ids, whatever their origin.
    Its stop tokens are in the recipes of chats, and not in it.

    `version` is that of the stage which wrote the files.
    """
    content = Recipe(
        stage="tokenizer files",
        version=version,
        config={name: details[name] for name in _SPECIAL},
        parents={name: entry.sha256 for name, entry in files.items() if name != GENERATION_NAME},
    )
    return content.fingerprint


_SPECIAL = ("kind", "special_tokens", "eos_token", "eos_id", "bos_token", "bos_id")


def check_content(manifest: Manifest, folder: Path) -> None:
    """Make sure that what a tokenizer's manifest says of its files is what it was made from.

    Files copied from this disk must have the checksums that are in the recipe, which the dataset's
    config and those files decide; any tokenizer must have the fingerprint of its files and special
    ids. What was fetched from the hub cannot be told from what somebody put in its place together
    with a new fingerprint: the recipe names the hub id and the revision, and no checksums. But
    other tokens are expected then, for a shard's recipe holds that fingerprint.

    Raises: CorruptOutputError.
    """
    found = {name: entry.sha256 for name, entry in manifest.files.items()}
    expected = manifest.recipe.parents if _holds_copies(manifest) else found
    for name, sha256 in found.items():
        if sha256 != expected.get(name, sha256) or sha256 not in expected.values():
            raise _other_content(folder / name, "the checksum that its recipe has", "another")
    if len(found) != len(expected):
        raise _other_content(folder, f"{len(expected)} files, as its recipe has", str(len(found)))
    fingerprint = content_fingerprint(
        manifest.details, manifest.files, version=manifest.recipe.version
    )
    named = str(manifest.details["tokenizer_fingerprint"])
    if named != fingerprint:
        wanted = f"the fingerprint {fingerprint[:16]}… of its files and special ids"
        raise _other_content(folder, wanted, f"{named[:16]}…")


def _holds_copies(manifest: Manifest) -> bool:
    """Return whether a tokenizer's files are copies of those whose checksums its recipe has.

    They are not where a tokenizer.json was made of them, or ranks of tiktoken were written anew.
    """
    kind, parents = manifest.recipe.config.get("kind"), manifest.recipe.parents
    if kind == "huggingface":
        made = {"tokenizer.json", RANKS_NAME} & manifest.files.keys()
        is_made = bool(made - parents.keys())
        return bool(parents) and not is_made
    return kind in ("file", "sentencepiece")


def _other_content(where: Path, expected: str, found: str) -> CorruptOutputError:
    remedy = "remove the tokenizer's folder and run `tokflow run` again"
    return CorruptOutputError(where=where, expected=expected, found=found, remedy=remedy)


def write_ranks(ranks: Mapping[bytes, int], path: Path) -> None:
    """Write tiktoken's ranks in its own text format: base64 of the token, a space, the rank."""
    lines = sorted(ranks.items(), key=lambda item: item[1])
    with path.open("wb") as file:
        file.writelines(
            b"%s %d\n" % (b2a_base64(token, newline=False), rank) for token, rank in lines
        )


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return the ranks that `write_ranks` wrote."""
    pairs = map(bytes.split, path.read_bytes().splitlines())
    return {a2b_base64(token): int(rank) for token, rank in pairs}


def some_names(ids: Mapping[str, int]) -> str:
    """Return the first twelve names, in the order of their ids, on one line."""
    names = [repr(name) for name in sorted(ids, key=lambda name: ids[name])]
    return ", ".join(shortened(names, 12)) or "(none)"


def write_encoding(
    folder: Path,
    ranks: Mapping[bytes, int],
    *,
    name: str,
    pattern: str,
    special_tokens: Mapping[str, int],
) -> None:
    """Save an encoding of tiktoken in `folder`: its ranks, and encoding.json with the rest."""
    write_ranks(ranks, folder / RANKS_NAME)
    fields = {"name": name, "pattern": pattern, "special_tokens": dict(special_tokens)}
    (folder / "encoding.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")


def read_encoding(folder: Path) -> dict[str, Any]:
    """Return name, pattern and special tokens of the tiktoken encoding saved in `folder`."""
    return msgspec.json.decode((folder / "encoding.json").read_bytes(), type=dict[str, Any])


def scan_tokenizer_json(folder: Path) -> dict[str, Any]:
    """Return the tokenizer.json saved in `folder`, with vocabulary and merges as JSON that is not
    decoded (`msgspec.Raw`); empty where a tokenizer has none.

    They are nearly all of the file: 128,000 ids take 30 ms, and 230 ms when they are decoded.

    Raises: CorruptOutputError where it is not JSON.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return {}
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        model = msgspec.json.decode(raw.pop("model", b"{}"), type=dict[str, msgspec.Raw])
        fields = {name: msgspec.json.decode(json) for name, json in raw.items()}
        fields["model"] = {
            name: json if name in ("vocab", "merges") else msgspec.json.decode(json)
            for name, json in model.items()
        }
    except msgspec.MsgspecError as error:
        raise damaged(path, "JSON", str(error)) from error
    return fields


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """A tokenizer with the config and the ids that end and begin documents."""

    config: TokenizerConfig
    tokenizer: Tokenizer
    bos_id: int | None
    """Begins each document; None where nothing does."""
    eos_id: int | None
    """Ends each document; None where nothing does."""


def in_text_of(documents: DocumentsConfig, special_tokens_in_text: SpecialTokensInText) -> InText:
    """Return the treatment of special tokens in the text of documents by an engine.

    A chat template writes control tokens in it, whatever becomes of those that messages spell.
    """
    if documents.is_rendered or special_tokens_in_text == "control":
        return "control"
    return "ordinary"


def resolve_encoding(config: TokenizerConfig, tokenizer: Tokenizer) -> Encoding:
    """Return the encoding that `config` asks for with `tokenizer`.

    Raises: TokenizerError with the choices where the tokenizer has no such EOS or BOS.
    """
    asked = {"bos": tokenizer.bos_id} if config.bos == "first" else {}
    asked |= {"eos": tokenizer.eos_id} if config.eos == "last" else {}
    for role, id_ in asked.items():
        if id_ is None:
            raise TokenizerError(
                where=f"tokenizer.{role}",
                expected=f"a tokenizer that names its {role.upper()}",
                found=f"none; its special tokens are {some_names(tokenizer.special_tokens)}",
                remedy=f"set tokenizer.{role}_token to one of them, or tokenizer.{role}: none",
            )
    bos_id, eos_id = asked.get("bos"), asked.get("eos")
    return Encoding(config=config, tokenizer=tokenizer, bos_id=bos_id, eos_id=eos_id)
