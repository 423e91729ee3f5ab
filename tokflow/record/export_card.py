"""Card and Croissant description beside an export, `_tokflow/README.md` and
`_tokflow/croissant.json`: written where they are not those of now.

The description has the files of an export, its records where they are in parquet or JSON lines, and
its provenance in terms of PROV-O.

Source: Croissant 1.1, sections Dataset-level information, Resources, Provenance representation.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from tokflow.errors import CorruptOutputError
from tokflow.exports import INDEX_NAME, Export
from tokflow.exports.columns import TYPES, columns_in_files
from tokflow.exports.table_files import names_in_files
from tokflow.formatting import counted, size
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.fields import CardConfig, SourceCard
from tokflow.pipeline.mixture import mixture_rows
from tokflow.pipeline.output import Output
from tokflow.split.permutation import shuffled_by
from tokflow.store.listed_files import CARD_NAME, CROISSANT_NAME, is_as_written, with_digest
from tokflow.store.manifest import MANIFEST_NAME, checksum, sealed
from tokflow.store.store import StoredOutput
from tokflow.tokenizers.engines.reference import describe_reference

if TYPE_CHECKING:  # a run with nothing to do asks for no facts
    from tokflow.record.facts import ExportFacts, Source

CARDS_VERSION = 2
"""Raised when the same facts would give other text."""


def cards_of(dataset: Dataset) -> dict[str, CardConfig]:
    """Return the cards of a dataset and, of a mixture, of its sources, by their names."""
    return {of.name: of.card for of in (dataset, *dataset.sources)}


def write_cards(dataset: Dataset, outputs: Iterable[Output]) -> int:
    """Write card and Croissant description beside each export among outputs, unless those of now
    are there; return how many exports got others.

    Each file is written whole or not at all, the card last, which says what both were made from;
    where they are up to date nothing else is read.
    """
    cards, store, num_written = cards_of(dataset), dataset.store, 0
    said = {name: card.model_dump(mode="json") for name, card in cards.items()}
    for export in [of for of in outputs if of.step.has_latest and of.is_made]:
        decides = json.dumps([CARDS_VERSION, export.fingerprint, said], sort_keys=True)
        mark = f"<!-- made from {hashlib.sha256(decides.encode()).hexdigest()} -->"
        names = (CROISSANT_NAME, CARD_NAME)
        found = {name: store.read_beside(export.folder, name) or b"" for name in names}
        are_whole = all(is_as_written(name, data) for name, data in found.items())
        if not (are_whole and mark.encode() in found[CARD_NAME]):
            from tokflow.record.facts import facts_of, lineage_in_graph

            facts = facts_of(lineage_in_graph(export), cards)
            store.write_beside(export.folder / CROISSANT_NAME, croissant_json(facts))
            text = f"{card_text(facts)}\n\n{mark}"
            store.write_beside(export.folder / CARD_NAME, with_digest(text))
            num_written += 1
    return num_written


def read_card(export: StoredOutput) -> str:
    """Return the card that stands beside an export; of one without, what its manifests say.

    Raises: CorruptOutputError where it is not as it was written.
    """
    data = export.store.read_beside(export.folder, CARD_NAME)
    if data is None:
        from tokflow.audit.ancestry import Ancestry
        from tokflow.record.facts import known_facts

        return card_text(known_facts(export, {}, Ancestry()))
    if not is_as_written(CARD_NAME, data):
        raise CorruptOutputError(
            where=export.folder / CARD_NAME,
            expected="the sha256 of its other lines in the last one, as it was written",
            found="other bytes",
            remedy="remove it, and `tokflow run` writes it again",
        )
    return data.decode()


OF_PEOPLE = {
    "license": ("Licence", "license"),
    "language": ("Languages", "inLanguage"),
    "creators": ("Made by", "creator"),
    "published": ("Published", "datePublished"),
    "version": ("Version", "version"),
    "url": ("Web page", "url"),
    "purpose": ("Meant for", ""),
    "citation": ("", "citeAs"),
}
"""Fields of a card: what it calls each in its list of facts, and Croissant in its terms."""


def card_text(facts: "ExportFacts") -> str:
    """Return the card, as huggingface_hub reads it; the same facts give the same text."""
    card, export, manifest = facts.card, facts.export, facts.export.manifest
    languages = sorted({of for source in facts.sources for of in source.card.language})
    known = {"language": [*card.language] or languages, "license": card.license}
    known = {name: of for name, of in {**known, "pretty_name": card.title}.items() if of}
    header = yaml.safe_dump({**known, "tags": ["tokflow"]}, sort_keys=False, allow_unicode=True)
    recipes = yaml.safe_dump(facts.recipes, sort_keys=False, allow_unicode=True, width=math.inf)
    about = export.format.description.replace("<", "&lt;")
    counts = export.counts
    names = ["num_tokens", "num_sequences", "num_padding", "num_documents"]
    names = [name for name in names if any(f"{of}.{name}" in counts for of in export.parts)]
    rows = [[part, *(counts.get(f"{part}.{name}") for name in names)] for part in export.parts]
    blocks = [
        f"---\n{header}---",
        f"# {title_of(facts)}",
        card.description,
        f"## {manifest.dataset}, as {export.format_name}",
        f"{about}.",
        table(["part", *(of.removeprefix("num_") for of in names)], rows),
        "\n".join(_facts(facts)),
        *_tables(facts),
        f"`{INDEX_NAME}` has the raw file and row of each document."
        if INDEX_NAME in manifest.files
        else "",
        f"Made by tokflow: fingerprint `{manifest.recipe.fingerprint}`. The recipe, of what is "
        "made of each raw file that of the first:",
        f"```yaml\n{recipes.strip()}\n```",
        f"Cite as:\n\n```bibtex\n{card.citation.strip()}\n```" if card.citation else "",
    ]
    return "\n\n".join(filter(None, blocks))


def title_of(facts: "ExportFacts") -> str:
    """Return the name of the dataset for people."""
    return facts.card.title or facts.export.manifest.dataset


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown, numbers to the right; nothing in a cell ends it or a comment."""
    texts = [[f"{of:,}" if isinstance(of, int) else of or "" for of in row] for row in rows]
    cells = ["".join(of[at] for of in texts) for at in range(len(headings))]
    are_numbers = (re.fullmatch(r"[\d,.%kMGTP B]+", of) for of in cells)
    lines = [
        f"| {' | '.join(headings)} |",
        f"|{''.join('---:|' if number else '---|' for number in are_numbers)}",
        *(f"| {' | '.join(map(in_cell, row))} |" for row in texts),
    ]
    return "\n".join(lines)


