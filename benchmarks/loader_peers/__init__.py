"""A program for each loader that `python -m benchmarks loaders` measures."""
