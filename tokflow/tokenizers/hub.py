"""Tokenizers that are published: their files taken from the hub or a folder, and made ready."""

import fnmatch
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokflow.errors import TokenizerError
from tokflow.tokenizers.engines.awkward_strings import AWKWARD_STRINGS
from tokflow.tokenizers.engines.transformers_ import load_pretrained, without_advice
from tokflow.tokenizers.model_files import find_other_pieces, model_file_in, open_model
from tokflow.tokenizers.vocabulary import (
    ADDED_TOKENS_NAME,
    SPECIAL_MAP_NAME,
    class_name,
    read_config,
    shown,
)

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerBase

HUB_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    SPECIAL_MAP_NAME,
    ADDED_TOKENS_NAME,
    "chat_template.jinja",
)
"""Files taken from a hub id or a folder; all that a tokenizer needs."""

TOKENIZER_FILES = (
    "tokenizer*.json",
    SPECIAL_MAP_NAME,
    ADDED_TOKENS_NAME,
    "chat_template.jinja",
    "config.json",
    "vocab.*",
    "merges.txt",
    "dict.txt",
    "bpe.codes",
    "*.model",
    "*.spm",
    "*.tiktoken",
)
"""Files taken where there is no tokenizer.json: names that transformers' classes know, and no
weights. Code comes along only where it may run."""


def download_tokenizer(
    name: str, revision: str | None, folder: Path, *, trust_remote_code: bool
) -> str:
    """Copy the tokenizer's files from the hub; return the commit they are of."""
    import huggingface_hub

    try:
        info = huggingface_hub.HfApi().model_info(name, revision=revision)
        commit = str(info.sha)
        published = [file.rfilename for file in info.siblings or ()]
        for file in files_to_take(published, trust_remote_code=trust_remote_code):
            path = huggingface_hub.hf_hub_download(name, file, revision=commit)
            (folder / file).write_bytes(Path(path).read_bytes())
    except Exception as error:
        raise TokenizerError(
            where=f"tokenizer.name: {name}",
            expected="a hub id that can be reached, or an existing local folder",
            found=shown(error),
            remedy="correct the name or the revision, log in with `hf auth login` for a "
            "private one, or name a folder that holds its files",
        ) from error
    return commit


def files_to_take(published: Iterable[str], *, trust_remote_code: bool) -> list[str]:
    """Return which of the files of a repository or folder make its tokenizer, sorted."""
    names = sorted(published)
    if "tokenizer.json" in names:
        return [name for name in names if name in HUB_FILES]
    patterns = (*TOKENIZER_FILES, *(("*.py",) if trust_remote_code else ()))
    return [
        name
        for name in names
        if "/" not in name and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def make_with_transformers(folder: Path, *, name: str, trust_remote_code: bool) -> None:
    """Let transformers load the files in `folder`, and make a tokenizer.json of them if it can.

    Where the class has a fast backend that gives the same tokens as the class on all awkward
    strings, `folder` holds a tokenizer.json in place of the other files afterwards. Where it has
    none the files stay as they are, and transformers loads them again for each run.

    Raises: TokenizerError.
    """
    try:
        loaded = load_pretrained(folder, trust_remote_code=trust_remote_code)
        backend = getattr(loaded, "backend_tokenizer", None)
        # Code of its own may do anything, and is asked each time.
        is_known = type(loaded).__module__.startswith("transformers.")
        is_fast = is_known and backend is not None and find_difference(loaded, backend) is None
    except Exception as error:
        raise TokenizerError(
            where=f"tokenizer.name: {name}",
            expected="a tokenizer.json, or files that transformers can load",
            found=f"{', '.join(sorted(path.name for path in folder.iterdir())) or '(none)'}: "
            f"{shown(error)}",
            remedy="name a tokenizer that transformers.AutoTokenizer loads",
        ) from error
    _check_pieces(loaded, folder, name)
    if is_fast:
        _save_fast(loaded, folder)


def _check_pieces(loaded: "PreTrainedTokenizerBase", folder: Path, name: str) -> None:
    """Refuse a conversion of transformers that cuts text otherwise than its SentencePiece model."""
    path = model_file_in(folder)
    processor = None if path is None else open_model(path)
    difference = None if processor is None else find_other_pieces(loaded, processor)
    if difference is not None and path is not None:
        text, found, expected = difference
        raise TokenizerError(
            where=f"tokenizer.name: {name}",
            expected=f"the pieces of {path.name}: {text[:40]!r} becomes {expected[:8]}",
            found=f"{found[:8]} by {type(loaded).__name__} of the transformers that is installed",
            remedy="save a tokenizer.json with the version of transformers that the model was "
            "trained with, and name its folder",
        )


def find_difference(
    loaded: "PreTrainedTokenizerBase", backend: "tokenizers.Tokenizer"
) -> tuple[str, list[int], list[int]] | None:
    """Return the first awkward string of which a class gives other ids than a fast backend, with
    the ids of both; None where there is none."""
    strings = list(AWKWARD_STRINGS)
    encodings = backend.encode_batch(strings, add_special_tokens=False)
    for text, encoding in zip(strings, encodings, strict=True):
        found = list(loaded.encode(text, add_special_tokens=False))
        if found != encoding.ids:
            return text, found, encoding.ids
    return None


def _save_fast(loaded: Any, folder: Path) -> None:
    """Save the backend, the names of EOS and BOS, and keep what else a tokenizer.json needs."""
    ends = {role: getattr(loaded, role) for role in ("eos_token", "bos_token")}
    fields = {**read_config(folder), **ends}
    for path in folder.iterdir():
        if path.name not in HUB_FILES or path.name == ADDED_TOKENS_NAME:
            path.unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")
    loaded.backend_tokenizer.save(str(folder / "tokenizer.json"))


def refuse_code(folder: Path, *, name: str, trust_remote_code: bool) -> None:
    """Stop where a tokenizer is code that may not run, or code that is published elsewhere.

    Raises: TokenizerError.
    """
    reference = _class_reference(folder)
    if reference is None:
        return
    if not trust_remote_code and not _is_known_class(folder):
        raise TokenizerError(
            where=f"tokenizer.trust_remote_code: {name}",
            expected=f"true, for this tokenizer is Python code, {reference}, that was "
            "published with it and would run on this machine with your rights",
            found="false",
            remedy="read that code and set `trust_remote_code: true` if you want to run it, "
            "or name a tokenizer that has a tokenizer.json",
        )
    if trust_remote_code and "--" in reference:
        raise TokenizerError(
            where=f"tokenizer.name: {name}",
            expected="code that is published beside the tokenizer, so that it can be kept",
            found=f"a reference to another repository, {reference}",
            remedy="copy tokenizer and code into one folder, write the class in its "
            "tokenizer_config.json without the repository, and name the folder",
        )


def _class_reference(folder: Path) -> str | None:
    """Return the class `module.Class` that the config asks to be loaded from code, if any."""
    classes = read_config(folder).get("auto_map")
    classes = classes.get("AutoTokenizer") if isinstance(classes, dict) else classes
    return next((str(found) for found in reversed(classes or []) if found), None)


def _is_known_class(folder: Path) -> bool:
    """Return whether transformers has a class of its own with the name that the config gives."""
    without_advice()
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    name = class_name(folder)
    return bool(name) and tokenizer_class_from_name(name) is not None