def in_cell(text: str) -> str:
    """Return text on one line of a table, in which nothing ends a cell or a comment."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _facts(facts: "ExportFacts") -> Iterator[str]:
    """Yield lines of what decides the tokens, and of what only `card:` says of the dataset."""
    export = facts.export
    manifest, details = export.manifest, export.manifest.details
    names = details.get("names", {})
    eos = "no EOS" if export.eos_id is None else f"EOS {export.eos_id:,} ends each document"
    tokenizer = f" {code(names['tokenizer'])}," if "tokenizer" in names else ""
    yield f"* **Tokenizer**:{tokenizer} {export.vocab_size:,} ids, {export.dtype.name}; {eos}"
    if facts.tokenizer is not None and (of := facts.tokenizer.details.get("reference")):
        libraries = facts.recipes.get("tokens", {}).get("libraries", {})
        yield f"* **Ids**: those of {describe_reference(of, libraries)}"
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
    for field, (heading, _) in OF_PEOPLE.items():
        if heading and (said := getattr(facts.card, field)):
            text = said if isinstance(said, str) else ", ".join(said)
            yield f"* **{heading}**: {in_cell(text)}"


def of_person(card: SourceCard) -> list[str]:
    """Return what a person says of a source, in the order of the table of sources; empty where
    nothing is said."""
    title = f"[{card.title}]({card.url})" if card.url else str(card.title)
    said = [title, card.owner, card.license, ", ".join(card.language), card.period, card.collected]
    return [of or "" for of in said]


def _tables(facts: "ExportFacts") -> Iterator[str]:
    """Yield the sources, whose raw files the Croissant description has one by one, what filters
    left out, and what a mixture was to take and took."""
    from tokflow.pipeline.describe import formatted_rows, label

    if facts.sources:
        headings = ["source", "owner", "licence", "languages", "period", "collected as"]
        numbers = {of: f"{label(of)} read" for of in ("num_documents", "num_bytes", "num_tokens")}
        yield "### Sources"
        yield table(
            [*headings, "raw files", *numbers.values(), "sha256 of raw files"],
            [
                [
                    *of_person(of.card),
                    len(of.raw_files),
                    *(of.counts[name] for name in numbers),
                    code(of.digest),
                ]
                for of in facts.sources
            ],
        )
    if facts.left_out or facts.rules:
        yield "### Left out"
    if facts.left_out:
        yield table(["what", "number"], facts.left_out)
    if facts.rules:
        yield table(*formatted_rows(facts.rules))
    if mixture := facts.export.manifest.details.get("mixture", {}):
        yield "### Mixture, as planned and as it came out"
        yield table(*formatted_rows(mixture_rows(mixture)))


def code(text: str) -> str:
    """Return a name as code, on one line, whatever it has in it."""
    text = " ".join(text.split()).replace("`", "'").replace("-->", "->")
    return f"`{text}`"


CONFORMS_TO = "http://mlcommons.org/croissant/1.1"

_OWN_TERMS = """arrayShape citeAs column containedIn equivalentProperty extract field fileObject
fileProperty fileSet format includes isArray isLiveDataset jsonPath key md5 parentField path
recordSet references regex repeated replace samplingRate separator source subField transform"""

CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{name: {"@container": "@language"} for name in ("name", "description")},
    **{name: {"@id": f"cr:{name}", "@type": "@json"} for name in ("data", "examples")},
    **{name: f"cr:{name}" for name in _OWN_TERMS.split()},
}

ENCODINGS = {"parquet": "application/x-parquet", "jsonl": "application/jsonlines"}
"""Suffixes of files of records, as readers of Croissant name what they are."""

FOLDER = "export"


def croissant_json(facts: "ExportFacts") -> bytes:
    """Return the description, its digest in the second line; the same facts give the same bytes."""
    card, export = facts.card, facts.export
    said = {term: getattr(card, field) for field, (_, term) in OF_PEOPLE.items() if term}
    said["creator"] = [{"@type": "sc:Organization", "name": name} for name in card.creators]
    fields = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": title_of(facts),
        "description": card.description or f"{export.format.description}.",
        **{name: of for name, of in said.items() if of},
        "distribution": [*_files(export)],
        "recordSet": [*_records(export)],
        "prov:wasDerivedFrom": [_source(of) for of in facts.sources],
        "prov:wasGeneratedBy": [
            {
                "@type": "prov:Activity",
                "prov:label": stage,
                "description": json.dumps(recipe, sort_keys=True, ensure_ascii=False),
            }
            for stage, recipe in facts.recipes.items()
        ],
        "prov:wasAttributedTo": {"@type": "prov:SoftwareAgent", "prov:label": "tokflow"},
    }
    return sealed(fields)


def _files(export: Export) -> Iterator[dict[str, Any]]:
    """Yield each file, and the folder with all of them: mlcroissant 1.1.1 finds the files of a set
    in a folder if that is said to be a repository, as on the hub it is."""
    manifest = checksum(export.folder / MANIFEST_NAME)
    files = {FOLDER: ("..", "git+https", manifest.sha256, "")}
    for name, entry in export.manifest.files.items():
        encoding = _encoding(name) or "application/octet-stream"
        files[name] = f"../{name}", encoding, entry.sha256, f"{entry.num_bytes} B"
    for name, (url, encoding, sha256, num_bytes) in files.items():
        yield {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": url,
            "encodingFormat": encoding,
            "sha256": sha256,
            **({"contentSize": num_bytes} if num_bytes else {}),
        }
    for part, encoding, names in _parts(export):
        yield {
            "@type": "cr:FileSet",
            "@id": f"{part}-files",
            "name": f"{part}-files",
            "containedIn": {"@id": FOLDER},
            "encodingFormat": encoding,
            "includes": names,
        }


def _parts(export: Export) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the parts in files of records, how these are encoded, and their names."""
    for part in export.parts if export.layout.columns else ():
        names = re.compile(rf"{re.escape(export.file_name(part))}-\d+-of-[^-]*")
        files = [of for of in export.manifest.files if names.fullmatch(of)]
        yield from ((part, of, files) for of in {*map(_encoding, files)} if of is not None)


