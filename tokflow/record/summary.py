"""Drafts of the summaries of training content that laws ask for, from the facts of an export.

What tokflow knows is filled into the two templates beside this module; what only a person knows is
a gap, marked so that it is found. Domains that the documents come from are counted by the bytes of
their text.

Source: Template for the public summary of training content, Article 53(1)(d) of Regulation (EU)
2024/1689, European Commission, 24 July 2025; California AB 2013 (2024), Civil Code section 3111.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.audit.ancestry import Ancestry
from tokflow.formatting import counted, size
from tokflow.pipeline.fields import Collected
from tokflow.record.export_card import of_person, table, title_of
from tokflow.record.facts import ExportFacts, Source
from tokflow.split import Split
from tokflow.store.store import StoredOutput
from tokflow.store.tables import to_arrow

GAP = "**[TO FILL IN]**"
"""Mark of what only a person knows."""

EU, CALIFORNIA = "eu_training_content.md", "california_ab_2013.md"

SIZES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
SHARE_OF_DOMAINS = 10
"""Percent of the domains that the EU's template asks for, by the size of their content."""

UNKNOWN = "(none)"
"""Stands for the domain of documents without a URL."""

_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(?:www\.)?(?P<host>[^/:?#]+)"


Domains: TypeAlias = Sequence[tuple[str, int, int]]
"""Names of hosts without `www.`, documents and bytes of their text, the one with the most text
first; a document counts once, however often and in however many spans it is in the export. Empty
where no column with URLs was kept."""


def domains_of(export: StoredOutput, column: str, ancestry: Ancestry) -> Domains:
    """Return the domains of the documents of which text is in an export, by a kept column that has
    their URLs; one token shard is in memory at a time. Raises: as `Ancestry`."""
    num_bytes, num_documents = Counter[str](), Counter[str]()
    for parent in ancestry.parents(export).values():
        for taken in _tables(ancestry.split(parent), column):
            sums = taken.group_by("domain").aggregate([("num_bytes", "sum"), ("domain", "count")])
            for row in sums.to_pylist():
                num_bytes[row["domain"]] += row["num_bytes_sum"]
                num_documents[row["domain"]] += row["domain_count"]
    order = sorted(num_bytes, key=lambda of: (-num_bytes[of], of))
    return [(of, num_documents[of], num_bytes[of]) for of in order]


def _tables(split: Split, column: str) -> Iterator[pa.Table]:
    """Yield the domain and the bytes of each document of a split that a part takes, once."""
    shard = replace(split.shard, num_passes=1)
    if column not in shard.keep_columns:
        return
    urls, num_passes = shard.kept_columns()[column], split.shard.num_passes
    steps = np.zeros(len(urls) * num_passes + 1, dtype=np.int64)
    for part in split.parts:
        rows = split.rows(part)
        np.add.at(steps, rows["document"], 1)
        np.add.at(steps, rows["document"] + rows["num_documents"], -1)
    hosts = pc.struct_field(pc.extract_regex(urls, _HOST), "host")
    domain = pc.fill_null(pc.utf8_lower(hosts), UNKNOWN)
    num_bytes = shard.documents(["num_bytes"])["num_bytes"]
    table = pa.table({"domain": domain, "num_bytes": num_bytes})
    num_spans = np.cumsum(steps[:-1]).reshape(num_passes, len(urls))
    yield table.filter(to_arrow(num_spans.max(axis=0) > 0))


def drafts_of(facts: ExportFacts, domains: Domains) -> dict[str, str]:
    """Return the drafts by the names of their templates, in Markdown."""
    sources = facts.sources
    num_tokens = sum(of for name, of in facts.export.counts.items() if name.endswith(".num_tokens"))
    kinds = {of.card.collected for of in sources}
    lost = [*facts.left_out, *((f"rule: {of['rule']}", of["num_left_out"]) for of in facts.rules)]
    values = {
        "gap": GAP,
        "title": title_of(facts),
        "fingerprint": facts.export.manifest.recipe.fingerprint,
        "num_tokens": f"{num_tokens:,}",
        "size": next((text for most, text in SIZES if num_tokens < most), "more than 10 trillion"),
        "num_documents": f"{sum(of.counts['num_documents'] for of in sources):,}",
        "description": facts.card.description or GAP,
        "purpose": facts.card.purpose or GAP,
        "periods": _each([of.card.period for of in sources]),
        "languages": _each([", ".join(of.card.language) for of in sources]),
        "copyrighted": _answer({of.card.copyrighted for of in sources}),
        "personal_information": _answer({of.card.personal_information for of in sources}),
        "is_licensed": _answer({of and of == "licensed" for of in kinds}),
        "is_synthetic": "yes, some" if "synthetic" in kinds else GAP,
        "sources": _table(sources),
        "domains": _domains(domains),
        "filters": table(["left out", "number"], lost) if lost else "Nothing was left out.",
        "unknown": _table([of for of in sources if of.card.collected is None]) or "None.",
    }
    none = f"None, or some of those at the end of this section: {GAP}" if None in kinds else "None."
    for kind in get_args(Collected):
        found = _table([of for of in sources if of.card.collected == kind])
        values[kind.replace(" ", "_")] = found or none
    folder = Path(__file__).parent
    return {of: Template((folder / of).read_text()).substitute(values) for of in (EU, CALIFORNIA)}


def _each(said: Sequence[str | None]) -> str:
    """Return each thing that is said once, and a gap where nothing is said of some source."""
    return ", ".join(dict.fromkeys(of or GAP for of in said)) or GAP


def _answer(said: set[bool | None]) -> str:
    return "yes, some" if True in said else "no" if said == {False} else GAP


def _table(sources: Sequence[Source]) -> str:
    if not sources:
        return ""
    headings = ["source", "owner", "licence", "languages", "period", "collected as", "content"]
    rows = [
        [
            *(said or GAP for said in (*of_person(of.card), of.card.description)),
            of.counts["num_documents"],
            size(of.counts["num_bytes"]),
        ]
        for of in sources
    ]
    return table([*headings, "documents read", "text read"], rows)


def _domains(domains: Domains) -> str:
    if not domains:
        return f"* Domain names by size of content: {GAP} (no column with URLs was kept)"
    num = max(1, len(domains) * SHARE_OF_DOMAINS // 100)
    rows = [[name, of, size(num_bytes)] for name, of, num_bytes in domains[:num]]
    of_all = f"The {num:,} largest of {counted(len(domains), 'domain')}"
    head = f"{of_all}, {SHARE_OF_DOMAINS} %, by the bytes of their text in this dataset:"
    return f"{head}\n\n{table(['domain', 'documents', 'text'], rows)}"
