"""Tests with torch and its kin beside tokflow: test_loaders.py runs them in the environment of
peers/loaders.txt. Where there is no torch, as in `.venv`, pytest passes them by."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
