"""Where tokenizers come from: each kind writes its files into a folder of the store."""

import dataclasses
import fnmatch
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tokflow.documents import DocumentsConfig, deciding_fields
from tokflow.engines.reference import load_tokenizer_json
from tokflow.errors import TokenizerError, four_parts
from tokflow.manifest import Manifest, checksum, checksums, fingerprint, write_manifest
from tokflow.raw import RawFile
from tokflow.tokenizer import (
    BYTES_BOS_ID,
    BYTES_EOS_ID,
    END_OF_TEXT,
    Kind,
    TokenizerConfig,
    special_id,
    write_ranks,
)
from tokflow.tokenizer_hub import (
    HUB_FILES,
    convert_with_transformers,
    download_tokenizer,
    shown,
)
from tokflow.training import train_tokenizer

TOKENIZER_VERSION = 1
"""Raised when the same origin would be saved as other bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """All that a tokenizer is made from."""

    config: TokenizerConfig
    base: Path
    """Folder that relative paths in the config start from."""
    raw_files: Mapping[str, RawFile]
    """For kind trained: the raw files it is trained on, by key, sorted."""
    documents: DocumentsConfig
    """For kind trained: how their documents are read."""

    @property
    def local_path(self) -> Path | None:
        """The file or folder on this disk that `config.name` leads to, if any."""
        if self.config.kind not in ("file", "huggingface"):
            return None
        return self.path if self.path.exists() or self.config.kind == "file" else None

    @property
    def path(self) -> Path:
        """Where `config.name` leads to if it is a path."""
        return self.base / Path(str(self.config.name)).expanduser()


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a kind learnt about the tokenizer whose files it wrote."""

    vocab_size: int
    special_tokens: Mapping[str, int]
    named_tokens: Mapping[str, int]
    """Every token that may be EOS or BOS: the special ones and any other added token."""
    eos_token: str | None
    bos_token: str | None
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What was fetched from where: a hub's commit, how much text was trained on."""


def select_training_keys(config: TokenizerConfig, keys: list[str]) -> list[str]:
    """Return the keys of the raw files a trained tokenizer reads; none for other kinds.

    Raises: TokenizerError where the pattern matches no key.
    """
    if config.kind != "trained":
        return []
    selected = [key for key in keys if config.files is None or fnmatch.fnmatch(key, config.files)]
    if not selected:
        raise TokenizerError(
            four_parts(
                where="tokenizer.files",
                expected="a pattern that matches a raw file",
                found=f"{config.files!r}, and the raw files are {', '.join(keys[:5]) or '(none)'}",
                remedy="correct the pattern; it is compared with partition keys",
            )
        )
    return selected


def tokenizer_fingerprint(origin: Origin) -> str:
    """Return the fingerprint of the folder that holds the tokenizer, known before it is made."""
    config, parents = _recipe(origin)
    return fingerprint("tokenizer", version=TOKENIZER_VERSION, config=config, parents=parents)


