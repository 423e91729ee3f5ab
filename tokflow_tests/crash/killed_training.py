"""A training that is killed at random, and resumed with other ranks and another batch size.

    python -m tokflow_tests.crash.killed_training EXPORT FOLDER KILLS SEED

It logs the rows of every batch, and saves the state of its loaders every few batches; what is
logged behind the state it resumes from is cut off, as steps behind a checkpoint are lost.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tokflow.loaders.loader import Loader
from tokflow.loaders.rows import Rows, open_rows


def train(rows: Rows, folder: Path, choose: random.Random, begins: int) -> None:
    """Go on with the training until this process is killed; a byte to `begins` tells of a batch."""
    saved = folder / "state.json"
    state = json.loads(saved.read_text()) if saved.exists() else None
    with (folder / "rows.log").open("ab") as log:
        log.truncate(8 * state["samples"] if state else 0)
        for number, (found, behind) in enumerate(batches_of(rows, state, choose)):
            os.write(begins, b".")
            log.write(found.tobytes())
            if number % 3 == 0:
                log.flush()
                (folder / "state.new").write_text(json.dumps(behind))
                (folder / "state.new").rename(saved)


def batches_of(
    rows: Rows, state: dict | None, choose: random.Random
) -> Iterator[tuple[np.ndarray, dict]]:
    """Yield the rows of all ranks together, and the state behind them."""
    world_size, batch_size = choose.choice([1, 2, 3, 8]), choose.randrange(8, 60)
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(
                Loader(
                    rows,
                    batch_size=batch_size,
                    rank=rank,
                    world_size=world_size,
                    seed=1,
                    prefetch=choose.randrange(4),
                )
            )
            for rank in range(world_size)
        ]
        for loader in loaders if state else []:
            loader.load_state_dict(state)
        for batches in zip(*loaders, strict=True):
            found = np.concatenate([batch["index"] for batch in batches])
            yield found, choose.choice(loaders).state_dict()


def main() -> None:
    export, folder, kills, seed = sys.argv[1:]
    rows = open_rows(export, sequence_length=8)
    for number in range(int(kills)):
        choose = random.Random(f"{seed}:{number}")
        begun, begins = os.pipe()
        training = os.fork()
        if not training:
            try:
                train(rows, Path(folder), choose, begins)
            finally:
                os._exit(1)
        os.close(begins)
        for _ in range(choose.randrange(20)):
            os.read(begun, 1)
        time.sleep(choose.uniform(0, 0.002))
        os.kill(training, signal.SIGKILL)
        _, status = os.waitpid(training, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        os.close(begun)


if __name__ == "__main__":
    main()
