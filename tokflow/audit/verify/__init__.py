"""Verify outputs: one function per stage.

    verify_tokens, verify_export       read again and compared with what they were made from
    verify_split, verify_sequences     made again and compared
    verify_against_raw                 the token shard against the raw file itself

Each returns one sentence per problem, and an empty list where all is well.
"""
