"""Page of a report: everything in one file that asks nobody for anything."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from tokflow.audit.token_texts import TokenTexts
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.describe import CHAT_NUMBERS, describe, formatted, label, shown_columns
from tokflow.pipeline.plan import Plan, make_plan
from tokflow.pipeline.status import STATES
from tokflow.store.integrity import once_more
from tokflow.store.versions import known_changes
from tokflow.tokenizers.engines.reference import describe_reference
from tokflow.views import report_facts, report_pictures
from tokflow.views.picture import INK, MUTED, SERIES, Picture, check_report, shortened_name
from tokflow.views.report_facts import StoreFacts
from tokflow.views.report_pictures import VocabularyUse

REPORT_PATH = Path("report", "report.html")
"""Place of the page below the folder of its dataset."""

MAX_BYTES = 300_000
"""Size of a page, at most."""

ROWS = (50, 20, 5, 0)
"""Rows of each table, at most: fewer where the page would be too large."""


COLORS = {
    INK: "var(--ink-2)",
    MUTED: "var(--ink-3)",
    **{color: f"var(--c{number})" for number, color in enumerate(SERIES)},
}
"""Colours of pictures, and those of the page in their places: one for light, one for dark."""

MAX_CHARS = 160
"""Characters of a name or a message that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportPage:
    """A report: the page, and its pictures alone."""

    html: bytes = field(repr=False)
    pictures: tuple[Picture, ...]
    """In the order of the page."""


def make_report(dataset: Dataset) -> ReportPage:
    """Return the report of a dataset as it is in its store now; the same store gives the same
    bytes.

    Counts are of all files; what is read of tokens and tables is bounded, and the page says of how
    much it tells. Raw files that are new are hashed, as by `make_plan`, and no document of them is
    read. Whatever the data holds is shown as text. The page has at most `MAX_BYTES`.

    Raises: ConfigError where matplotlib is not installed; CorruptOutputError where an output is
    damaged that it reads.
    """
    check_report(f"report of {dataset.name}")
    return once_more(partial(_page_of, dataset))


def _page_of(dataset: Dataset) -> ReportPage:
    facts = StoreFacts(make_plan(dataset))
    texts = report_pictures.open_texts(facts.plan)
    use = report_pictures.count_ids(facts, texts) if texts else None
    pictures = tuple(_pictures(facts, texts, use))
    values = _values(facts, texts, use) | {"pictures": pictures}
    for rows in ROWS:
        html = rendered({**values, "max_rows": rows})
        if len(html) <= MAX_BYTES:
            break
    return ReportPage(html=html, pictures=pictures)


def write_report(dataset: Dataset, page: ReportPage | None = None) -> Path:
    """Write the report of a dataset to `<store>/<dataset>/report/report.html`, whole or not at
    all, and return that path; of a store at a URL it is put there as well.

    It is a file beside the outputs and no output: it has times in it. `page`: that which was made
    just now. Raises: as `make_report`.
    """
    path = dataset.folder / REPORT_PATH
    dataset.store.write_beside(path, (page or make_report(dataset)).html)
    return path


def _pictures(
    facts: StoreFacts, texts: TokenTexts | None, use: VocabularyUse | None
) -> Iterator[Picture]:
    """Yield the pictures that there is something to see in, in the order of the pipeline."""
    lengths = {of.name: of for of in report_pictures.length_pictures(facts)}
    of_documents = lengths.pop("document_lengths", None)
    of_scripts = report_pictures.by_script(facts, texts) if texts else None
    found = [of_documents, report_pictures.by_file(facts), of_scripts]
    found += [report_pictures.reject_picture(facts), report_pictures.similarity_picture(facts)]
    yield from filter(None, found)
    yield from report_pictures.share_pictures(facts)
    yield from lengths.values()
    if use is not None:
        yield report_pictures.vocabulary_picture(use)


def _values(
    facts: StoreFacts, texts: TokenTexts | None, use: VocabularyUse | None
) -> dict[str, Any]:
    """Return what the template shows."""
    statuses = sorted(facts.statuses, key=lambda of: (STATES.index(of.state), of.key))
    states = Counter(of.state for of in statuses)
    return {
        "dataset": facts.plan.graph.dataset,
        "tiles": _tiles(facts),
        "chats": _chats(facts),
        "made_by": _made_by(facts),
        "problems": _problems(facts.plan),
        "notices": [notice.text for notice in facts.plan.totals.notices()],
        "states": [(state, states[state]) for state in STATES if states[state]],
        "statuses": statuses,
        "parts": facts.split.rows if facts.split else [],
        "exports": facts.export_rows,
        "mixture": facts.source_rows,
        **report_facts.selection_values(facts),
        "texts": texts,
        "unused": _unused(use, texts) if use and texts else [],
        "use": use,
        "max_segments": report_facts.SEGMENTS_SHOWN,
        "max_tokens": report_facts.TOKENS_SHOWN,
        "excerpts": report_facts.find_excerpts(facts, texts) if texts else [],
    }


