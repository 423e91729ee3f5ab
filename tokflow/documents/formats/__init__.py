"""Formats of raw files: a module for each that reads its documents, imported when a file is."""
