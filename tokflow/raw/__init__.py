"""Find and fetch the raw files of a dataset.

list_raw         the files that patterns match, by key, and those left out; reads no content
read_raw_files   the files with the sha256 of their content; remote ones are downloaded, or fetched
                 as they are read
partitions_of    the files of each partition
"""

from tokflow.raw.config import GroupProposal, RawConfig
from tokflow.raw.fetch import read_raw_files
from tokflow.raw.files import RawFile, RawPartition, group_key, partitions_of
from tokflow.raw.globs import escaped
from tokflow.raw.hashes import Progress
from tokflow.raw.sources import BadFile, LeftOut, Listing, RawSource, list_raw

__all__ = [
    "BadFile",
    "GroupProposal",
    "LeftOut",
    "Listing",
    "Progress",
    "RawConfig",
    "RawFile",
    "RawPartition",
    "RawSource",
    "escaped",
    "group_key",
    "list_raw",
    "partitions_of",
    "read_raw_files",
]
