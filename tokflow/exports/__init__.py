"""Files in somebody else's format, made from the parts of a split; a format is a module of the
folder `formats`, imported when it is used."""

from tokflow.exports.config import ExportConfig
from tokflow.exports.format import Arrays, Extra, Format, Layout, Portion
from tokflow.exports.formats import FORMATS, check_format
from tokflow.exports.index import INDEX_NAME, damaged_file
from tokflow.exports.part import FileFacts, Part
from tokflow.exports.reading import Export

__all__ = [
    "FORMATS",
    "INDEX_NAME",
    "Arrays",
    "Export",
    "ExportConfig",
    "Extra",
    "FileFacts",
    "Format",
    "Layout",
    "Part",
    "Portion",
    "check_format",
    "damaged_file",
]
