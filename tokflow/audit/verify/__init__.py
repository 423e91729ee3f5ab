"""Is an output what it says it is: one function per stage, each a list of problems.

    verify_tokens, verify_split, verify_sequences, verify_export
    verify_against_raw the token shard against the raw file itself

Each returns one sentence per problem, and an empty list where all is well. They read what is on
disk again and compare it with the manifest and with the output it was made from, so that the
counts close from the raw file's documents to the export's tokens.
"""

from tokflow.audit.verify.export import verify_export
from tokflow.audit.verify.raw import verify_against_raw
from tokflow.audit.verify.sequences import verify_sequences
from tokflow.audit.verify.split import verify_split
from tokflow.audit.verify.tokens import verify_tokenizer, verify_tokens

__all__ = [
    "verify_against_raw",
    "verify_export",
    "verify_sequences",
    "verify_split",
    "verify_tokenizer",
    "verify_tokens",
]
