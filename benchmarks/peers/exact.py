"""The token ids of texts by one library, for the exactness matrix (benchmarks/exact.py).

    python -m benchmarks.peers.exact LIBRARY FOLDER TEXTS OUTPUT

TEXTS is a JSON list; OUTPUT gets int32 ids with -1 after each text, and OUTPUT.version the version.
A library is called as its documentation has it, without special tokens around a text.
"""

import json
import sys
from array import array
from importlib import import_module, metadata
from pathlib import Path


def main():
    library, folder, texts, output = sys.argv[1], *map(Path, sys.argv[2:])
    encode = LIBRARIES[library](folder) if library in LIBRARIES else by_name(library, folder)
    ids = array("i")
    for found in encode(json.loads(texts.read_text())):
        ids.extend(found)
        ids.append(-1)
    output.write_bytes(ids.tobytes())
    package = metadata.packages_distributions()[library][0]
    output.with_suffix(".version").write_text(metadata.version(package))


def of_tokenizers(folder):
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    encode = getattr(library, "encode_batch_fast", library.encode_batch)  # of 0.23 or 1.0
    return lambda texts: [list(one.ids) for one in encode(texts, add_special_tokens=False)]


def of_transformers(folder):
    import transformers

    library = transformers.AutoTokenizer.from_pretrained(folder)
    return lambda texts: library(texts, add_special_tokens=False)["input_ids"]


def of_tiktoken(folder):
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    library = tiktoken.Encoding(
        "own",
        pat_str=json.loads((folder / "encoding.json").read_text())["pattern"],
        mergeable_ranks=load_tiktoken_bpe(str(folder / "ranks.tiktoken")),
        special_tokens={},
    )
    return lambda texts: map(library.encode_ordinary, texts)


def of_sentencepiece(folder):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).encode


def of_gigatoken(folder):
    import gigatoken

    path = folder / "tokenizer.model"
    load = gigatoken.Tokenizer.from_sentencepiece if path.exists() else gigatoken.Tokenizer
    return load(path if path.exists() else folder / "tokenizer.json").encode_batch_list


def of_kitoken(folder):
    from kitoken import Kitoken

    path = folder / "tokenizer.model"
    load = Kitoken.from_sentencepiece_file if path.exists() else Kitoken.from_tokenizers_file
    return load(str(path if path.exists() else folder / "tokenizer.json")).encode_all


def of_splintr(folder):
    import splintr

    encode = splintr.from_json(str(folder / "tokenizer.json")).encode_raw  # adds no BOS
    return lambda texts: map(encode, texts)


def by_name(library, folder):
    """Open the vocabulary that a library has with it."""
    name = json.loads((folder / "encoding.json").read_text())["name"]
    encoding = import_module(library).get_encoding(name)
    encode = getattr(encoding, "encode_ordinary", encoding.encode)
    return lambda texts: map(encode, texts)


LIBRARIES = {
    "tokenizers": of_tokenizers,
    "transformers": of_transformers,
    "tiktoken": of_tiktoken,
    "sentencepiece": of_sentencepiece,
    "gigatoken": of_gigatoken,
    "kitoken": of_kitoken,
    "splintr": of_splintr,
}


if __name__ == "__main__":
    main()
