"""Domains that the documents of an export come from, by the bytes of their text."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.audit.ancestry import Ancestry
from tokflow.split.spans import Split
from tokflow.store.store import StoredOutput
from tokflow.store.tables import to_arrow

UNKNOWN = "(none)"
"""Stands for the domain of documents without a URL."""

_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(?:www\.)?(?P<host>[^/:?#]+)"


@dataclass(frozen=True, slots=True)
class Domains:
    """Names of hosts without `www.`, the one with the most text first."""

    rows: tuple[tuple[str, int, int], ...] = ()
    """Domain, documents and bytes of their text; a document counts once, however often and in
    however many spans it is in the export. Empty where no column with URLs was kept."""


def domains_of(export: StoredOutput, column: str, ancestry: Ancestry) -> Domains:
    """Return the domains of the documents of which text is in an export, by a kept column that has
    their URLs; one token shard is in memory at a time. Raises: as `Ancestry`."""
    num_bytes, num_documents = Counter[str](), Counter[str]()
    for parent in ancestry.parents(export).values():
        for table in _tables(ancestry.split(parent), column):
            sums = table.group_by("domain").aggregate([("num_bytes", "sum"), ("domain", "count")])
            for row in sums.to_pylist():
                num_bytes[row["domain"]] += row["num_bytes_sum"]
                num_documents[row["domain"]] += row["domain_count"]
    order = sorted(num_bytes, key=lambda of: (-num_bytes[of], of))
    return Domains(tuple((of, num_documents[of], num_bytes[of]) for of in order))


def _tables(split: Split, column: str) -> Iterator[pa.Table]:
    """Yield the domain and the bytes of each document of a split that a part takes."""
    shard = split.shard
    if column not in shard.keep_columns:
        return
    urls = shard.kept_columns()[column]
    steps = np.zeros(len(urls) + 1, dtype=np.int64)
    for part in split.parts:
        rows = split.rows(part)
        np.add.at(steps, rows["document"], 1)
        np.add.at(steps, rows["document"] + rows["num_documents"], -1)
    hosts = pc.struct_field(pc.extract_regex(urls, _HOST), "host")
    domain = pc.fill_null(pc.utf8_lower(hosts), UNKNOWN)
    num_bytes = shard.documents(["num_bytes"])["num_bytes"]
    table = pa.table({"domain": domain, "num_bytes": num_bytes})
    yield table.filter(to_arrow(np.cumsum(steps[:-1]) > 0))
