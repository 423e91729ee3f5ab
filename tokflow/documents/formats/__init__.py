"""Formats of raw files: modules that read their documents, imported when a file is read."""
