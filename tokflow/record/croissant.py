"""The Croissant description of an export, `_tokflow/croissant.json`: its files, its records where
they are in parquet or JSON lines, and its provenance in terms of PROV-O.

Source: Croissant 1.1, sections Dataset-level information, Resources, Provenance representation.
"""

import json
from collections.abc import Iterator
from typing import Any

from tokflow.exports import Export
from tokflow.exports.columns import TYPES, columns_in_files
from tokflow.exports.table_files import names_in_files
from tokflow.record.card import title_of
from tokflow.record.facts import ExportFacts, Source
from tokflow.store.manifest import MANIFEST_NAME, checksum, sealed

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


def croissant_json(facts: ExportFacts) -> bytes:
    """Return the description, its digest in the second line; the same facts give the same bytes."""
    card, export = facts.card, facts.export
    said = {
        "license": card.license,
        "url": card.url,
        "creator": [{"@type": "sc:Organization", "name": name} for name in card.creators],
        "datePublished": card.published,
        "version": card.version,
        "citeAs": card.citation,
        "inLanguage": [*card.language],
    }
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
    yield _file(FOLDER, "..", "git+https", manifest.sha256)
    for name, entry in export.manifest.files.items():
        encoding = _encoding(name) or "application/octet-stream"
        size = {"contentSize": f"{entry.num_bytes} B"}
        yield _file(name, f"../{name}", encoding, entry.sha256) | size
    for part, encoding in _parts(export):
        yield {
            "@type": "cr:FileSet",
            "@id": f"{part}-files",
            "name": f"{part}-files",
            "containedIn": {"@id": FOLDER},
            "encodingFormat": encoding,
            "includes": [name for name in export.manifest.files if _is_of(export, part, name)],
        }


def _file(name: str, url: str, encoding: str, sha256: str) -> dict[str, Any]:
    fields = {"contentUrl": url, "encodingFormat": encoding, "sha256": sha256}
    return {"@type": "cr:FileObject", "@id": name, "name": name, **fields}


def _parts(export: Export) -> Iterator[tuple[str, str]]:
    """Yield the parts in files of records, and how these are encoded."""
    for part in export.parts if export.layout.columns else ():
        encodings = {_encoding(of) for of in export.manifest.files if _is_of(export, part, of)}
        yield from ((part, of) for of in encodings if of is not None)


def _encoding(name: str) -> str | None:
    """Return the type of a file of records; mlcroissant sees by itself whether it is gzip."""
    return ENCODINGS.get(name.removesuffix(".gz").rpartition(".")[2])


def _is_of(export: Export, part: str, name: str) -> bool:
    before, _, number = name.rpartition("-of-")[0].rpartition("-")
    return before == export.file_name(part) and number.isdecimal()


def _records(export: Export) -> Iterator[dict[str, Any]]:
    """Yield for each part a set of records with the columns of numbers."""
    for part, _ in _parts(export):
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


def _source(source: Source) -> dict[str, Any]:
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
