"""Imports of a worker, done once in the process that workers are forked from.

Some are imported on first use otherwise, and none may start a thread. That process can be given
nothing but modules to import, so this one acts there when it is imported, and nowhere else.
"""

from tokflow.pools.local import be_fork_server

be_fork_server(
    "tokflow.pipeline.tasks",
    "tokflow.documents.formats.arrow",
    "tokflow.documents.formats.jsonl",
    "pyarrow.parquet",
    "gigatoken",
    "tokenizers",
)
