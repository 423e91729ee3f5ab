"""The vocabulary in a tokenizer's files: how many ids, which tokens are special, EOS and BOS."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from tokflow.errors import TokenizerError
from tokflow.tokenizers.engines.reference import load_tokenizer_json
from tokflow.tokenizers.engines.sentencepiece_ import MODEL_NAME, control_symbols, load_processor
from tokflow.tokenizers.engines.transformers_ import holds_code, load_pretrained, special_tokens
from tokflow.tokenizers.tokenizer import (
    END_OF_TEXT,
    RANKS_NAME,
    Kind,
    read_encoding,
    read_ranks,
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
    named_tokens: Mapping[str, int]
    """The tokens that are made to be EOS or BOS: the special ones and any other added token."""
    find: Callable[[str], int | None]
    """The id of any token of the vocabulary by its name there, None where it has none."""
    eos_token: str | None
    bos_token: str | None
    kind: Kind | None = None
    """The kind of its files, where it is not that of the config."""
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Facts of its making: a hub's commit, how much text was trained on."""

    def with_roles_of(self, folder: Path, kind: Kind) -> "Facts":
        """Return them as those of another kind, with the EOS and BOS that config files name."""
        roles = names_of_roles(folder, ("eos_token", "bos_token"))
        return dataclasses.replace(
            self,
            kind=kind,
            eos_token=roles.get("eos_token", self.eos_token),
            bos_token=roles.get("bos_token", self.bos_token),
        )

    def id_of(self, role: Literal["eos", "bos"], token: str | None) -> int | None:
        """Return the id of the token named for a role, None where none is named.

        Raises: TokenizerError with the choices where the name is not in the vocabulary.
        """
        found = None if token is None else self.named_tokens.get(token, self.find(token))
        if token is None or found is not None:
            return found
        raise TokenizerError(
            where=f"tokenizer.{role}_token",
            expected=f"one of {some_names(self.named_tokens)}",
            found=repr(token),
            remedy="name a token of the vocabulary",
        )


def facts_of_json(folder: Path, *, origin: Mapping[str, Any] | None = None) -> Facts:
    """Read from tokenizer.json and what stands beside it which ids and names there are."""
    try:
        loaded = load_tokenizer_json((folder / "tokenizer.json").read_bytes(), "ordinary")
    except Exception as error:  # the library raises no narrower type
        raise TokenizerError(
            where="tokenizer.json",
            expected="the JSON of a Hugging Face fast tokenizer",
            found=shown(error),
            remedy="save it with `tokenizer.save(path)` of the tokenizers library",
        ) from error
    added = loaded.get_added_tokens_decoder().items()
    names = names_of_roles(folder, ("eos_token", "bos_token"))
    return Facts(
        vocab_size=max(loaded.get_vocab().values(), default=0) + 1,
        special_tokens={token.content: id_ for id_, token in added if token.special},
        named_tokens={token.content: id_ for id_, token in added},
        find=loaded.token_to_id,
        eos_token=names.get("eos_token"),
        bos_token=names.get("bos_token"),
        origin=origin or {},
    )


def facts_of_sentencepiece(folder: Path) -> Facts:
    """Read from the .model which ids and names there are.

    Raises: ValueError where it is no model.
    """
    processor = load_processor((folder / MODEL_NAME).read_bytes())
    special = control_symbols(processor)
    names = {id_: processor.id_to_piece(id_) for id_ in range(processor.get_piece_size())}
    return Facts(
        vocab_size=len(names),
        special_tokens=special,
        named_tokens=special,
        find={name: id_ for id_, name in names.items()}.get,
        eos_token=names.get(processor.eos_id()),
        bos_token=names.get(processor.bos_id()),
    )


def facts_of_tiktoken(folder: Path) -> Facts:
    """Read from the ranks and encoding.json which ids and names there are."""
    ranks, special = read_ranks(folder / RANKS_NAME), read_encoding(folder)["special_tokens"]
    return Facts(
        vocab_size=max([*ranks.values(), *special.values()], default=-1) + 1,
        special_tokens=special,
        named_tokens=special,
        find=lambda name: ranks.get(name.encode()),
        eos_token=END_OF_TEXT if END_OF_TEXT in special else None,
        bos_token=None,
    )


def facts_of_transformers(
    folder: Path, *, trust_remote_code: bool, origin: Mapping[str, Any]
) -> Facts:
    """Ask the class that only transformers can load which ids and names there are."""
    loaded = load_pretrained(folder, trust_remote_code=trust_remote_code)
    vocab = {str(token): int(token_id) for token, token_id in loaded.get_vocab().items()}
    special = special_tokens(loaded)
    added = {str(token): int(token_id) for token, token_id in loaded.get_added_vocab().items()}
    return Facts(
        vocab_size=max([*vocab.values(), *added.values(), *special.values()], default=0) + 1,
        special_tokens=special,
        named_tokens={**added, **special},
        find=vocab.get,
        eos_token=loaded.eos_token,
        bos_token=loaded.bos_token,
        origin={**origin, "class": type(loaded).__name__, "runs_own_code": holds_code(folder)},
    )


def names_of_roles(folder: Path, roles: Sequence[str]) -> dict[str, str]:
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
    """Return the name of a token that a config file spells, as a string or with its flags."""
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
        raise TokenizerError(
            where=name,
            expected="the JSON object that names the tokenizer's EOS and BOS",
            found=shown(error),
            remedy="fix the file or remove it",
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
