"""Verify outputs: one function per stage.

    verify_tokens, verify_export       read again and compared with what they were made from
    verify_split, verify_sequences     made again and compared
    verify_against_raw                 the token shard against the raw file itself

Each returns one sentence per problem, and an empty list where all is well.
"""

from tokflow.audit.verify.export import verify_export
from tokflow.audit.verify.raw import verify_against_raw
from tokflow.audit.verify.remade import verify_sequences, verify_split
from tokflow.audit.verify.tokens import verify_tokenizer, verify_tokens

__all__ = [
    "verify_against_raw",
    "verify_export",
    "verify_sequences",
    "verify_split",
    "verify_tokenizer",
    "verify_tokens",
]
