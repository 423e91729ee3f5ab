import threading

from tokflow.pools.machine import renew_in_forks
from tokflow_tests.pools.forked import forked


class Locked:
    """A lock, and how often it was renewed."""

    def __init__(self) -> None:
        self.lock, self.num_renewed = threading.Lock(), 0
        renew_in_forks(self, Locked.renew)

    def renew(self) -> None:
        self.lock, self.num_renewed = threading.Lock(), self.num_renewed + 1


def test_a_forked_process_renews_what_threads_hold_and_this_one_does_not():
    first, second = Locked(), Locked()

    with first.lock, second.lock:
        found = forked(lambda: [each.lock.acquire(timeout=0) for each in (first, second)])
        assert found == [True, True]
        assert first.lock.locked()
    assert first.num_renewed == 0
    assert forked(lambda: (forked(lambda: first.num_renewed), first.num_renewed)) == (2, 1)
