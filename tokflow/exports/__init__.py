"""Files in somebody else's format, made from the parts of a split; a format is a module, imported
when it is used."""

from tokflow.exports.config import (
    ExportConfig,
    check_exports,
    check_parts,
    export_recipe,
    with_names,
)
from tokflow.exports.format import Arrays, Declared, Extra, Format, Layout
from tokflow.exports.formats import FORMATS, check_format
from tokflow.exports.index import INDEX_NAME
from tokflow.exports.part import Part, inputs_of
from tokflow.exports.reading import Export, open_export
from tokflow.exports.writing import index_of, write_export

__all__ = [
    "FORMATS",
    "INDEX_NAME",
    "Arrays",
    "Declared",
    "Export",
    "ExportConfig",
    "Extra",
    "Format",
    "Layout",
    "Part",
    "check_exports",
    "check_format",
    "check_parts",
    "export_recipe",
    "index_of",
    "inputs_of",
    "open_export",
    "with_names",
    "write_export",
]
