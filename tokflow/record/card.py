"""The dataset card of an export, `_tokflow/README.md`, that `tokflow push` sends."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from tokflow.exports import INDEX_NAME
from tokflow.pipeline.card import SourceCard
from tokflow.pipeline.describe import formatted_rows, label
from tokflow.pipeline.mixture import mixture_rows
from tokflow.record.facts import ExportFacts, Source
from tokflow.shown import counted, size
from tokflow.split.shuffle import shuffled_by
from tokflow.store.manifest import MANIFEST_NAME
from tokflow.tokenizers.reference_version import described


def card_text(facts: ExportFacts) -> str:
    """Return the card, as huggingface_hub reads it; the same facts give the same text."""
    from huggingface_hub import DatasetCard, DatasetCardData

    data = DatasetCardData(**header_fields(facts))
    lines = [f"---\n{data.to_yaml()}\n---\n\n# {title_of(facts)}", facts.card.description or ""]
    text = "\n\n".join([*filter(None, lines), card_body(facts)])
    return str(DatasetCard(text, ignore_metadata_errors=True))


def header_fields(facts: ExportFacts) -> dict[str, Any]:
    """Return the fields in the header of the card that the hub knows, of those that are filled."""
    card = facts.card
    languages = sorted({of for source in facts.sources for of in source.card.language})
    fields = {
        "license": card.license,
        "language": [*card.language] or languages,
        "pretty_name": card.title,
    }
    return {**{name: of for name, of in fields.items() if of}, "tags": ["tokflow"]}


def title_of(facts: ExportFacts) -> str:
    """Return the name of the dataset for people."""
    return facts.card.title or facts.export.manifest.dataset


def card_body(facts: ExportFacts) -> str:
    """Return the text of the card behind the name and description of the dataset, in Markdown."""
    export = facts.export
    manifest = export.manifest
    about = export.format.description.replace("<", "&lt;")
    shown = yaml.safe_dump(facts.recipes, sort_keys=False, allow_unicode=True, width=math.inf)
    has_index = INDEX_NAME in manifest.files
    blocks = [
        f"## {manifest.dataset}, as {export.format_name}",
        f"{about}.",
        "\n".join(_parts(facts)),
        "\n".join([*_facts(facts), *_of_people(facts)]),
        *_sources(facts.sources),
        *_tables(facts),
        f"`{INDEX_NAME}` has the raw file and row of each document." if has_index else "",
        f"Made by tokflow: fingerprint `{manifest.recipe.fingerprint}`. The recipe, of what is "
        "made of each raw file that of the first:",
        f"```yaml\n{shown.strip()}\n```",
        f"Cite as:\n\n```bibtex\n{facts.card.citation.strip()}\n```" if facts.card.citation else "",
    ]
    return "\n\n".join(filter(None, blocks))


def _parts(facts: ExportFacts) -> Iterator[str]:
    export = facts.export
    names = ["num_tokens", "num_sequences", "num_padding", "num_documents"]
    names = [name for name in names if any(f"{p}.{name}" in export.counts for p in export.parts)]
    rows = [
        [part, *(_number(export.counts.get(f"{part}.{name}")) for name in names)]
        for part in export.parts
    ]
    return table(["part", *(name.removeprefix("num_") for name in names)], rows)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown, numbers to the right."""
    cells = ["".join(of[at] for of in rows) for at in range(len(headings))]
    are_numbers = (re.fullmatch(r"[\d,.%kMGTP B]+", of) for of in cells)
    yield f"| {' | '.join(headings)} |"
    yield f"|{''.join('---:|' if number else '---|' for number in are_numbers)}"
    yield from (f"| {' | '.join(in_cell(of) for of in row)} |" for row in rows)


def in_cell(text: str) -> str:
    """Return text on one line of a table, in which nothing ends a cell or a comment."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _facts(facts: ExportFacts) -> Iterator[str]:
    export = facts.export
    manifest, details = export.manifest, export.manifest.details
    names = details.get("names", {})
    eos = "no EOS" if export.eos_id is None else f"EOS {export.eos_id:,} ends each document"
    tokenizer = f" {code(names['tokenizer'])}," if "tokenizer" in names else ""
    yield f"* **Tokenizer**:{tokenizer} {export.vocab_size:,} ids, {export.dtype.name}; {eos}"
    if facts.tokenizer is not None and (of := facts.tokenizer.details.get("reference")):
        libraries = facts.recipes.get("tokens", {}).get("libraries", {})
        yield f"* **Ids**: those of {described(of, libraries)}"
    if "source" in names:
        yield f"* **Raw files**: {code(names['source'])}"
    if (length := details.get("sequence_length")) is not None:
        yield f"* **Sequences** of {length if isinstance(length, dict) else f'{length:,}'} tokens"
    for name, seed in shuffled_by(manifest).items():
        yield f"* **Shuffled**: {name}, seed {seed}"
    for name, commit in details.get("commits", {}).items():
        yield f"* **Made from** {code(f'hf://datasets/{name}@{commit}')}"
    files = counted(len(manifest.files), "file")
    num_bytes = size(manifest.num_bytes)
    yield f"* **Size**: {num_bytes} in {files}; their sha256 are in `{MANIFEST_NAME}`"


def _of_people(facts: ExportFacts) -> Iterator[str]:
    """Yield what only `card:` says of the whole dataset."""
    card = facts.card
    said = {
        "Licence": card.license,
        "Languages": ", ".join(card.language),
        "Made by": ", ".join(card.creators),
        "Published": card.published,
        "Version": card.version,
        "Web page": card.url,
        "Meant for": card.purpose,
    }
    yield from (f"* **{name}**: {in_cell(of)}" for name, of in said.items() if of)


def _sources(sources: Sequence[Source]) -> Iterator[str]:
    """Yield a table of the sources; croissant.json has the digests of all raw files."""
    if not sources:
        return
    headings = ["source", "owner", "licence", "languages", "period", "collected as", "raw files"]
    numbers = {of: f"{label(of)} read" for of in ("num_documents", "num_bytes", "num_tokens")}
    rows = [
        [
            *of_person(of.card),
            *map(_number, (len(of.raw_files), *(of.counts[name] for name in numbers))),
            code(of.digest),
        ]
        for of in sources
    ]
    yield "### Sources"
    yield "\n".join(table([*headings, *numbers.values(), "sha256 of raw files"], rows))


def of_person(card: SourceCard) -> list[str]:
    """Return what a person says of a source, in the order of the table of sources; empty where
    nothing is said."""
    title = f"[{card.title}]({card.url})" if card.url else str(card.title)
    said = [title, card.owner, card.license, ", ".join(card.language), card.period, card.collected]
    return [of or "" for of in said]


def _tables(facts: ExportFacts) -> Iterator[str]:
    """Yield what filters left out, and what a mixture was to take and took."""
    if facts.left_out or facts.rules:
        yield "### Left out"
    if facts.left_out:
        yield "\n".join(
            table(["what", "number"], [[of, _number(num)] for of, num in facts.left_out])
        )
    if facts.rules:
        yield "\n".join(table(*formatted_rows(facts.rules)))
    mixture: Mapping[str, Any] = facts.export.manifest.details.get("mixture", {})
    if mixture:
        yield "### Mixture, as planned and as it came out"
        yield "\n".join(table(*formatted_rows(mixture_rows(mixture))))


def code(text: str) -> str:
    """Return a name as code, on one line, whatever it has in it."""
    text = " ".join(text.split()).replace("`", "'").replace("-->", "->")
    return f"`{text}`"
