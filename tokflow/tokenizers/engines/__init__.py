"""Engines, which make token ids: the reference of each kind of tokenizer, and the fast one."""
