"""Drafts of the summaries of training content that laws ask for, from the facts of an export.

What tokflow knows is filled into the two templates beside this module; what only a person knows is
a gap, marked so that it is found.

Source: Template for the public summary of training content, Article 53(1)(d) of Regulation (EU)
2024/1689, European Commission, 24 July 2025; California AB 2013 (2024), Civil Code section 3111.
"""

from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import get_args

from tokflow.pipeline.card import Collected
from tokflow.record.card import of_person, table, title_of
from tokflow.record.domains import Domains
from tokflow.record.facts import ExportFacts, Source
from tokflow.shown import counted, size

GAP = "**[TO FILL IN]**"
"""Mark of what only a person knows."""

EU, CALIFORNIA = "eu_training_content.md", "california_ab_2013.md"

SIZES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
SHARE_OF_DOMAINS = 10
"""Percent of the domains that the EU's template asks for, by the size of their content."""

Answers = set[bool | None]


def drafts_of(facts: ExportFacts, domains: Domains) -> dict[str, str]:
    """Return the drafts by the names of their templates, in Markdown."""
    sources = facts.sources
    num_tokens = sum(of for name, of in facts.export.counts.items() if name.endswith(".num_tokens"))
    kinds = {of.card.collected for of in sources}
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
        "filters": _filters(facts),
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


def _answer(said: Answers) -> str:
    return "yes, some" if True in said else "no" if said == {False} else GAP


def _table(sources: Sequence[Source]) -> str:
    if not sources:
        return ""
    headings = ["source", "owner", "licence", "languages", "period", "collected as", "content"]
    rows = []
    for source in sources:
        said = [of or GAP for of in (*of_person(source.card), source.card.description)]
        counts = source.counts
        rows.append([*said, f"{counts['num_documents']:,}", size(counts["num_bytes"])])
    return "\n".join(table([*headings, "documents read", "text read"], rows))


def _domains(domains: Domains) -> str:
    if not domains.rows:
        return f"* Domain names by size of content: {GAP} (no column with URLs was kept)"
    num = max(1, len(domains.rows) * SHARE_OF_DOMAINS // 100)
    rows = [[name, f"{of:,}", size(num_bytes)] for name, of, num_bytes in domains.rows[:num]]
    of_all = f"The {num:,} largest of {counted(len(domains.rows), 'domain')}"
    head = f"{of_all}, {SHARE_OF_DOMAINS} %, by the bytes of their text in this dataset:"
    return "\n".join([head, "", *table(["domain", "documents", "text"], rows)])


def _filters(facts: ExportFacts) -> str:
    rows = [[what, f"{num:,}"] for what, num in facts.left_out]
    rows += [[f"rule: {of['rule']}", f"{of['num_left_out']:,}"] for of in facts.rules]
    return "\n".join(table(["left out", "number"], rows)) if rows else "Nothing was left out."
