"""Tokenizers that are published: their files taken from the hub or a folder, and made ready.

Those of one model file, SentencePiece's or tiktoken's, are read by their own libraries. What
transformers 5 converts them to gives other ids: to text with several spaces for a SentencePiece
model, and for tiktoken's ranks by a split pattern that it takes for every file.
"""

import fnmatch
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokflow.errors import TokenizerError, nearest, shortened
from tokflow.tokenizers import GPT2, GPT2_REGEX, PATTERNS, tokenizer, vocabulary
from tokflow.tokenizers.engines.gate import AWKWARD_STRINGS
from tokflow.tokenizers.engines.hugging_face import load_pretrained, without_advice
from tokflow.tokenizers.engines.reference import MODEL_NAME, SPACE, load_processor

_BESIDE = (
    *("tokenizer_config.json", vocabulary.SPECIAL_MAP_NAME, vocabulary.ADDED_TOKENS_NAME),
    *("chat_template.jinja", tokenizer.GENERATION_NAME),
)

HUB_FILES = ("tokenizer.json", *_BESIDE)
"""Files taken from a hub id or a folder; all that a tokenizer needs."""

TOKENIZER_FILES = (
    *_BESIDE,
    *("tokenizer*.json", "config.json", "vocab.*", "merges.txt", "dict.txt", "bpe.codes"),
    *("*.model", "*.spm", "*.tiktoken"),
)
"""Files taken where there is no tokenizer.json: names that transformers' classes know, and no
weights. Code comes along only where it may run."""


_SAVE_BY_ITS_OWN = (
    "save a tokenizer.json with the version of transformers that the model was trained with, and "
    "name its folder"
)


def refused_name(name: object, expected: str, found: str, remedy: str) -> TokenizerError:
    """Return the error that a tokenizer cannot be made of what `tokenizer.name` leads to."""
    return TokenizerError(
        where=f"tokenizer.name: {name}", expected=expected, found=found, remedy=remedy
    )


def download_tokenizer(config: tokenizer.TokenizerConfig, folder: Path) -> str:
    """Copy the tokenizer's files from the hub; return the commit they are of."""
    import huggingface_hub

    name = str(config.name)
    try:
        info = huggingface_hub.HfApi().model_info(name, revision=config.revision)
        commit = str(info.sha)
        published = [file.rfilename for file in info.siblings or ()]
        for file in files_to_take(published, trust_remote_code=config.trust_remote_code):
            path = huggingface_hub.hf_hub_download(name, file, revision=commit)
            (folder / file).write_bytes(Path(path).read_bytes())
    except Exception as error:
        expected = "a hub id that can be reached, or an existing local folder"
        remedy = (
            "correct the name or the revision, log in with `hf auth login` for a private one, or "
            "name a folder that holds its files"
        )
        if "/" not in name:  # few hub ids have no organisation
            import tiktoken

            encodings = tiktoken.list_encoding_names()
            expected = f"an encoding of tiktoken ({', '.join(encodings)}), {expected}"
            near = nearest(name, encodings)
            remedy = f"{near} Else {remedy}" if near else remedy
        raise refused_name(name, expected, vocabulary.shown(error), remedy) from error
    return commit


