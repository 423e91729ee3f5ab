"""tokflow without Dagster: into an empty store, up to the bin export.

python -m benchmarks.core FILE --tokenizer FOLDER --store DIR
"""

import argparse
from pathlib import Path

import tokflow


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    arguments = parser.parse_args()
    tokflow.tokenize_and_save(
        arguments.file,
        tokenizer={"kind": "huggingface", "name": str(arguments.tokenizer)},
        output=arguments.store,
    )


if __name__ == "__main__":
    main()
