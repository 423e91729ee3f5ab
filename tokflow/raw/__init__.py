"""Find and fetch the raw files of a dataset.

list_raw         what is there, by key, and what is left out; reads no content
read_raw_files   on this disk, with the sha256 of the content; downloads what is elsewhere, or
                 has it fetched as it is read
check_unchanged  whoever read a raw file makes sure that it stayed the same meanwhile
partitions_of    which of them each partition is made of
"""

from tokflow.raw.config import RawConfig
from tokflow.raw.fetch import read_raw_files
from tokflow.raw.files import (
    Progress,
    RawFile,
    RawPartition,
    check_unchanged,
    group_key,
    partitions_of,
)
from tokflow.raw.globs import escaped
from tokflow.raw.listing import LeftOut, Listing, RawSource, check_key, list_raw

__all__ = [
    "LeftOut",
    "Listing",
    "Progress",
    "RawConfig",
    "RawFile",
    "RawPartition",
    "RawSource",
    "check_key",
    "check_unchanged",
    "escaped",
    "group_key",
    "list_raw",
    "partitions_of",
    "read_raw_files",
]