def files_to_take(published: Iterable[str], *, trust_remote_code: bool) -> list[str]:
    """Return the files of a repository or folder that its tokenizer needs, sorted."""
    names = sorted(published)
    if "tokenizer.json" in names:
        return [name for name in names if name in HUB_FILES]
    patterns = (*TOKENIZER_FILES, *(("*.py",) if trust_remote_code else ()))
    return [
        name
        for name in names
        if "/" not in name and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def make_with_transformers(folder: Path, config: tokenizer.TokenizerConfig) -> None:
    """Load the files in `folder` with transformers, and convert them to a tokenizer.json if it can.

    Where the class has a fast backend that gives the same tokens as the class on all awkward
    strings, `folder` holds a tokenizer.json in place of the other files afterwards. Where it has
    none the files stay as they are, and transformers loads them again for each run. A conversion
    that cuts text otherwise than its SentencePiece model is refused.

    Raises: TokenizerError.
    """
    try:
        loaded = load_pretrained(folder, trust_remote_code=config.trust_remote_code)
        backend: Any = getattr(loaded, "backend_tokenizer", None)
        # Code of its own may do anything, and is asked each time.
        is_known = type(loaded).__module__.startswith("transformers.")
        is_fast = is_known and backend is not None and gives_ids_of(loaded, backend)
    except Exception as error:
        raise refused_name(
            config.name,
            "a tokenizer.json, or files that transformers can load",
            f"{', '.join(sorted(path.name for path in folder.iterdir())) or '(none)'}: "
            f"{vocabulary.shown(error)}",
            "name a tokenizer that transformers.AutoTokenizer loads",
        ) from error
    if path := model_file_in(folder):
        _check_pieces(loaded, path, config)
    if backend is not None and is_fast:
        ends = {role: getattr(loaded, role) for role in ("eos_token", "bos_token")}
        fields = {**vocabulary.read_config(folder), **ends}
        for file in folder.iterdir():
            if file.name not in HUB_FILES or file.name == vocabulary.ADDED_TOKENS_NAME:
                file.unlink()
        (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")
        backend.save(str(folder / "tokenizer.json"))


def gives_ids_of(loaded: Any, backend: Any) -> bool:
    """Return whether a class of transformers and its fast backend give the same ids of all awkward
    strings."""
    return all(
        list(loaded.encode(text, add_special_tokens=False))
        == list(backend.encode(text, add_special_tokens=False).ids)
        for text in AWKWARD_STRINGS
    )


def _check_pieces(loaded: Any, path: Path, config: tokenizer.TokenizerConfig) -> None:
    """Refuse a class that cuts awkward strings into other pieces than its SentencePiece model does,
    except those with an added token in them."""
    added = list(filter(None, loaded.get_added_vocab()))
    processor = open_model(path)
    for text in AWKWARD_STRINGS if processor else ():
        ids = loaded.encode(text, add_special_tokens=False)
        found = [str(loaded.convert_ids_to_tokens(id_)) for id_ in ids]
        expected = [processor.id_to_piece(id_) for id_ in processor.encode(text)]
        if found != expected and not any(token in text for token in added):
            raise refused_name(
                config.name,
                f"the pieces of {path.name}: {text[:40]!r} becomes {expected[:8]}",
                f"{found[:8]} by {type(loaded).__name__} of the transformers that is installed",
                _SAVE_BY_ITS_OWN,
            )


def refuse_code(folder: Path, config: tokenizer.TokenizerConfig) -> None:
    """Refuse a tokenizer that is code without consent, or code in another repository.

    Raises: TokenizerError.
    """
    classes = vocabulary.read_config(folder).get("auto_map")
    classes = classes.get("AutoTokenizer") if isinstance(classes, dict) else classes
    reference = next((str(found) for found in reversed(classes or []) if found), None)
    if reference is None:
        return
    if not config.trust_remote_code:
        without_advice()
        from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

        own = vocabulary.class_name(folder)
        if not own or tokenizer_class_from_name(own) is None:
            raise TokenizerError(
                where=f"tokenizer.trust_remote_code: {config.name}",
                expected=f"true, for this tokenizer is Python code, {reference}, that was "
                "published with it and would run on this machine with your rights",
                found="false",
                remedy="read that code and set `trust_remote_code: true` if you want to run it, "
                "or name a tokenizer that has a tokenizer.json",
            )
    elif "--" in reference:
        raise refused_name(
            config.name,
            "code that is published beside the tokenizer, so that it can be kept",
            f"a reference to another repository, {reference}",
            "copy tokenizer and code into one folder, write the class in its "
            "tokenizer_config.json without the repository, and name the folder",
        )


SUFFIXES = (".model", ".spm", ".tiktoken")

OWN_IDS = (*vocabulary.AS_THEY_STAND, "CodeLlamaTokenizer", "GemmaTokenizer", "LlamaTokenizer")
"""Classes of transformers whose ids are those of the SentencePiece model itself."""

RANKS = {
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": "llama3",
    "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed": "o200k",
}
"""The split patterns of files of ranks, by the sha256 of the file: those of Llama 3 and of Llama 4.

Source: llama_models 0.3.0, llama3/tokenizer.py and llama4/tokenizer.py."""


def model_file_in(folder: Path) -> Path | None:
    """Return the model file in a folder; None where there is none, or several."""
    found = [path for path in folder.iterdir() if path.suffix in SUFFIXES]
    return found[0] if len(found) == 1 else None


def facts_of_model_file(folder: Path, config: tokenizer.TokenizerConfig) -> vocabulary.Facts | None:
    """Make a tokenizer of the model file in `folder`, run by its own library; None if there is no
    such file, or its class of transformers has other ids.

    Raises: TokenizerError where the ranks are unknown and no pattern is named, and where tokens
    are added whose ids are not known.
    """
    path = model_file_in(folder)
    if path is None:
        return None
    content = path.read_bytes()
    first, _, rank = content[: content.find(b"\n") + 1].partition(b" ")
    if first and first.isascii() and rank.strip().isdigit():  # base64 of a token and its rank
        return _facts_of_ranks(path, content, config)
    processor = open_model(path)
    if processor is None or vocabulary.class_name(folder) not in OWN_IDS:
        return None
    ids = {processor.id_to_piece(id_): id_ for id_ in range(processor.get_piece_size())}
    unknown = [
        repr(token)
        for token, id_, _ in vocabulary.listed_tokens(folder)
        if token not in ids or id_ not in (None, ids[token])
    ]
    if unknown:
        raise refused_name(
            config.name,
            "added tokens that are pieces of the SentencePiece model, with its ids, or a "
            "tokenizer.json",
            ", ".join(shortened(unknown)),
            f"{_SAVE_BY_ITS_OWN}; to do without these tokens set kind: sentencepiece and "
            f"name the {MODEL_NAME}",
        )
    puts_space = any(piece.startswith(SPACE) for piece in processor.encode("x", out_type=str)[:1])
    if vocabulary.special_fields(folder).get("add_prefix_space") is False and puts_space:
        expected = "add_prefix_space as the SentencePiece model has it, or a tokenizer.json"
        found = "false in tokenizer_config.json, where the model puts a space before a text"
        raise refused_name(config.name, expected, found, _SAVE_BY_ITS_OWN)
    path.rename(folder / MODEL_NAME)
    return vocabulary.facts_of_sentencepiece(folder)


def open_model(path: Path) -> Any:
    """Return the processor of a file; None where it is no SentencePiece model."""
    try:
        return load_processor(path.read_bytes())
    except ValueError:
        return None


def _facts_of_ranks(
    path: Path, content: bytes, config: tokenizer.TokenizerConfig
) -> vocabulary.Facts:
    folder, name = path.parent, config.name
    named = config.named_pattern or RANKS.get(hashlib.sha256(content).hexdigest())
    if named is None:
        raise refused_name(
            name,
            f"tokenizer.pattern, for {path.name} holds tiktoken's ranks, which do not say "
            "how text is split before pairs are merged, and is not that of Llama 3 or 4",
            "none",
            f"set tokenizer.pattern to {', '.join((GPT2, *PATTERNS))} or a regular "
            "expression, as the code says that the model was published with",
        )
    try:
        ranks = tokenizer.read_ranks(path)
    except ValueError as error:
        expected = f"{path.name} to hold base64 of a token and its rank in each line"
        raise refused_name(name, expected, str(error), "copy it anew") from error
    beside = [
        (token, id_)
        for token, id_, _ in vocabulary.listed_tokens(folder)
        if token.encode() not in ranks
    ]
    special = {token: id_ for token, id_ in beside if id_ is not None}
    taken = {*ranks.values()} & {*special.values()}
    wrong = [token for token, _ in beside if token not in special]  # they have no id
    if wrong := wrong or [token for token, id_ in special.items() if id_ in taken]:
        raise refused_name(
            name,
            "an id of its own for each special token, in added_tokens_decoder of "
            "tokenizer_config.json",
            ", ".join(shortened([*map(repr, wrong)])),
            "write their ids there, or remove them",
        )
    path.unlink()
    tokenizer.write_encoding(
        folder,
        ranks,
        name=named if named in PATTERNS else "ranks",
        pattern=GPT2_REGEX if named == GPT2 else PATTERNS.get(named, named),
        special_tokens=special,
    )
    return vocabulary.facts_of_tiktoken(folder)
