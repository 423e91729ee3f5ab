"""The reference library of a tokenizer, which defines its ids: its version and Unicode table.

The version is part of what exact means: split patterns ask for letters and numbers, each version of
Unicode adds some, and a library that does not know a letter splits the text beside it elsewhere.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tokflow.store.store import StoredOutput
from tokflow.store.tables import to_texts
from tokflow.store.versions import installed_version, newest_change
from tokflow.tokenizers.engines.tokenizers_ import load_tokenizer_json
from tokflow.tokenizers.patterns import GPT2, GPT2_REGEX, byte_level_model, pre_tokenizer_fields

LETTERS = {
    "15": "\U0001e4d0",
    "15.1": "\U0002ebf0",
    "16": "\U000105c0",
    "17": "\U00010940",
}
"""New letter of each version of Unicode; in UTF-8 all begin with the byte F0."""


def reference_of(kind: str, folder: Path) -> dict[str, str]:
    """Return `library`, `version` and `unicode` of the reference of a tokenizer in `folder`.

    Empty where a token is a byte. Without `unicode` where transformers makes the ids, and with
    SentencePiece, whose models contain their tables.
    """
    if kind == "bytes":
        return {}
    has_json = (folder / "tokenizer.json").is_file()
    of_json = "tokenizers" if has_json else "transformers"
    return _installed(kind if kind in ("tiktoken", "sentencepiece") else of_json)


def _installed(library: str) -> dict[str, str]:
    found = {"version": installed_version(library), "unicode": unicode_of(library)}
    return {"library": library, **{name: value for name, value in found.items() if value}}


def unicode_of(library: str) -> str | None:
    """Return the newest version of Unicode whose letters the split patterns of a library know.

    A letter that it knows is one word with the `a` before it, so that the merge of `a` and the
    letter's first byte is among the tokens.
    """
    if library == "tokenizers":
        fields = {"version": "1.0", "pre_tokenizer": pre_tokenizer_fields(GPT2)}
        fields["model"] = {"type": "BPE", **byte_level_model([(b"a", b"\xf0")])}
        loaded = load_tokenizer_json(msgspec.json.encode(fields), "ordinary")
        words = to_texts([f"a{letter}" for letter in LETTERS.values()])
        tokens = [ids.tolist() for ids in loaded.encode(words).documents()]
    elif library == "tiktoken":
        import tiktoken

        ranks = {**{bytes([byte]): byte for byte in range(256)}, b"a\xf0": 256}
        encoding = tiktoken.Encoding(
            "letters", pat_str=GPT2_REGEX, mergeable_ranks=ranks, special_tokens={}
        )
        tokens = [encoding.encode_ordinary(f"a{letter}") for letter in LETTERS.values()]
    else:
        return None
    known = [of for of, ids in zip(LETTERS, tokens, strict=True) if 256 in ids]
    return max(known, key=float, default=None)


def described(reference: Mapping[str, str], libraries: Mapping[str, str]) -> str:
    """Return the reference of tokens in words: `tokenizers 0.23.3 (Unicode 16)`.

    `libraries`: known changes in the recipe of the tokens. With others than those of `reference`,
    the tokens were made again after the tokenizer was saved: `tokenizers 1.0 or newer`.
    """
    library, since = reference["library"], libraries.get(reference["library"])
    known = newest_change(library, reference["version"], "tokens")
    if since == known:
        return _named(reference)
    return f"{library} {since} or newer" if since else f"{library} before {known}"


def _named(reference: Mapping[str, str]) -> str:
    table = f" (Unicode {reference['unicode']})" if "unicode" in reference else ""
    return f"{reference['library']} {reference['version']}{table}"


def reference_change(tokenizer: StoredOutput) -> str | None:
    """Return the change of the reference since a tokenizer was saved.

    None if its version is the same, if it is not installed, or if one of the two versions is known
    to differ: tokens are stale then.
    """
    saved = tokenizer.manifest.details.get("reference")
    now = installed_version(saved["library"]) if saved else None
    if not saved or now is None or now == saved["version"]:
        return None
    library, versions = saved["library"], (saved["version"], now)
    if len({newest_change(library, of, "tokens") for of in versions}) > 1:
        return None
    return f"the reference of its ids was {_named(saved)} and is {_named(_installed(library))} now"
