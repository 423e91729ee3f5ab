"""Drafts of the summaries of training content that laws ask for, from the facts of an export.

What tokflow knows is filled in; what only a person knows is a gap, marked so that it is found.

Source: Template for the public summary of training content, Article 53(1)(d) of Regulation (EU)
2024/1689, European Commission, 24 July 2025; California AB 2013 (2024), Civil Code section 3111.
"""

from collections.abc import Callable, Iterator, Sequence

from tokflow.pipeline.card import Collected
from tokflow.record.card import in_cell, of_person, table, title_of
from tokflow.record.domains import Domains
from tokflow.record.facts import Facts, Source
from tokflow.shown import counted, size

GAP = "**[TO FILL IN]**"
"""Mark of what only a person knows."""

KINDS: tuple[tuple[Collected, str], ...] = (
    ("public dataset", "2.1 Publicly available datasets"),
    ("licensed", "2.2.1 Datasets commercially licensed by rightsholders or their representatives"),
    ("third party", "2.2.2 Private datasets obtained from other third parties"),
    ("crawled", "2.3 Data crawled and scraped from online sources"),
    ("user data", "2.4 User data"),
    ("synthetic", "2.5 Synthetic data"),
    ("other", "2.6 Other sources of data"),
)
"""`collected` of a source to the heading of the EU's template that it stands under."""

SIZES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
SHARE_OF_DOMAINS = 10
"""Percent of the domains that the template asks for, by the size of their content."""


def eu_summary(facts: Facts, domains: Domains) -> str:
    """Return the draft of the EU's template, in Markdown."""
    num_tokens = _num_tokens(facts)
    shown = next((text for limit, text in SIZES if num_tokens < limit), "more than 10 trillion")
    languages = [", ".join(of.card.language) for of in facts.sources]
    lines = [
        *_head("Public summary of training content", "Article 53(1)(d) of the AI Act", facts),
        "## 1. General information",
        "### 1.1 Provider identification",
        f"* Provider name and contact details: {GAP}",
        f"* Authorised representative, of a provider outside the Union: {GAP}",
        "### 1.2 Model identification",
        f"* Versioned model names: {GAP}",
        f"* Model dependencies, such as the model that was modified: {GAP}",
        f"* Date of placement on the Union market: {GAP}",
        "### 1.3 Modalities, overall training data size and other characteristics",
        "* Modality: text",
        f"* Training data size: {shown} ({num_tokens:,} tokens of this dataset, once)",
        f"* Types of content: {facts.card.description or GAP}",
        f"* Latest date of data acquisition: {GAP} (collected in: {_periods(facts)})",
        f"* Linguistic characteristics: {_each(languages)}",
        f"* Other relevant characteristics: {GAP}",
        "## 2. List of data sources",
        *_kinds(facts.sources, domains),
        "## 3. Data processing aspects",
        "### 3.1 Respect of reservations of rights from the text and data mining exception",
        f"* Measures, and whether the Code of Practice was signed: {GAP}",
        "### 3.2 Removal of illegal content",
        f"* Measures: {GAP}",
        "### 3.3 Other information",
        *_filters(facts),
    ]
    return _joined(lines)


def california_summary(facts: Facts) -> str:
    """Return the draft of the documentation of AB 2013, in Markdown: its twelve items in order."""
    sources, card = facts.sources, facts.card
    num_documents = sum(of.counts["num_documents"] for of in sources)
    points = f"{num_documents:,} documents were read; {_num_tokens(facts):,} tokens were left in"
    collected = {of.card.collected for of in sources}
    is_bought = "yes, some" if "licensed" in collected else GAP if None in collected else "no"
    synthetic = "yes" if "synthetic" in collected else GAP
    items = [
        ("Sources or owners of the datasets", ""),
        ("How the datasets further the intended purpose of the system", card.purpose or GAP),
        ("Number of data points", points),
        ("Types of data points", f"text; {card.description or GAP}"),
        ("Protected by copyright, trademark or patent", _said(sources, lambda of: of.copyrighted)),
        ("Purchased or licensed by the developer", is_bought),
        ("Personal information", _said(sources, lambda of: of.personal_information)),
        ("Aggregate consumer information", GAP),
        (
            "Cleaning, processing or other modification, and its purpose",
            f"as below; purpose: {GAP}",
        ),
        ("Time of collection, and whether it goes on", f"{_periods(facts)}; {GAP}"),
        ("Dates of the first use in development", GAP),
        ("Use of synthetic data generation", synthetic),
    ]
    numbered = [
        f"{at}. {name}: {answer}".rstrip(" :") for at, (name, answer) in enumerate(items, 1)
    ]
    lines = [
        *_head("Training data documentation", "California AB 2013, Civil Code section 3111", facts),
        "\n".join(numbered),
        "## Sources (item 1)",
        *_of_sources(sources),
        "## Modifications (item 9)",
        *_filters(facts),
    ]
    return _joined(lines)


