"""Python 3.14's module for Zstandard, or its backport for older ones."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
