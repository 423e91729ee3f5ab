"""Datasets as YAML files declare them: found in a project, read, suggested and written."""
