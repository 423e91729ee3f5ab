"""The fields of a manifest: of which kind and in which range each must be."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

MAX_COUNT = 2**63 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
PartName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]+\Z")]


class _File(msgspec.Struct, kw_only=True):
    num_bytes: Count
    sha256: str


class _Details(msgspec.Struct, kw_only=True):
    """Details that more than one module reads; each stage and format has others besides."""

    dtype: Literal["<u2", "<u4"] = "<u2"
    vocab_size: Count = 0
    sequence_length: Count | None = None
    eos_id: Count | None = None
    bos_id: Count | None = None
    pad_id: Count | None = None
    parts: list[PartName] = []
    format: str = ""
    tokenizer_fingerprint: str = ""


class _Fields(msgspec.Struct, kw_only=True):
    stage: str = ""
    dataset: str = ""
    partition: str | None = None
    version: Count = 0
    fingerprint: str = ""
    parents: dict[str, str] = {}
    config: dict[str, Any] = {}
    counts: dict[str, Count] = {}
    details: _Details = msgspec.field(default_factory=_Details)
    files: dict[str, _File] = {}


def check_fields(fields: Mapping[str, Any]) -> None:
    """Check of which kind each field is that is there, and that numbers are in their range.

    Raises: msgspec.ValidationError that says where one is not.
    """
    msgspec.convert(fields, _Fields)