def _periods(facts: Facts) -> str:
    return _each([of.card.period for of in facts.sources])


def _each(said: Sequence[str | None]) -> str:
    """Return each thing that is said once, and a gap where nothing is said of some source."""
    return ", ".join(dict.fromkeys(of or GAP for of in said)) or GAP


def _joined(lines: Sequence[str]) -> str:
    """Return blocks with blank lines between them, except between items of a list."""
    text = ""
    for before, line in zip(["", *lines], lines, strict=False):
        text += ("\n" if before.startswith("* ") and line.startswith("* ") else "\n\n") + line
    return f"{text.strip()}\n"


def _head(title: str, law: str, facts: Facts) -> Iterator[str]:
    manifest = facts.export.manifest
    yield f"# {title}: {title_of(facts)}"
    yield (
        f"Draft for {law}, of the dataset alone: a model that was trained on others too needs them "
        f"beside it. Written by tokflow from the export with the fingerprint "
        f"`{manifest.fingerprint}` and `card:`; what neither says is marked {GAP}. "
        "A draft is no legal advice."
    )


def _num_tokens(facts: Facts) -> int:
    return sum(of for name, of in facts.export.counts.items() if name.endswith(".num_tokens"))


def _kinds(sources: Sequence[Source], domains: Domains) -> Iterator[str]:
    unknown = [of for of in sources if of.card.collected is None]
    for kind, heading in KINDS:
        found = [of for of in sources if of.card.collected == kind]
        yield f"### {heading}"
        none = f"None, or some of those at the end of this section: {GAP}"
        yield from _of_sources(found) if found else [none if unknown else "None in this dataset."]
        if found and kind == "crawled":
            yield f"* Names, purposes and behaviour of crawlers: {GAP}"
            yield from _domains(domains)
    if unknown:
        yield f"### {GAP} To be put under one of the headings above (`collected` in `card:`)"
        yield from _of_sources(unknown)
        yield from _domains(domains)


def _of_sources(sources: Sequence[Source]) -> Iterator[str]:
    headings = ["source", "owner", "licence", "languages", "period", "collected as"]
    rows = []
    for source in sources:
        said = [of or GAP for of in of_person(source.card)]
        rows.append(
            [*said, f"{source.counts['num_documents']:,}", size(source.counts["num_bytes"])]
        )
    yield "\n".join(table([*headings, "documents read", "text read"], rows))
    for source in sources:
        yield f"* {in_cell(str(source.card.title))}: {source.card.description or GAP}"


def _domains(domains: Domains) -> Iterator[str]:
    if not domains.rows:
        yield f"* Domain names by size of content: {GAP} (no column with URLs was kept)"
        return
    num = max(1, len(domains.rows) * SHARE_OF_DOMAINS // 100)
    yield (
        f"The {num:,} largest of {counted(len(domains.rows), 'domain')}, {SHARE_OF_DOMAINS} %, by "
        "the bytes of their text in this dataset:"
    )
    rows = [[name, f"{of:,}", size(num_bytes)] for name, of, num_bytes in domains.rows[:num]]
    yield "\n".join(table(["domain", "documents", "text"], rows))


def _filters(facts: Facts) -> Iterator[str]:
    """Yield what tokflow did to the text, and what it left out."""
    if facts.left_out or facts.rules:
        rows = [[what, f"{num:,}"] for what, num in facts.left_out]
        rows += [[f"rule: {of['rule']}", f"{of['num_left_out']:,}"] for of in facts.rules]
        yield "\n".join(table(["left out", "number"], rows))
    else:
        yield "* Nothing was left out of the raw files by tokflow."
    yield f"* Cleaning before that, by others or by hand: {GAP}"


def _said(sources: Sequence[Source], question: Callable[..., bool | None]) -> str:
    answers = {question(of.card) for of in sources}
    if True in answers:
        return "yes, some"
    return "no" if answers == {False} else GAP
