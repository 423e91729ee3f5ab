"""The vocabulary in a tokenizer's files: its ids, special tokens, EOS and BOS, and their bytes."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from tokflow.errors import TokenizerError
from tokflow.store.integrity import clear_when_damaged
from tokflow.tokenizers import BYTE_LETTERS, flat_steps
from tokflow.tokenizers.engines.hugging_face import (
    holds_code,
    load_pretrained,
    load_tokenizer_json,
    special_tokens,
)
from tokflow.tokenizers.engines.reference import MODEL_NAME, SPACE, control_symbols, load_processor
from tokflow.tokenizers.tokenizer import (
    BYTES_ENDS,
    END_OF_TEXT,
    RANKS_NAME,
    Kind,
    Tokenizer,
    TokenizerConfig,
    read_encoding,
    read_ranks,
    scan_tokenizer_json,
    some_names,
)

SPECIAL_MAP_NAME = "special_tokens_map.json"

ADDED_TOKENS_NAME = "added_tokens.json"

AS_THEY_STAND = ("", "PreTrainedTokenizer", "TokenizersBackend")
"""Classes of transformers that take tokenizer.json as it is."""

ERROR_LENGTH = 600
"""Characters of another library's error that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Ids and names of a tokenizer whose files were written."""

    vocab_size: int
    special_tokens: Mapping[str, int]
    find: Callable[[str], int | None]
    """The id of any token of the vocabulary by its name there, None where it has none."""
    eos_token: str | None
    bos_token: str | None
    kind: Kind | None = None
    """The kind of its files, where it is not that of the config."""
    added_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Tokens that are made to be EOS or BOS, as the special ones are: any other added token."""
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Facts of its making: a hub's commit, how much text was trained on."""

    def id_of(self, role: Literal["eos", "bos"], token: str | None) -> int | None:
        """Return the id of the token named for a role, None where none is named.

        Raises: TokenizerError with the choices where the name is not in the vocabulary.
        """
        named = {**self.added_tokens, **self.special_tokens}
        found = None if token is None else named.get(token, self.find(token))
        if token is None or found is not None:
            return found
        where = f"tokenizer.{role}_token"
        expected = f"one of {some_names(named)}"
        remedy = "name a token of the vocabulary"
        raise TokenizerError(where=where, expected=expected, found=repr(token), remedy=remedy)


def facts_of_json(folder: Path, origin: Mapping[str, Any]) -> Facts:
    """Read from tokenizer.json and what stands beside it which ids and names there are."""
    try:
        loaded = load_tokenizer_json((folder / "tokenizer.json").read_bytes(), "ordinary")
    except TokenizerError:
        raise
    except Exception as error:  # the library raises no narrower type
        raise TokenizerError(
            where="tokenizer.json",
            expected="the JSON of a Hugging Face fast tokenizer",
            found=shown(error),
            remedy="save it with `tokenizer.save(path)` of the tokenizers library",
        ) from error
    added = loaded.added_tokens()
    roles = names_of_roles(folder)
    return Facts(
        vocab_size=max((*loaded.vocabulary().values(), *added), default=0) + 1,
        special_tokens={token.content: id_ for id_, token in added.items() if token.special},
        added_tokens={token.content: id_ for id_, token in added.items()},
        find=loaded.id_in_model,
        eos_token=roles.get("eos_token"),
        bos_token=roles.get("bos_token"),
        origin=origin,
    )


def facts_of_sentencepiece(folder: Path) -> Facts:
    """Return the ids and names of a .model; EOS and BOS are those of config files beside it.

    Raises: ValueError where it is no model.
    """
    processor = load_processor((folder / MODEL_NAME).read_bytes())
    special, roles = control_symbols(processor), names_of_roles(folder)
    names = {id_: processor.id_to_piece(id_) for id_ in range(processor.get_piece_size())}
    return Facts(
        vocab_size=len(names),
        special_tokens=special,
        find={name: id_ for id_, name in names.items()}.get,
        eos_token=roles.get("eos_token", names.get(processor.eos_id())),
        bos_token=roles.get("bos_token", names.get(processor.bos_id())),
        kind="sentencepiece",
    )