def write_tokenizer(origin: Origin, folder: Path, *, dataset: str) -> None:
    """Write the tokenizer's files and manifest into the empty `folder`.

    Raises: TokenizerError.
    """
    started = time.perf_counter()
    facts = KINDS[origin.config.kind](origin, folder)
    eos_token = origin.config.eos_token or facts.eos_token
    bos_token = origin.config.bos_token or facts.bos_token
    config, parents = _recipe(origin)
    files = checksums(folder)
    special = {
        "kind": origin.config.kind,
        "special_tokens": dict(facts.special_tokens),
        "eos_token": eos_token,
        "eos_id": special_id("eos", eos_token, facts.named_tokens),
        "bos_token": bos_token,
        "bos_id": special_id("bos", bos_token, facts.named_tokens),
    }
    content = fingerprint(
        "tokenizer files",
        version=TOKENIZER_VERSION,
        config=special,
        parents={name: entry.sha256 for name, entry in files.items()},
    )
    manifest = Manifest(
        stage="tokenizer",
        dataset=dataset,
        partition=None,
        version=TOKENIZER_VERSION,
        fingerprint=tokenizer_fingerprint(origin),
        parents=parents,
        config=config,
        counts={"vocab_size": facts.vocab_size},
        details={**special, "tokenizer_fingerprint": content, "origin": dict(facts.origin)},
        files=files,
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def _recipe(origin: Origin) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the config fields that decide the tokenizer, and its parents' fingerprints."""
    config = origin.config
    fields: dict[str, Any] = {
        "kind": config.kind,
        "eos_token": config.eos_token,
        "bos_token": config.bos_token,
    }
    if config.kind == "trained":
        fields["vocab_size"] = config.vocab_size
        fields["special_tokens"] = list(config.special_tokens)
        fields["max_characters"] = config.max_characters
        fields["documents"] = deciding_fields(origin.documents)
        return fields, {key: raw.sha256 for key, raw in origin.raw_files.items()}
    if (path := origin.local_path) is not None:
        return fields, {file.name: checksum(file).sha256 for file in _local_files(path)}
    if config.kind != "bytes":
        fields["name"] = config.name
    if config.kind == "huggingface":
        fields["revision"] = config.revision
    return fields, {}


def _local_files(path: Path) -> list[Path]:
    folder = path if path.is_dir() else path.parent
    files = [folder / name for name in HUB_FILES if (folder / name).is_file()]
    if path.is_file():
        beside = ("tokenizer_config.json", "chat_template.jinja")
        return [path, *(file for file in files if file.name in beside)]
    if files:
        return files if files[0].name == HUB_FILES[0] else sorted(_files_in(folder))
    if path.is_dir() and (others := sorted(_files_in(folder))):
        return others
    raise TokenizerError(
        four_parts(
            where="tokenizer.name",
            expected="an existing file, or a folder with files",
            found=f"{str(path)!r}, which is {'empty' if path.is_dir() else 'missing'}",
            remedy="correct the path; a relative one starts at the folder of the YAML file "
            "or, for a dataset under tokflow/defs, of the project",
        )
    )


def _files_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()]


def _make_bytes(origin: Origin, folder: Path) -> Facts:
    named = {"<eos>": BYTES_EOS_ID, "<bos>": BYTES_BOS_ID}
    return Facts(
        vocab_size=258,
        special_tokens={},  # no text can spell an id past 255
        named_tokens=named,
        eos_token="<eos>",
        bos_token="<bos>",
    )


def _make_tiktoken(origin: Origin, folder: Path) -> Facts:
    import tiktoken

    name = str(origin.config.name)
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:
        raise TokenizerError(
            four_parts(
                where=f"tokenizer.name: {name}",
                expected=f"one of {', '.join(tiktoken.list_encoding_names())}, "
                "and its files on the network or in TIKTOKEN_CACHE_DIR",
                found=shown(error),
                remedy="correct the name, or fetch the files once where there is a network; "
                "later runs use the copy in the store",
            )
        ) from error
    special_tokens = dict(encoding._special_tokens)
    write_ranks(encoding._mergeable_ranks, folder / "ranks.tiktoken")
    fields = {
        "name": encoding.name,
        "pattern": encoding._pat_str,
        "special_tokens": special_tokens,
    }
    (folder / "encoding.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")
    return Facts(
        vocab_size=encoding.max_token_value + 1,
        special_tokens=special_tokens,
        named_tokens=special_tokens,
        eos_token=END_OF_TEXT if END_OF_TEXT in special_tokens else None,
        bos_token=None,
    )


def _make_from_file(origin: Origin, folder: Path) -> Facts:
    path, *config_files = _local_files(origin.path)
    if origin.path.is_dir() and path.name != "tokenizer.json":
        raise TokenizerError(
            four_parts(
                where=f"tokenizer.name: {origin.config.name}",
                expected="a tokenizer.json, or a folder that holds one",
                found="a folder without",
                remedy="set tokenizer.kind: huggingface, which converts what else is there",
            )
        )
    (folder / "tokenizer.json").write_bytes(path.read_bytes())
    for config_file in config_files:
        (folder / config_file.name).write_bytes(config_file.read_bytes())
    return _facts_of_json(folder)


