"""Files in somebody else's format, made from the parts of a split; a format is a module of the
folder `formats`, imported when it is used."""

from tokflow.exports.config import ExportConfig
from tokflow.exports.format import Layout
from tokflow.exports.formats import FORMATS, check_format
from tokflow.exports.index import INDEX_NAME
from tokflow.exports.part import Part
from tokflow.exports.reading import Export

__all__ = [
    "FORMATS",
    "INDEX_NAME",
    "Export",
    "ExportConfig",
    "Layout",
    "Part",
    "check_format",
]
