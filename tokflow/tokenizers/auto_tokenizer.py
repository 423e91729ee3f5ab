"""Find tokenizers of which transformers' AutoTokenizer gives other ids than their tokenizer.json.

tokflow takes tokenizer.json as it stands. AutoTokenizer of transformers 5 does so for the class
TokenizersBackend alone; a class with a name of its own takes the vocabulary from the file and
splits text as the class is written, which for OLMo and Dolma 2 is not what their file says.
"""

from itertools import zip_longest
from pathlib import Path

from tokflow.tokenizers.engines.reference import load_tokenizer_json
from tokflow.tokenizers.engines.transformers_ import load_pretrained
from tokflow.tokenizers.hub import find_difference
from tokflow.tokenizers.patterns import describe_splitting, flat_steps
from tokflow.tokenizers.tokenizer import scan_tokenizer_json
from tokflow.tokenizers.vocabulary import AS_THEY_STAND, class_name

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
    """Return what AutoTokenizer makes of the tokenizer saved in `folder` where that normalizes or
    splits text otherwise; None where it does not, or where its class is not known here.

    Reads the two files and imports nothing.
    """
    name = class_name(folder)
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


def find_other_ids(folder: Path) -> str | None:
    """Return an example of ids that AutoTokenizer gives otherwise than the tokenizer.json in
    `folder`; None where it gives the same for all awkward strings.

    Imports transformers, which takes 2 s, if a class of its own is named.
    """
    name = class_name(folder)
    path = folder / "tokenizer.json"
    if name in AS_THEY_STAND or not path.is_file():
        return None
    try:
        loaded = load_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # of any class, and code that is not to run
        return f"AutoTokenizer does not load it as {name}: {str(error).splitlines()[0]}"
    difference = find_difference(loaded, load_tokenizer_json(path.read_bytes(), "control"))
    if difference is None:
        return None
    text, found, expected = difference
    pairs = enumerate(zip_longest(found, expected))
    first = next(index for index, (one, other) in pairs if one != other)
    start = max(0, first - 3) if first >= 8 else 0
    shown = slice(start, start + 8)
    place = f", from position {start} on" if start else ""
    return (
        f"AutoTokenizer gives other ids as {type(loaded).__name__}: {text[:40]!r} becomes "
        f"{found[shown]}, with tokenizer.json {expected[shown]}{place}"
    )
