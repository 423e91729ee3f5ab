"""Files of a push, divided into commits."""

from collections.abc import Iterator

from tokflow.hub.dataset_repository import File

COMMIT_FILES = 250
"""Files of one commit, as in huggingface_hub: the hub can time out on larger commits."""
COMMIT_BYTES = 100_000_000_000
"""Bytes of one commit. What is in it when a push is killed is not sent again, but looked at."""
TEXT_BYTES = 10_000_000
COMMIT_TEXT_BYTES = 100_000_000
"""Bytes of files in the commit itself, which is made in memory: the hub keeps larger files, and
those with the suffixes of `KEPT_ELSEWHERE`, in its large-file storage."""
KEPT_ELSEWHERE = (".parquet", ".arrow", ".bin", ".npy", ".npz", ".tar", ".gz", ".zst", ".lz4")


def batches_of(files: list[File], most_bytes: int) -> Iterator[list[File]]:
    """Yield the files of each commit, in order; one without any where there are none."""
    batch: list[File] = []
    num_bytes = num_text_bytes = 0
    for file in files:
        is_text = file.num_bytes <= TEXT_BYTES and not file.path.endswith(KEPT_ELSEWHERE)
        num_bytes += file.num_bytes
        num_text_bytes += file.num_bytes * is_text
        is_full = num_bytes > most_bytes or num_text_bytes > COMMIT_TEXT_BYTES
        if batch and (is_full or len(batch) == COMMIT_FILES):
            yield batch
            batch, num_bytes, num_text_bytes = [], file.num_bytes, file.num_bytes * is_text
        batch.append(file)
    yield batch
