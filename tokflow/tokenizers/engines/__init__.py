"""Engines, which make token ids: the reference of each kind of tokenizer, and the fast one."""

from tokflow.tokenizers.engines.gate import EngineDiffersError, GatedEngine, open_engine
from tokflow.tokenizers.engines.protocol import Encoded, Engine, InText, ReferenceEngine
from tokflow.tokenizers.engines.reference import open_reference

__all__ = [
    "Encoded",
    "Engine",
    "EngineDiffersError",
    "GatedEngine",
    "InText",
    "ReferenceEngine",
    "open_engine",
    "open_reference",
]
