import os
import signal
import sys
import time

import pytest

from tokflow.errors import TokenizerError
from tokflow.store.arrow import to_texts
from tokflow.tokenizers.engines.reference import BytesEngine
from tokflow.tokenizers.engines.workers import WorkersEngine

SERVE = """
import sys
from tokflow.tokenizers.engines.reference import BytesEngine
from tokflow.tokenizers.engines.workers import serve

class Engine(BytesEngine):
    def encode(self, texts):
        if "bad" in texts.to_pylist():
            raise ValueError("no such word")
        return super().encode(texts)

serve(Engine, sys.stdin.buffer, sys.stdout.buffer)
"""
TEXTS = ["one", "", "two and a half", "größe 漢字", "five", "", "seven"]


def workers(num_workers: int = 3, *, min_bytes: int = 1, script: str = SERVE) -> WorkersEngine:
    return WorkersEngine(
        BytesEngine(), [sys.executable, "-c", script], num_workers=num_workers, min_bytes=min_bytes
    )


def test_workers_give_the_tokens_of_all_texts_in_order():
    engine = workers()

    for texts in (TEXTS, TEXTS[::-1], ["x", "y"]):
        got, expected = engine.encode(to_texts(texts)), BytesEngine().encode(to_texts(texts))

        assert got.offsets.tolist() == expected.offsets.tolist()
        assert got.token_ids.tolist() == expected.token_ids.tolist()


def test_a_slice_of_texts_is_sent_without_what_lies_around_it():
    got = workers().encode(to_texts(["zz", *TEXTS, "zz"])[1:-1])

    assert got.token_ids.tolist() == list("".join(TEXTS).encode())


def test_a_small_batch_starts_no_process():
    engine = workers(min_bytes=1_000)

    assert engine.encode(to_texts(TEXTS)).token_ids.tolist() == list("".join(TEXTS).encode())
    assert "_workers" not in vars(engine)


def test_an_error_in_a_worker_is_an_error_here_and_the_next_batch_works():
    engine = workers()

    with pytest.raises(TokenizerError, match="ValueError: no such word"):
        engine.encode(to_texts(["good", "fine", "bad"]))
    assert engine.encode(to_texts(["good", "fine"])).token_ids.tolist() == list(b"goodfine")


def test_a_worker_that_dies_is_an_error_and_no_hang():
    engine = workers()
    engine.encode(to_texts(TEXTS))
    os.kill(engine._workers[1].pid, signal.SIGKILL)

    with pytest.raises(TokenizerError, match="with exit status -9"):
        engine.encode(to_texts(TEXTS))


def test_a_worker_that_cannot_start_is_an_error():
    engine = workers(script="raise SystemExit(3)")

    with pytest.raises(TokenizerError, match="with exit status 3"):
        engine.encode(to_texts(TEXTS))


def test_workers_end_with_their_engine():
    engine = workers()
    engine.encode(to_texts(TEXTS))
    processes = engine._workers

    del engine

    deadline = time.monotonic() + 30
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [process.returncode for process in processes] == [0, 0, 0]
