"""An engine that holds the interpreter, in processes of its own.

    python -m tokflow.tokenizers.engines.workers FOLDER IN_TEXT [trust_remote_code]

Each worker loads the tokenizer and answers requests on its standard input and output until the
input ends. Neither fork nor multiprocessing is used: a fork would copy the threads' locks of other
engines, and multiprocessing imports the user's script again.

    request    int64 num_texts, int64[num_texts + 1] offsets, the UTF-8 bytes
    answer     int64 num_texts, int64[num_texts + 1] offsets, uint32[offsets[-1]] token ids
    error      int64 -1, int64 num_bytes, the message in UTF-8
"""

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import TokenizerError
from tokflow.tokenizers.engines.protocol import Encoded, Engine, InText, text_buffers
from tokflow.tokenizers.engines.transformers_ import TransformersEngine

MIN_BYTES = 300_000
"""Text below which the workers are not worth starting: one second of a tokenizer in Python, where
importing transformers takes two."""

TRUST = "trust_remote_code"
"""The argument by which a worker may run the code that came with its tokenizer."""


class WorkersEngine:
    """`engine`, and for large batches the same in `num_workers` processes.

    The processes start with the first large batch and end with this one.
    """

    def __init__(
        self,
        engine: Engine,
        command: Sequence[str],
        *,
        num_workers: int,
        min_bytes: int = MIN_BYTES,
    ) -> None:
        self._engine = engine
        self._command = command
        self._num_workers = num_workers
        self._min_bytes = min_bytes

    @property
    def name(self) -> str:
        """The library that makes the tokens."""
        return self._engine.name

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Return the tokens of each text, in order.

        Raises: TokenizerError where a worker reports an error or has died.
        """
        offsets, _ = text_buffers(texts)
        if self._num_workers < 2 or len(texts) < 2 or offsets[-1] - offsets[0] < self._min_bytes:
            return self._engine.encode(texts)
        shares = _shares(texts, self._num_workers)
        with ThreadPoolExecutor(len(shares)) as pool:
            encoded = list(pool.map(_ask, self._workers, shares))
        counts = [np.diff(one.offsets) for one in encoded]
        ends = np.cumsum(np.concatenate(counts))
        return Encoded(
            token_ids=np.concatenate([one.token_ids for one in encoded]),
            offsets=np.concatenate([np.zeros(1, dtype=np.int64), ends]),
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return self._engine.decode(token_ids)

    @cached_property
    def _workers(self) -> list["subprocess.Popen[bytes]"]:
        workers = [
            subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(self._num_workers)
        ]
        weakref.finalize(self, _end, workers)
        return workers


def open_transformers(folder: Path, *, in_text: InText, trust_remote_code: bool) -> WorkersEngine:
    """Return the engine of a tokenizer that only `transformers` loads, on all cores.

    Raises: UntrustedCodeError, CorruptOutputError.
    """
    consent = [TRUST] if trust_remote_code else []
    return WorkersEngine(
        TransformersEngine(folder, in_text=in_text, trust_remote_code=trust_remote_code),
        [sys.executable, "-P", "-m", __name__, str(folder), in_text, *consent],
        num_workers=os.cpu_count() or 1,
    )


def _shares(texts: pa.LargeStringArray, num_shares: int) -> list[pa.LargeStringArray]:
    """Return neighbouring texts in shares of about as many bytes; none is empty."""
    offsets, _ = text_buffers(texts)
    targets = np.linspace(offsets[0], offsets[-1], num_shares + 1)[1:-1]
    edges = np.unique([0, *np.searchsorted(offsets, targets), len(texts)]).tolist()
    return [texts.slice(start, stop - start) for start, stop in pairwise(edges)]


def _ask(worker: "subprocess.Popen[bytes]", texts: pa.LargeStringArray) -> Encoded:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        _send_texts(worker.stdin, texts)
        answer = _receive(worker.stdout)
    except (BrokenPipeError, EOFError):
        raise TokenizerError(
            where="a worker process of the tokenizer",
            expected="the tokens of a batch",
            found=f"its end, with exit status {worker.wait()}",
            remedy="run again; with status -9 the machine was probably out of memory",
        ) from None
    if isinstance(answer, str):
        raise TokenizerError(**json.loads(answer))
    offsets, token_ids = answer
    return Encoded(token_ids=token_ids.view(np.uint32), offsets=offsets)


def _end(workers: Sequence["subprocess.Popen[bytes]"]) -> None:
    for worker in workers:
        worker.communicate()


def _send_texts(stream: IO[bytes], texts: pa.LargeStringArray) -> None:
    offsets, data = text_buffers(texts)
    _send(stream, offsets - offsets[0], data[offsets[0] : offsets[-1]])


def _send(
    stream: IO[bytes], offsets: npt.NDArray[np.int64], values: npt.NDArray[np.generic]
) -> None:
    stream.write(np.int64(len(offsets) - 1).tobytes())
    stream.write(offsets.tobytes())
    stream.write(values.tobytes())
    stream.flush()


def _receive(
    stream: IO[bytes], itemsize: int = 4
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]] | str:
    """Return offsets and the bytes of values, or the message of an error.

    Raises: EOFError at the end of the stream.
    """
    num = int(_read(stream, 8).view(np.int64)[0])
    if num < 0:
        num_bytes = int(_read(stream, 8).view(np.int64)[0])
        return _read(stream, num_bytes).tobytes().decode()
    offsets = _read(stream, 8 * (num + 1)).view(np.int64)
    return offsets, _read(stream, int(offsets[-1]) * itemsize)


def _read(stream: IO[bytes], num_bytes: int) -> npt.NDArray[np.uint8]:
    data = stream.read(num_bytes)
    if len(data) < num_bytes:
        raise EOFError
    return np.frombuffer(data, dtype=np.uint8)


def serve(open_engine: Callable[[], Engine], requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more; an error is an answer as well."""
    engine: Engine | None = None
    while True:
        try:
            request: Any = _receive(requests, itemsize=1)
        except EOFError:
            return
        offsets, data = request
        try:
            engine = engine or open_engine()
            texts = pa.LargeStringArray.from_buffers(
                len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data)
            )
            encoded = engine.encode(texts)
        except Exception as error:
            message = json.dumps(_explained(error).fields())
            text = np.frombuffer(message.encode(), dtype=np.uint8)
            answers.write(np.array([-1, len(text)], dtype=np.int64).tobytes() + text.tobytes())
            answers.flush()
        else:
            _send(answers, encoded.offsets, encoded.token_ids.astype(np.uint32))


def _explained(error: Exception) -> TokenizerError:
    if isinstance(error, TokenizerError):
        return error
    return TokenizerError(
        where="the tokenizer, in a worker process",
        expected="the tokens of a batch",
        found=f"{type(error).__name__}: {error}",
        remedy="see whether transformers alone can encode these documents",
    )


def main() -> None:
    """Be a worker."""
    folder, in_text, *consent = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the tokenizer's code prints is no answer
    choice: InText = "control" if in_text == get_args(InText)[1] else "ordinary"

    def open_engine() -> Engine:
        is_trusted = consent == [TRUST]
        return TransformersEngine(Path(folder), in_text=choice, trust_remote_code=is_trusted)

    serve(open_engine, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
