"""Datasets as the hub of Hugging Face and its `datasets` library have them: the files of a
repository or a folder, by config and split."""
