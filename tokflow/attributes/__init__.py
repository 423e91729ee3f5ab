"""Attributes: columns that somebody else has made, or a function makes, beside each document."""
