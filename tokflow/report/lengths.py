"""Pictures of lengths: of documents, and of what of them stands in sequences."""

from typing import TYPE_CHECKING

import numpy as np

from tokflow.report.picture import INK, SERIES, Picture, make_picture
from tokflow.report.sample import ShardSample
from tokflow.store.arrow import to_numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_BINS = 40


def document_lengths(sample: ShardSample) -> Picture | None:
    """Return the histogram of tokens per document; None where there is no document."""
    columns = [to_numpy(of.documents(["num_tokens"])["num_tokens"]) for of in sample.shards]
    lengths = np.concatenate([np.zeros(0, np.int64), *columns])
    lengths = lengths[lengths > 0]
    if len(lengths) == 0:
        return None
    edges = np.geomspace(1, lengths.max() + 1, NUM_BINS + 1)
    counts, _ = np.histogram(lengths, edges)
    median, most = (int(np.percentile(lengths, of)) for of in (50, 99))

    def draw(axes: "Axes") -> None:
        axes.stairs(counts, edges, fill=True, color=SERIES[0], alpha=0.85)
        axes.set_xscale("log")
        axes.set_xlabel("tokens per document")
        axes.grid(axis="y")
        for at, label in ((median, f"median {median:,}"), (most, f"99 % {most:,}")):
            axes.axvline(at, color=INK, linewidth=0.8, linestyle=(0, (3, 2)))
            axes.annotate(label, (at, 1), xycoords=("data", "axes fraction"), fontsize=8)

    note = f"{len(lengths):,} documents of {len(sample.shards):,} of {sample.num_all:,} files"
    return make_picture("document_lengths", "Document lengths", draw, note=note)
