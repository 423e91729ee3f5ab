"""Mixtures: datasets whose documents come from other datasets, as upstream of a build."""
