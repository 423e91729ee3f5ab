"""Viewer of an export: one page to look through its sequences, token by token."""