def _make_huggingface(origin: Origin, folder: Path) -> Facts:
    if (path := origin.local_path) is not None:
        for file in _local_files(path):
            if file.name in HUB_FILES:
                (folder / file.name).write_bytes(file.read_bytes())
        if not (folder / "tokenizer.json").is_file():
            convert_with_transformers(str(path), None, folder)
        return _facts_of_json(folder)
    commit = download_tokenizer(str(origin.config.name), origin.config.revision, folder)
    if not (folder / "tokenizer.json").is_file():
        convert_with_transformers(str(origin.config.name), commit, folder)
    return _facts_of_json(folder, origin={"hub_id": origin.config.name, "commit": commit})


def _make_trained(origin: Origin, folder: Path) -> Facts:
    trained_on = train_tokenizer(
        origin.raw_files,
        origin.documents,
        vocab_size=origin.config.vocab_size,
        special_tokens=origin.config.special_tokens,
        max_characters=origin.config.max_characters,
        path=folder / "tokenizer.json",
    )
    facts = _facts_of_json(folder, origin=trained_on)
    first = next(iter(origin.config.special_tokens), None)
    return dataclasses.replace(facts, eos_token=first)


def _facts_of_json(folder: Path, *, origin: Mapping[str, Any] | None = None) -> Facts:
    """Read from tokenizer.json and what stands beside it which ids and names there are."""
    try:
        content = (folder / "tokenizer.json").read_bytes()
        load_tokenizer_json(content, "ordinary")
        fields = msgspec.json.decode(content)
    except Exception as error:  # the library raises no narrower type
        raise TokenizerError(
            four_parts(
                where="tokenizer.json",
                expected="the JSON of a Hugging Face fast tokenizer",
                found=shown(error),
                remedy="save it with `tokenizer.save(path)` of the tokenizers library",
            )
        ) from error
    added = {token["content"]: token for token in fields.get("added_tokens") or []}
    vocab = fields["model"]["vocab"]
    if isinstance(vocab, list):  # Unigram: pieces with their scores, in the order of their ids
        vocab = {piece: index for index, (piece, _) in enumerate(vocab)}
    ids = {name: int(token["id"]) for name, token in added.items()}
    names = _names_beside(folder)
    in_vocab = {name: vocab[name] for name in names.values() if name in vocab}
    return Facts(
        vocab_size=max([*vocab.values(), *ids.values()], default=0) + 1,
        special_tokens={name: ids[name] for name, token in added.items() if token["special"]},
        named_tokens={**in_vocab, **ids},
        eos_token=names.get("eos_token"),
        bos_token=names.get("bos_token"),
        origin=origin or {},
    )


def _names_beside(folder: Path) -> dict[str, str]:
    """Return the tokens that the tokenizer's config files name as EOS and BOS."""
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        fields = _fields_beside(folder / file)
        for role in ("eos_token", "bos_token"):
            token = fields.get(role)
            if isinstance(token, dict):
                token = token.get("content")
            if token:
                names[role] = token
    return names


def _fields_beside(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _unusable_config(path, shown(error)) from error
    if not isinstance(fields, dict):
        raise _unusable_config(path, type(fields).__name__)
    return fields


def _unusable_config(path: Path, found: str) -> TokenizerError:
    return TokenizerError(
        four_parts(
            where=path.name,
            expected="the JSON object that names the tokenizer's EOS and BOS",
            found=found,
            remedy="mend the file or remove it",
        )
    )


KINDS: dict[Kind, Callable[[Origin, Path], Facts]] = {
    "bytes": _make_bytes,
    "file": _make_from_file,
    "huggingface": _make_huggingface,
    "tiktoken": _make_tiktoken,
    "trained": _make_trained,
}