def facts_of_tiktoken(folder: Path) -> Facts:
    """Return the ids and names of ranks and encoding.json; EOS and BOS are those of config files
    beside them."""
    ranks, special = read_ranks(folder / RANKS_NAME), read_encoding(folder)["special_tokens"]
    roles = names_of_roles(folder)
    return Facts(
        vocab_size=max([*ranks.values(), *special.values()], default=-1) + 1,
        special_tokens=special,
        find=lambda name: ranks.get(name.encode()),
        eos_token=roles.get("eos_token", END_OF_TEXT if END_OF_TEXT in special else None),
        bos_token=roles.get("bos_token"),
        kind="tiktoken",
    )


def facts_of_transformers(
    folder: Path, config: TokenizerConfig, origin: Mapping[str, Any]
) -> Facts:
    """Ask the class that only transformers can load which ids and names there are."""
    loaded = load_pretrained(folder, trust_remote_code=config.trust_remote_code)
    vocab = {str(token): int(token_id) for token, token_id in loaded.get_vocab().items()}
    special = special_tokens(loaded)
    added = {str(token): int(token_id) for token, token_id in loaded.get_added_vocab().items()}
    return Facts(
        vocab_size=max([*vocab.values(), *added.values(), *special.values()], default=0) + 1,
        special_tokens=special,
        added_tokens=added,
        find=vocab.get,
        eos_token=loaded.eos_token,
        bos_token=loaded.bos_token,
        origin={**origin, "class": type(loaded).__name__, "runs_own_code": holds_code(folder)},
    )


def names_of_roles(
    folder: Path, roles: Sequence[str] = ("eos_token", "bos_token")
) -> dict[str, str]:
    """Return the tokens that a tokenizer's config files name for some of `roles`."""
    fields = special_fields(folder)
    named = ((role, content_of(fields.get(role))) for role in roles)
    return {role: name for role, name in named if name is not None}


def special_fields(folder: Path) -> dict[str, Any]:
    """Return the fields of tokenizer_config.json and, where that lists no added tokens, those of
    special_tokens_map.json over them, as AutoTokenizer takes them."""
    config = read_config(folder)
    is_legacy = "added_tokens_decoder" not in config
    return {**config, **(read_config(folder, SPECIAL_MAP_NAME) if is_legacy else {})}


def listed_tokens(folder: Path) -> Iterator[tuple[str, int | None, object]]:
    """Yield the tokens that the files beside a vocabulary name: name, id if one stands there, and
    how it is spelled, as a string or with its flags."""
    fields = special_fields(folder)
    decoder = fields.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        for id_, token in decoder.items():
            yield content_of(token) or "", int(id_) if id_.isdecimal() else None, token
    elif decoder is None:
        for name, id_ in read_config(folder, ADDED_TOKENS_NAME).items():
            yield name, id_ if isinstance(id_, int) else None, name
    for key, value in fields.items():
        several = value if isinstance(value, list) else [value]
        if isinstance(value, dict) and key == "extra_special_tokens":
            several = list(value.values())
        for token in several if key.endswith(("_token", "special_tokens")) else ():
            named = content_of(token)
            if named is not None:
                yield named, None, token


def content_of(token: object) -> str | None:
    """Return the name of a token in a config file, which has it as a string or with its flags."""
    name = token.get("content") if isinstance(token, dict) else token
    return name if name and isinstance(name, str) else None


def read_config(folder: Path, name: str = "tokenizer_config.json") -> dict[str, Any]:
    """Return the fields of a config file in a tokenizer's folder; empty where there is none.

    Raises: TokenizerError where it is no JSON object.
    """
    path = folder / name
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.is_file() else {}
    except msgspec.DecodeError as error:
        expected = "the JSON object that names the tokenizer's EOS and BOS"
        raise TokenizerError(
            where=name, expected=expected, found=shown(error), remedy="fix the file or remove it"
        ) from error


def class_name(folder: Path) -> str:
    """Return the class that tokenizer_config.json names, without `Fast`; empty where none is."""
    return str(read_config(folder).get("tokenizer_class") or "").removesuffix("Fast")


def shown(error: Exception) -> str:
    """Return the type and the message of an error of another library, in one line."""
    message = " ".join(str(error).split())
    if len(message) > ERROR_LENGTH:
        message = f"{message[:ERROR_LENGTH]}…"
    return f"{type(error).__name__}: {message}"


@lru_cache(maxsize=8)
def added_tokens(tokenizer: Tokenizer) -> Mapping[str, int]:
    """Return name to id of the tokens that were added to a vocabulary, special or not; kept for the
    next call, for chats ask at each file and the vocabulary beside them is large."""
    fields = scan_tokenizer_json(tokenizer.folder).get("added_tokens") or []
    return {token["content"]: token["id"] for token in fields}


