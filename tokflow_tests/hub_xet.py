"""Large files as hf_xet sends them to the hub of `tokflow_tests.hub`.

A client cuts files into chunks, sends them packed (a xorb: chunks by number), and then a shard:
for each file the chunks that it is made of, and its sha256. All numbers are little-endian.

    chunk   version u8, stored length u24, scheme u8 (0 none, 1 LZ4, 2 LZ4 of grouped bytes),
            length u24, content
    shard   a header, then for each file: 48 bytes of (hash, flags u32, number of terms u32), of
            each term (xorb, flags, length u32, first chunk u32, end u32), of each term a hash if
            flags has bit 31, and of the file its sha256 if it has bit 30; a hash of ones ends them

Source: what hf_xet 1.8.0 sends; huggingface/xet-core at v1.1, mdb_shard/src/file_structs.rs and
cas_object/src/cas_chunk_format.rs.
"""

import hashlib
import re
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from tokflow_tests.hub import Hub, _Handler

TOKEN = "xet-token"
ROW = 48
END = b"\xff" * 32
HAS_TERM_HASHES, HAS_SHA256 = 1 << 31, 1 << 30


def grant(handler: "_Handler"):
    """Answer who asks for the right to send chunks, and where to."""
    until = int(time.time()) + 3_600
    handler.send_json({"casUrl": handler.hub.cdn, "exp": until, "accessToken": TOKEN})


def answer_xet(handler: "_Handler", path: str) -> None:
    """Answer a request to the other host."""
    hub = handler.hub
    assert handler.headers["Authorization"] == f"Bearer {TOKEN}"
    if match := re.fullmatch(r"/v1/xorbs/default/([0-9a-f]{64})", path):
        hub.xorbs[match[1]] = list(_chunks(handler.body))
        handler.send_json({"was_inserted": True})
    elif path == "/v1/shards":
        for sha256, content in _files(hub, handler.body):
            assert hashlib.sha256(content).hexdigest() == sha256
            hub.large[sha256] = content
            hub.received.append(sha256)
        handler.send_json({"result": 1})
    else:
        handler.send(b"", status=404)


def _chunks(xorb: bytes) -> Iterator[bytes]:
    at = 0
    while at + 8 <= len(xorb) and xorb[at] == 0:
        stored, scheme, length = _u24(xorb, at + 1), xorb[at + 4], _u24(xorb, at + 5)
        content = xorb[at + 8 : at + 8 + stored]
        if scheme:
            content = pa.decompress(content, length, codec="lz4", asbytes=True)
        yield _ungrouped(content) if scheme == 2 else content
        at += 8 + stored


def _ungrouped(content: bytes) -> bytes:
    """Return bytes of which first all with a number divisible by 4 came, then those after them."""
    found = bytearray(len(content))
    at = 0
    for first in range(4):
        num = len(found[first::4])
        found[first::4] = content[at : at + num]
        at += num
    return bytes(found)


def _files(hub: "Hub", shard: bytes) -> Iterator[tuple[str, bytes]]:
    at = ROW
    while shard[at : at + 32] != END:
        flags, num_terms = struct.unpack_from("<II", shard, at + 32)
        at += ROW
        content = bytearray()
        for _ in range(num_terms):
            _, length, first, end = struct.unpack_from("<IIII", shard, at + 32)
            found = b"".join(hub.xorbs[_hash(shard, at)][first:end])
            assert len(found) == length
            content += found
            at += ROW
        at += ROW * num_terms * bool(flags & HAS_TERM_HASHES)
        assert flags & HAS_SHA256
        yield _hash(shard, at), bytes(content)
        at += ROW


def _hash(data: bytes, at: int) -> str:
    """Return a hash as text: its bytes lie in groups of eight, each the wrong way round."""
    return struct.pack(">4Q", *struct.unpack_from("<4Q", data, at)).hex()


def _u24(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 3], "little")
