"""Files at a URL, fetched before their samples are gathered."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import numpy as np

from tokflow.errors import TokflowError
from tokflow.loaders.samples import FilesOf, Samples
from tokflow.store.store import Store, bring

STEP = 1_024
"""Samples whose files are looked for at one go, 2 ms of a shuffle."""

STEPS_AHEAD = 64
"""65,536 samples: of 2,048 tokens 256 MB, which a network brings in the time in which no training
has gone through them."""

FILES_AT_ONCE = 32


class FilesAhead:
    """The files of the next 65,536 samples on their way to this disk, for whoever goes through them
    in order; nothing where all are on this disk. No sample is made.

    A file that cannot be fetched is passed over: who reads it meets the error.
    """

    def __init__(self, samples: Samples) -> None:
        files_of, num_samples = samples.files_elsewhere(), len(samples)
        self._files_of_step = None if files_of is None else _by_steps(files_of, num_samples)
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._step: int | None = None

    def move_to(self, sample: int) -> None:
        """Fetch the files of the samples from this one on; does something every 1,024 samples."""
        if self._files_of_step is None or self._step == sample // STEP:
            return
        if self._step is None:
            arguments = self._queue, self._files_of_step
            Thread(target=_fetch, args=arguments, name="tokflow-files", daemon=True).start()
        self._step = sample // STEP
        self._queue.put(self._step)

    def __del__(self) -> None:
        self._queue.put(None)  # takes no lock that a forked process may have copied


def _by_steps(files_of: FilesOf, num_samples: int) -> Callable[[int], Iterable[tuple[Store, Path]]]:
    def files_of_step(step: int) -> Iterable[tuple[Store, Path]]:
        numbers = np.arange(step * STEP, min((step + 1) * STEP, num_samples))
        return files_of(numbers) if len(numbers) else ()

    return files_of_step


def _fetch(
    queue: SimpleQueue[int | None], files_of_step: Callable[[int], Iterable[tuple[Store, Path]]]
) -> None:
    """Fetch the files of the steps from the one that was named last, until None is."""
    files: Iterator[tuple[Store, Path]] = iter(())
    step, behind = queue.get(), 0
    while step is not None:
        if not step <= behind <= step + STEPS_AHEAD:
            files, behind = iter(()), step
        if some := list(islice(files, FILES_AT_ONCE)):
            with suppress(TokflowError, OSError):
                bring(some)
        elif behind < step + STEPS_AHEAD:
            files, behind = iter(files_of_step(behind)), behind + 1
        else:
            step = queue.get()
        while step is not None and not queue.empty():
            step = queue.get()