clear_when_damaged.append(added_tokens.cache_clear)


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return name to id of what an engine that takes control tokens finds in a text.

    The special tokens, and EOS and BOS where they were added to the vocabulary without being
    called special. An EOS that is a word of the vocabulary, such as a full stop, is none: a text
    that has the word is plain in every way to encode it.
    """
    added = added_tokens(tokenizer)
    ends = {tokenizer.eos_token: tokenizer.eos_id, tokenizer.bos_token: tokenizer.bos_id}
    found = {token: id_ for token, id_ in ends.items() if token and token in added}
    named = {**found, **tokenizer.special_tokens}
    return {token: id_ for token, id_ in named.items() if token and id_ is not None}


@lru_cache(maxsize=8)
def id_of_unknown(tokenizer: Tokenizer) -> int | None:
    """Return the id of what the vocabulary has no token for, also where it is EOS or BOS; kept for
    the next call."""
    if tokenizer.kind == "sentencepiece":
        return int(load_processor((tokenizer.folder / MODEL_NAME).read_bytes()).unk_id())
    model = scan_tokenizer_json(tokenizer.folder).get("model")
    if model is None:
        named = names_of_roles(tokenizer.folder, ["unk_token"]).get("unk_token", "")
        return tokenizer.special_tokens.get(named)
    if isinstance(index := model.get("unk_id"), int):  # Unigram
        return index
    name = str(model.get("unk_token"))
    if name in tokenizer.special_tokens or "vocab" not in model:
        return tokenizer.special_tokens.get(name)
    vocab = msgspec.json.decode(model["vocab"])
    return vocab.get(name) if isinstance(vocab, dict) else None


clear_when_damaged.append(id_of_unknown.cache_clear)


BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: Tokenizer) -> list[bytes | None] | None:
    """Return the bytes of each id of a tokenizer, special tokens as their names; None for an id
    that no token has.

    The bytes of a document's tokens, BOS and EOS left out, are its text in UTF-8, unless the
    tokenizer normalises; a tokenizer that marks words by SentencePiece's ▁ may have a space before
    them. None of a tokenizer whose tokens are not pieces of the text, such as WordPiece, and of
    one without tokenizer.json: nothing of what was published with it is run.
    """
    if tokenizer.kind == "bytes":
        return [BYTES_ENDS.get(id_) or bytes([id_]) for id_ in range(tokenizer.vocab_size)]
    if tokenizer.kind == "tiktoken":
        ranks, special = read_ranks(tokenizer.folder / RANKS_NAME), tokenizer.special_tokens
        names_of_ids = {id_: token for token, id_ in ranks.items()}
        names_of_ids |= {id_: name.encode() for name, id_ in special.items()}
        return [names_of_ids.get(id_) for id_ in range(tokenizer.vocab_size)]
    if tokenizer.kind == "sentencepiece":
        processor = load_processor((tokenizer.folder / MODEL_NAME).read_bytes())
        names = {id_: name.encode() for name, id_ in control_symbols(processor).items()}
        ids = range(processor.get_piece_size())
        return [names.get(id_) or _of_piece(processor.id_to_piece(id_)) for id_ in ids]
    decoder = scan_tokenizer_json(tokenizer.folder).get("decoder")
    types = {step["type"] for step in flat_steps(decoder, "decoders")}
    if "ByteLevel" not in types and not types & {"ByteFallback", "Metaspace"}:
        return None
    loaded = load_tokenizer_json((tokenizer.folder / "tokenizer.json").read_bytes(), "ordinary")
    vocabulary, added = loaded.vocabulary(), loaded.added_tokens()
    byte_of = str.maketrans(dict(zip(BYTE_LETTERS, map(chr, range(256)), strict=True)))
    known = set(BYTE_LETTERS)
    found: list[bytes | None] = [None] * (max((*vocabulary.values(), *added), default=-1) + 1)
    for token, id_ in vocabulary.items():
        if "ByteLevel" not in types:
            found[id_] = _of_piece(token)
        elif known.issuperset(token):
            found[id_] = token.translate(byte_of).encode("latin-1")
        else:
            found[id_] = token.encode()
    for id_, of in added.items():
        found[id_] = of.content.encode()
    return found


def _of_piece(piece: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()