def _encoding(name: str) -> str | None:
    """Return the type of a file of records; mlcroissant sees by itself whether it is gzip."""
    return ENCODINGS.get(name.removesuffix(".gz").rpartition(".")[2])


def _records(export: Export) -> Iterator[dict[str, Any]]:
    """Yield for each part a set of records with the columns of numbers."""
    for part, *_ in _parts(export):
        columns = columns_in_files(export.options, is_chats=export.has_loss_mask(part))
        fields = [
            {
                "@type": "cr:Field",
                "@id": f"{part}/{name}",
                "name": name,
                "dataType": f"cr:Int{TYPES[column].bit_width}",
                "isArray": True,
                "arrayShape": "-1",
                "source": {"fileSet": {"@id": f"{part}-files"}, "extract": {"column": name}},
            }
            for column, name in zip(columns, names_in_files(export.options, columns), strict=True)
        ]
        yield {"@type": "cr:RecordSet", "@id": part, "name": part, "field": fields}


def _source(source: "Source") -> dict[str, Any]:
    """Return a source as what the export was derived from."""
    card = source.card
    said = {
        "description": card.description,
        "url": card.url,
        "license": card.license,
        "inLanguage": [*card.language],
        "temporalCoverage": card.period,
        "prov:wasAttributedTo": card.owner and {"@type": "prov:Agent", "prov:label": card.owner},
    }
    files = [
        {"@type": "prov:Entity", "prov:label": key, "sha256": digest}
        for key, digest in source.raw_files.items()
    ]
    known = {name: of for name, of in said.items() if of}
    return {"@type": "prov:Entity", "prov:label": card.title, **known, "hasPart": files}
