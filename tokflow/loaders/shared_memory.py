"""Arrays in memory that all processes of a user on a machine share, gone with the last of them."""

import errno
import fcntl
import hashlib
import math
import mmap
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError
from tokflow.pools.forks import renew_in_forks

ArrayLayout: TypeAlias = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The dtype and the shape of each array."""

SharedArrays: TypeAlias = dict[str, npt.NDArray[Any]]

ALIGNMENT = 64
"""Bytes: a line of the cache, and more than any dtype asks for."""


def shared_arrays(
    key: str, layout: ArrayLayout, fill: Callable[[SharedArrays], object]
) -> SharedArrays:
    """Return read-only arrays that hold what `fill` wrote, once for all processes of this user.

    The first process that asks for a key and a layout calls `fill`, with zeros to write to; those
    that ask meanwhile wait, all others find the image. A key must name the content: `fill` is not
    called where it is found, whatever it would write. `fill` keeps none of its arrays.

    The image is memory of the kernel without a path (memfd), open in each process as long as one of
    its arrays is, and in one forked while it is filled. So it is gone with the last of them, also
    after kill -9, and there is nothing to clean. It is sealed when `fill` returns: a half-filled
    one is never found, nobody writes later. Containers that do not see each other's processes have
    an image each.

    Raises: ConfigError where the system is not Linux, where memory is short, and where a process of
    another user stands in the way.
    """
    if sys.platform != "linux":
        raise ConfigError(
            where=f"{key} in memory",
            expected="Linux, whose processes can share memory that leaves nothing behind",
            found=sys.platform,
            remedy="leave `in_memory` out: the page cache keeps what is read often",
        )
    name = f"tokflow-{_digest(key, layout)}"
    address = f"\0{name}-{os.geteuid()}"
    while (image := _found_image(name)) is None:
        with socket.socket(socket.AF_UNIX) as turn:
            if _takes_turn(turn, address):
                image = _found_image(name) or _new_image(key, name, layout, fill)
                break
        _wait_for_turn(key, address)
    return _arrays_in(image, layout)


def _digest(key: str, layout: ArrayLayout) -> str:
    described = [(name, np.dtype(dtype).str, shape) for name, (dtype, shape) in layout.items()]
    return hashlib.sha256(repr((key, described)).encode()).hexdigest()[:32]


def _found_image(name: str) -> mmap.mmap | None:
    """Return the finished image that a process of this user has open, this one too."""
    for link in _open_files():
        with suppress(OSError):  # a process may end, and a file be closed, at any time
            if _is_link_to(name, link):
                file = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if _is_finished(name, file):
                        return _mapped(file)
                finally:
                    os.close(file)
    return None


def _open_files() -> Iterator[str]:
    """Yield the link to each file that a process has open, as text: 60,000 Paths cost 0.3 s."""
    for process in os.listdir("/proc"):  # noqa: PTH208
        if process.isdigit():
            with suppress(OSError):
                folder = f"/proc/{process}/fd"
                yield from (f"{folder}/{number}" for number in os.listdir(folder))  # noqa: PTH208


def _is_link_to(name: str, link: str) -> bool:
    return os.readlink(link) == f"/memfd:{name} (deleted)"  # noqa: PTH115


def _is_finished(name: str, file: int) -> bool:
    """Tell whether a file is the sealed image, of this user; root sees the files of others."""
    return (
        _is_link_to(name, f"/proc/self/fd/{file}")
        and os.fstat(file).st_uid == os.geteuid()
        and bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
    )


def _mapped(file: int) -> mmap.mmap:
    """Return a file as read-only memory, which keeps it open as long as it lives."""
    return mmap.mmap(file, 0, prot=mmap.PROT_READ)


def _takes_turn(turn: socket.socket, address: str) -> bool:
    """Tell whether it is on this process to make the image, until it closes the socket or ends."""
    renew_in_forks(turn, socket.socket.close)  # one that lives on would keep the address
    try:
        turn.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    turn.listen(4096)
    return True


def _wait_for_turn(key: str, address: str) -> None:
    """Wait until the process whose turn it is has closed its socket or ended."""
    with socket.socket(socket.AF_UNIX) as other, suppress(OSError):
        other.connect(address)
        credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        process, user, _ = struct.unpack("iII", credentials)
        if user != os.geteuid():  # anyone may take any address
            raise ConfigError(
                where=f"{key} in memory",
                expected=f"user {os.geteuid()} to fill it, in one process while others wait",
                found=f"process {process} of user {user}, which takes its turn and fills nothing",
                remedy="end that process, or leave `in_memory` out",
            )
        other.recv(1)


def _new_image(
    key: str, name: str, layout: ArrayLayout, fill: Callable[[SharedArrays], object]
) -> mmap.mmap:
    num_bytes = sum(_reserved_bytes(*array) for array in layout.values())
    _check_memory(key, num_bytes)
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, max(num_bytes, 1))
        written = mmap.mmap(file, 0)
        # A process that another thread forks meanwhile has no part of it: it could not be sealed.
        written.madvise(mmap.MADV_DONTFORK)
        fill(_arrays_in(written, layout))
        written.close()
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        # Kernels before 6.7 map no sealed file that is open for writing.
        with Path(f"/proc/self/fd/{file}").open("rb") as sealed:
            return _mapped(sealed.fileno())
    finally:
        os.close(file)


def _check_memory(key: str, num_bytes: int) -> None:
    """Make sure that the machine has the memory: the kernel would kill processes for it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    if num_bytes > available:
        raise ConfigError(
            where=f"{key} in memory",
            expected=f"{num_bytes / 1e9:,.1f} GB of free memory",
            found=f"{available / 1e9:,.1f} GB",
            remedy="leave `in_memory` out: the page cache keeps what is read often",
        )


def _reserved_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT


def _arrays_in(image: mmap.mmap, layout: ArrayLayout) -> SharedArrays:
    arrays, offset = {}, 0
    for name, (dtype, shape) in layout.items():
        arrays[name] = np.ndarray(shape, dtype, buffer=image, offset=offset)
        offset += _reserved_bytes(dtype, shape)
    return arrays
