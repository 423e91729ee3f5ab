"""What differs between two exports, datasets or stores, and from which input it comes."""
