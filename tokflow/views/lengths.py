"""Pictures of lengths: of documents, and of what of them stands in sequences."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokflow.pipeline.describe import full, written
from tokflow.sequences.segments import SEGMENTS_NAME
from tokflow.shown import counted
from tokflow.store.arrow import read_first, to_numpy
from tokflow.store.integrity import report_damage_on_error
from tokflow.store.store import StoredOutput
from tokflow.store.tables import read_parts
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import DOCUMENTS_NAME
from tokflow.views.picture import SERIES, Picture, make_picture, short_number
from tokflow.views.sample import StoreFacts, files_of, length_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_BINS = 40

MAX_DOCUMENTS = 5_000_000
"""Documents whose lengths are looked at: an equal share of each file."""

MAX_SEQUENCES = 1_000_000
"""Sequences of a part whose segments are looked at: an equal share of each file."""


def length_pictures(facts: StoreFacts) -> Iterator[Picture]:
    """Yield the pictures of lengths that there is something to see in."""
    shards = facts.shards
    columns = [_lengths_in(of, num) for of, num in shards.shares("num_documents", MAX_DOCUMENTS)]
    lengths = np.concatenate([np.zeros(0, np.int64), *columns])
    is_empty = lengths == 0
    if not is_empty.all():
        num_empty = int(is_empty.sum())
        num_all = sum(of.manifest.counts["num_documents"] for of in shards.shards)
        first = ", the first of each" if len(lengths) < num_all else ""
        empty = f", {counted(num_empty, 'document')} without tokens" if num_empty else ""
        yield _histogram(
            "document_lengths",
            "Document lengths",
            lengths[~is_empty],
            label="tokens per document",
            note=f"{counted(len(lengths), 'document')}{first} of {shards.files}{empty}",
        )
    yield from _of_sequences(facts)


def _lengths_in(shard: TokenShard, num: int) -> npt.NDArray[np.int64]:
    """Return the tokens of each of the first `num` documents; no further row group is read."""
    found = [np.zeros(0, np.int64)]
    with report_damage_on_error(shard):
        for name in shard.names(DOCUMENTS_NAME):
            if (left := num - sum(map(len, found))) > 0:
                first = read_first(shard.stored.file(name), ["num_tokens"], left)
                found.append(to_numpy(first["num_tokens"]))
    return np.concatenate(found)


def _of_sequences(facts: StoreFacts) -> Iterator[Picture]:
    folders = facts.folders("sequences")
    read = facts.sampled(folders)
    found = [_sequences_in(made, MAX_SEQUENCES // len(read)) for made in read]
    fill, num, length = np.concatenate([np.zeros((3, 0), np.int64), *found], axis=1)
    if len(fill) == 0:
        return
    files = files_of(len(found), len(folders))
    note = f"{counted(len(fill), 'sequence')} of {files}, without those of tails"
    most, is_full = int(length.max()), fill == length
    if not is_full.all():
        percent = written("fill_fraction", full(int(is_full.sum()), len(fill)))
        yield _histogram(
            "sequence_lengths",
            "Tokens in sequences",
            fill,
            label=f"tokens of {most:,}",
            note=f"{note}; {percent} are full",
            most=most,
        )
    yield _histogram(
        "segments_per_sequence",
        "Documents in a sequence",
        num,
        label="documents, or what of them is in it",
        note=note,
    )


def _sequences_in(made: StoredOutput, most: int) -> npt.NDArray[np.int64]:
    """Return the tokens, the segments and the sequence_length of each finished sequence of a file,
    (3, num_sequences); of each part those of the first `most`."""
    parts: Sequence[str] = made.manifest.details["parts"]
    found = [np.zeros((3, 0), np.int64)]
    with report_damage_on_error(made):
        names = ["sequence", "num_tokens"]
        rows = read_parts(made.file(SEGMENTS_NAME), parts, names, sequences=(0, most))
        for part, columns in rows.items():
            num = min(made.manifest.counts[f"{part}.num_sequences"], most)
            is_done = columns["sequence"] < num
            sequence = columns["sequence"][is_done]
            of_tokens = np.bincount(sequence, weights=columns["num_tokens"][is_done], minlength=num)
            length = np.full(num, length_of(made, part))
            of_segments = np.bincount(sequence, minlength=num)
            found.append(np.stack([of_tokens.astype(np.int64), of_segments, length]))
    return np.concatenate(found, axis=1)


def _histogram(
    name: str,
    title: str,
    values: npt.NDArray[np.int64],
    *,
    label: str,
    note: str,
    most: int | None = None,
) -> Picture:
    """Return a histogram, its note with the median and the 99th percentile; `most`: the end of a
    linear axis, else it is logarithmic."""
    edges = _edges(int(values.max()), most)
    counts, _ = np.histogram(values, edges)
    median, nearly_all = (int(of) for of in np.percentile(values, (50, 99)))
    is_log = most is None and values.max() > NUM_BINS

    def draw(axes: "Axes") -> None:
        axes.stairs(counts, edges, fill=True, color=SERIES[0], alpha=0.9)
        axes.set_xscale("log" if is_log else "linear")
        axes.set_xlim(edges[0], edges[-1])
        axes.locator_params(axis="y", integer=True)
        if most is None and not is_log:
            axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.xaxis.minorticks_off()
        axes.set_xlabel(label)
        axes.grid(axis="y")

    note = f"{note}; median {median:,}, 99% up to {nearly_all:,}"
    return make_picture(name, title, draw, note=note)


def _edges(largest: int, most: int | None) -> npt.NDArray[Any]:
    """Return the edges of bins: of equal width up to `most`, or else of equal ratio, each wide
    enough for a whole number."""
    if most is not None:
        return np.linspace(0, most, NUM_BINS + 1)
    if largest <= NUM_BINS:
        return np.arange(0.5, largest + 1.5)
    return np.unique(np.floor(np.geomspace(1, largest + 1, NUM_BINS + 1))) - 0.5
