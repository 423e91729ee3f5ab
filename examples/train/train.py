"""Train a small model, once from each of a bin, a parquet and a mixture, up to a number of steps.

python train.py 30   each up to step 30, and saves a checkpoint
python train.py 60   goes on from there: losses equal to the last digit those of 60 at once
"""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from tokflow.loaders import Loader, mix, open_rows

STORE = Path("data/store")
LENGTH = 64
torch.set_num_threads(1)  # more take longer for a model so small


class Model(torch.nn.Module):
    """A recurrent one of 4,801 parameters."""

    def __init__(self, num_ids=257, width=8):
        super().__init__()
        self.embed = torch.nn.Embedding(num_ids, width)
        self.recur = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, num_ids)

    def forward(self, input_ids):
        return self.head(self.recur(self.embed(input_ids))[0])


def load(name):
    """Return batches of 16 rows: of either export of the stories, or of stories and code."""
    if name == "mixture":
        bins = {of: STORE / of / "exports/bin/latest" for of in ("stories", "code")}
        sources = {of: open_rows(bins[of], part="train", sequence_length=LENGTH) for of in bins}
        samples = mix(sources, weights={"stories": 0.7, "code": 0.3}, seed=1)
        return Loader(samples, batch_size=16, arrays="torch")
    length = LENGTH if name == "bin" else None  # a parquet's rows are cut already
    rows = open_rows(STORE / f"stories/exports/{name}/latest", part="train", sequence_length=length)
    return Loader(rows, batch_size=16, seed=1, arrays="torch")


def train(name, num_steps, checkpoint):
    """Train up to a step, from the checkpoint if there is one, and save it."""
    torch.manual_seed(0)
    model, done = Model(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    with load(name) as loader:
        if checkpoint.exists():
            saved = torch.load(checkpoint)
            done = saved["step"]
            for of, state in zip((model, optimizer, loader), saved["states"], strict=True):
                of.load_state_dict(state)
        for step in range(done + 1, num_steps + 1):
            batch = next(loader)
            logits = model(batch["input_ids"])
            loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"{name}, step {step}: loss {loss.item()}")
        states = [of.state_dict() for of in (model, optimizer, loader)]
        torch.save({"step": max(done, num_steps), "states": states}, checkpoint)


for name in ("bin", "parquet", "mixture"):
    train(name, int(sys.argv[1]), Path(f"{name}.pt"))
