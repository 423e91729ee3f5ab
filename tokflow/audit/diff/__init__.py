"""Differences between two exports, datasets or stores, and the inputs that they come from."""
