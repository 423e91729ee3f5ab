"""Exclusion: documents that lists name, to be taken out of every part and export."""
