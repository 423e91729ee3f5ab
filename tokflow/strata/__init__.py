"""Strata: named subsets of the documents, by which each part of the split is divided."""
