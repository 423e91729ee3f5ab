"""Find tokenizers of which transformers' AutoTokenizer gives other ids than their tokenizer.json.

tokflow takes tokenizer.json as it stands. AutoTokenizer of transformers 5 does so for the class
TokenizersBackend alone; a class with a name of its own takes the vocabulary from the file and
splits text as the class is written, which for OLMo and Dolma 2 is not what their file says. It
also adds what stands beside that file, in tokenizer_config.json, added_tokens.json and
special_tokens_map.json, and what a class has by default: a control token that tokenizer.json lacks
would be several plain tokens here, without a word.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokflow.errors import TokenizerError, shortened
from tokflow.tokenizers import describe_splitting, flat_steps, vocabulary
from tokflow.tokenizers.engines.hugging_face import (
    JsonTokenizer,
    load_pretrained,
    load_tokenizer_json,
)
from tokflow.tokenizers.tokenizer import END_OF_TEXT, scan_tokenizer_json

STEPS_OF_CLASSES = {
    "CodeGenTokenizer": "gpt2",
    "GPT2Tokenizer": "gpt2",
    "GPTNeoXTokenizer": "NFC, gpt2",
    "Qwen2Tokenizer": "NFC, qwen2",
    "RobertaTokenizer": "gpt2",
}
"""The normalizers and the split pattern of classes, whatever tokenizer.json says. Source: the
modules of these names in transformers 5.23."""


def describe_rebuilt(folder: Path) -> str | None:
    """Return a warning if AutoTokenizer normalizes or splits text otherwise than the tokenizer
    saved in `folder`; None if it does not, or if its class is not known here.

    Reads the two files and imports nothing.
    """
    name = vocabulary.class_name(folder)
    of_class = STEPS_OF_CLASSES.get(name)
    fields = scan_tokenizer_json(folder)
    if of_class is None or not fields:
        return None
    normalizers = [step["type"] for step in flat_steps(fields.get("normalizer"), "normalizers")]
    of_file = ", ".join([*normalizers, describe_splitting(fields.get("pre_tokenizer"))])
    if of_file == of_class:
        return None
    return (
        f"AutoTokenizer of transformers 5 rebuilds this tokenizer as {name}, which splits "
        f"text by {of_class} where tokenizer.json splits by {of_file}: its ids differ from "
        "these, which are those of tokenizer.json; to load that anywhere, set tokenizer_class: "
        "TokenizersBackend in tokenizer_config.json"
    )


ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
"""Special tokens that a class of transformers may have by default, where no file names them."""

OF_END_OF_TEXT = ("CodeGenTokenizer", "GPT2Tokenizer")
"""Classes whose special tokens are all END_OF_TEXT by default. Source: as of `STEPS_OF_CLASSES`."""

FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")

Added = Mapping[str, tuple[int, Mapping[str, bool]]]
"""Id and flags of added tokens, by their names."""


def check_added_tokens(folder: Path, name: str) -> None:
    """Check that AutoTokenizer has the added tokens of the tokenizer.json in `folder`, with their
    ids and flags, and no others.

    The files are read first; where they leave a doubt AutoTokenizer is asked, which takes some
    seconds. What it cannot load is not compared. `name`: what the config calls the tokenizer.

    Raises: TokenizerError.
    """
    library = load_tokenizer_json((folder / "tokenizer.json").read_bytes(), "ordinary")
    own = _added(library.added_tokens())
    if not any(_doubts(folder, library, own)):
        return
    try:
        loaded = load_pretrained(folder, trust_remote_code=False)
    except Exception:  # of any class; then nobody gets other ids from it
        return
    matters = FLAGS if scan_tokenizer_json(folder).get("normalizer") else FLAGS[:-1]
    theirs = _added(loaded.added_tokens_decoder)
    # EOS and the like may be pieces of the vocabulary, and stay what they are in a text.
    listed = {name for name, id_, _ in vocabulary.listed_tokens(folder) if id_ is not None}
    theirs = {
        name: token
        for name, token in theirs.items()
        if name in own or name in listed or library.id_in_model(name) != token[0]
    }
    if differences := list(_differences(own, theirs, matters)):
        where = f"tokenizer.name: {name}"
        expected = "the added tokens that AutoTokenizer has of these files, in tokenizer.json"
        found = "; ".join(shortened(differences))
        remedy = (
            "save the tokenizer whole, by "
            "AutoTokenizer.from_pretrained(...).save_pretrained('a/folder'), see that its ids "
            "are those of your model, and name that folder"
        )
        raise TokenizerError(where=where, expected=expected, found=found, remedy=remedy)


def _added(decoder: Mapping[int, Any]) -> Added:
    return {
        token.content: (id_, {flag: getattr(token, flag) for flag in FLAGS})
        for id_, token in decoder.items()
    }


def _doubts(folder: Path, library: JsonTokenizer, own: Added) -> Iterator[bool]:
    """Yield True for what the files say that may make other added tokens."""
    listed, roles = [*vocabulary.listed_tokens(folder)], vocabulary.special_fields(folder)
    for name, id_, token in listed:
        is_piece = id_ is None and name not in own and library.id_in_model(name) is not None
        yield _is_other(token, own, id_) and not is_piece
    names = {name for name, id_, _ in listed if id_ is not None}
    yield "added_tokens_decoder" in roles and names != own.keys()
    if (of_class := vocabulary.class_name(folder)) not in vocabulary.AS_THEY_STAND:
        has_defaults = of_class in OF_END_OF_TEXT and not _is_other(END_OF_TEXT, own, None)
        yield not has_defaults and any(role not in roles for role in ROLES)
        # Such a class may number them anew: in their order, behind the vocabulary.
        num = len(library.vocabulary())
        behind = [id_ for name, (id_, _) in own.items() if library.id_in_model(name) is None]
        yield sorted(behind) != list(range(num, num + len(behind)))


def _is_other(token: object, own: Added, id_: int | None) -> bool:
    """Return whether a token that a file names is none of the added ones, or another; one that is
    named without its flags becomes special."""
    known = own.get(vocabulary.content_of(token) or "")
    if known is None or id_ not in (None, known[0]):
        return True
    flags = {"special": True, **(token if isinstance(token, dict) else {})}
    return any(flags.get(flag, value) != value for flag, value in known[1].items())


def _differences(own: Added, theirs: Added, flags: Sequence[str]) -> Iterator[str]:
    for name in sorted({*own, *theirs}, key=lambda name: (theirs.get(name) or own[name])[0]):
        if name not in own:
            yield f"{name!r}, which is {theirs[name][0]:,} there, is missing"
        elif name not in theirs:
            yield f"{name!r}, which is {own[name][0]:,}, is none there"
        elif own[name][0] != theirs[name][0]:
            yield f"{name!r} is {own[name][0]:,}, and there {theirs[name][0]:,}"
        else:
            other = [flag for flag in flags if own[name][1][flag] != theirs[name][1][flag]]
            if other:
                named = ", ".join(f"{flag}: {theirs[name][1][flag]}".lower() for flag in other)
                yield f"{name!r} has there {named}"