def _tiles(facts: StoreFacts) -> list[tuple[str, str]]:
    """Return the numbers that a person asks for first, all of what a build would leave as it is."""
    if not facts.text:
        return []
    text, made = facts.text.whole, facts.exports.items()
    found = [(name, describe(of.manifest).whole) for name, (of, reason) in made if not reason]
    packed = [(name, of) for name, of in found if of.get("num_sequences")]
    names = ["num_documents", "num_tokens", *(["bytes_per_token"] if text["num_tokens"] else [])]
    tiles = [(label(of), formatted(of, text[of])) for of in names]
    for name, of in packed[:1]:
        of_name = f" of {name}" if len(packed) > 1 else ""
        shown = ("fill_fraction", "num_dropped_tokens")
        tiles += [(f"{label(each)}{of_name}", formatted(each, of[each])) for each in shown]
    return [*tiles, (label("num_rejects"), formatted("num_rejects", text["num_rejects"]))]


def _chats(facts: StoreFacts) -> list[tuple[str, str]]:
    """Return the numbers of chats, without those that are 0 where that is as usual."""
    text = facts.text.whole if facts.text else {}
    shown = shown_columns([{name: text[name] for name in CHAT_NUMBERS if name in text}])
    return [(label(of), formatted(of, text[of])) for of in shown]


def _made_by(facts: StoreFacts) -> list[tuple[str, str]]:
    """Return what the dataset is made with, in a few words each."""
    dataset = facts.plan.graph.dataset
    tokenizer, packing = dataset.tokenizer, dataset.packing
    named = Path(tokenizer.name or "")
    name = named.name if named.is_absolute() else tokenizer.name or ""
    saved = facts.plan.graph.output("tokenizer")
    reference = saved.manifest().details.get("reference") if saved.is_made else None
    libraries = known_changes("tokens", tokenizer.kind).get("libraries", {})
    found = {
        "mixture of": ", ".join(dataset.mixture.sources if dataset.mixture else ()),
        "tokenizer": f"{tokenizer.kind} {name}",
        "ids are those of": describe_reference(reference, libraries) if reference else "",
        "packing": f"{packing.strategy}, {packing.sequence_length}",
        "parts": ", ".join(dataset.parts),
        "exports": ", ".join(of.name for of in dataset.exports) or "none",
    }
    return [(title, said) for title, said in found.items() if said]


def _problems(plan: Plan) -> list[str]:
    """Return what went wrong with the tokenizer, a mixture or an export; the table of files has the
    rest."""
    bad = [str(of.explained) for of in plan.bad if not of.is_raw]
    failed = [of for of in plan.missing if of.failure and not of.output.step.is_of_file]
    return [*bad, *(f"{of.output.title}: {of.failure.message}" for of in failed if of.failure)]


def _unused(use: VocabularyUse, texts: TokenTexts) -> list[tuple[int, str]]:
    """Return some ids that were never met: the longest texts, which are words, first."""
    some = report_facts.spread(use.unused, report_pictures.UNUSED_LOOKED_AT)
    shown = [(of, texts.chip(of)) for of in some]
    shown.sort(key=lambda of: ("\\" in of[1], -len(of[1]), of[0]))
    return shown[: report_pictures.UNUSED]


def rendered(values: Mapping[str, Any]) -> bytes:
    """Return the page of these values. Everything but pictures is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {
        "inline": inline,
        "number": lambda value: f"{value:,}",
        "formatted": _formatted,
        "short": lambda text, most=MAX_CHARS: shortened_name(text, most),
        "label": label,
        "columns": shown_columns,
    }
    shown_tokens = partial(report_facts.shown_tokens, texts=values["texts"])
    environment.filters |= filters | {"tokens": shown_tokens}
    page = environment.get_template("report.html").render(values)
    return page.encode(errors="replace")


def inline(picture: Picture) -> str:
    """Return a picture as part of the page, in its colours."""
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", picture.svg.decode(), flags=re.DOTALL)
    of_colors = re.compile("|".join(map(re.escape, COLORS)))
    in_tags = partial(of_colors.sub, lambda found: COLORS[found[0]])
    svg = re.sub("<[^<>]*>", lambda tag: in_tags(tag[0]), svg)  # not the text between them
    label = escape(f"{picture.title}: {picture.note}")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _formatted(row: Any, name: str) -> str:
    """Return a number of a row, or of a file's status; a dash where there is none."""
    value = row.get(name) if isinstance(row, dict) else getattr(row, name)
    return formatted(name, value) or "\N{EN DASH}"
