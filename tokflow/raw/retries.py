"""Waits between tries at a server that breaks off or is busy."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tokflow.raw.remote import TransientError
from tokflow.shown import redact

NUM_TRIES = 5
"""At a broken connection or a busy server, in a row; what arrives meanwhile begins the count
again."""
FIRST_WAIT_SECONDS = 1.0
"""Doubled after each try, up to 30 s; a longer wait that the server asks for is kept."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Retries:
    """Tries at one file, counted."""

    url: str = field(repr=False)
    give_up: Callable[[str], Exception]
    """Returns the error to end with, by what was found."""
    _num_tries: int = 0
    _wait_seconds: float = 0.0

    def __call__(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, the first time that it raises no TransientError."""
        while True:
            try:
                return ask()
            except TransientError as error:
                self.wait(error)

    def wait(self, error: TransientError, *, has_advanced: bool = False) -> None:
        """Wait before the next try. Raises: what `give_up` returns if this was the last."""
        if has_advanced or self._num_tries == 0:
            self._num_tries, self._wait_seconds = 0, FIRST_WAIT_SECONDS
        self._num_tries += 1
        if self._num_tries >= NUM_TRIES:
            raise self.give_up(f"{error}, {self._num_tries} times in a row") from None
        wait = max(self._wait_seconds, error.wait_seconds)
        _log.warning("%s: %s; trying again in %.1f s", redact(self.url), error, wait)
        time.sleep(wait)
        self._wait_seconds = min(2 * self._wait_seconds, 30.0)
