"""tokflow without Dagster: into an empty store, up to the bin export or only the token shard.

python -m benchmarks.core FILE --tokenizer FOLDER --store DIR [--until tokens]
"""

import argparse
from pathlib import Path

import tokflow
from tokflow.dataset import make_dataset
from tokflow.lineage import Lineage
from tokflow.pipeline import make_tokenizer, make_tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--text", default="text")
    parser.add_argument("--until", choices=("tokens", "export"), default="export")
    arguments = parser.parse_args()
    tokenizer = {"kind": "huggingface", "name": str(arguments.tokenizer)}
    if arguments.until == "tokens":
        tokenize(arguments, tokenizer)
    else:
        tokflow.tokenize_and_save(
            arguments.file, tokenizer=tokenizer, output=arguments.store, text=arguments.text
        )


def tokenize(arguments, tokenizer):
    attributes = {
        "name": "benchmark",
        "raw": {"files": str(arguments.file)},
        "documents": {"text": arguments.text},
        "tokenizer": tokenizer,
    }
    lineage = Lineage(
        make_dataset(attributes, base=Path.cwd(), store=arguments.store, where=__name__)
    )
    make_tokenizer(lineage)
    for key in lineage.sources:
        make_tokens(lineage, key)


if __name__ == "__main__":
    main()
