"""Statistics of a dataset, as scripts print them at their end: of its text, parts and exports."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokflow.pipeline.results import BuildResult
from tokflow.split.spans import LONGEST
from tokflow.store.manifest import Manifest

OF_TEXT = (
    "num_documents",
    "num_empty_documents",
    "num_rejects",
    "num_left_out",
    "num_chars",
    "num_bytes",
    "num_tokens",
)
"""Counts of a token shard."""


def statistics_of(built: BuildResult) -> dict[str, Any]:
    """Return what is known of all outputs of a build, as plain JSON.

    text: sums over the token shards, {} where there is none; parts: a row for each part over all
    splits; mixture, of one that is built whole: a row for each source and part; exports: by name a
    row for each part. A build of some files tells of these alone.
    """
    splits = [made.manifest for made in built.of("split")]
    return {
        "text": text_statistics(made.manifest.counts for made in built.of("tokens")),
        "parts": part_statistics(
            splits[0].details["parts"] if splits else (), [split.counts for split in splits]
        ),
        **({"mixture": of_mixture} if (of_mixture := mixture_statistics(built)) else {}),
        "exports": {
            made.output.name: [
                {"part": part, **export_statistics(made.manifest, part)}
                for part in made.manifest.details["parts"]
            ]
            for made in built.of("export")
        },
    }


def mixture_statistics(built: BuildResult) -> list[dict[str, Any]]:
    """Return a row for each source and part of a mixture that is built: tokens and epochs as
    planned and as they came out."""
    splits = built.of("split")
    graph = splits[0].graph if splits else None
    if graph is None or not graph.of_sources or len(splits) < len(graph.partitions):
        return []
    counts = {made.output.name: made.manifest.counts for made in splits}
    return rows_of_mixture(graph.mixture_plan.realised(counts))


def rows_of_mixture(details: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the `mixture` of an export's details as rows, of parts in which there is anything."""
    return [
        {"source": source, "part": part, **numbers}
        for source, parts in details.items()
        for part, numbers in parts.items()
        if numbers["available_tokens"]
    ]


def text_statistics(shards: Iterable[Mapping[str, int]]) -> dict[str, int | float]:
    """Return what token shards with these counts hold together; {} of none."""
    counts: Counter[str] = Counter()
    for shard in shards:
        counts.update({name: shard.get(name, 0) for name in OF_TEXT})
    if not counts:
        return {}
    return {**counts, "bytes_per_token": ratio(counts["num_bytes"], counts["num_tokens"])}


def part_statistics(
    parts: Iterable[str], splits: Sequence[Mapping[str, int]]
) -> list[dict[str, Any]]:
    """Return a row for each part of what splits with these counts hold together.

    A span of a cut document counts as a document.
    """
    rows = []
    for part in parts:
        counts: Counter[str] = Counter()
        for split in splits:
            counts.update({name: split[f"{part}.{name}"] for name in _OF_SPLIT})
        rows.append(
            {
                "part": part,
                "num_documents": counts["num_documents"] + counts["num_cut_pieces"],
                "num_chars": counts["num_chars"],
                "num_tokens": counts["num_tokens"],
                "chars_per_token": ratio(counts["num_chars"], counts["num_tokens"]),
                LONGEST: max((split.get(f"{part}.{LONGEST}", 0) for split in splits), default=0),
            }
        )
    return rows


_OF_SPLIT = ("num_documents", "num_cut_pieces", "num_chars", "num_tokens")


def export_statistics(export: Manifest, part: str) -> dict[str, int | float]:
    """Return what an export holds of a part, and how full its sequences are."""
    counts = export.counts
    num_tokens = counts[f"{part}.num_tokens"]
    packed: dict[str, int | float] = {}
    if (num_sequences := counts.get(f"{part}.num_sequences")) is not None:
        num_slots = num_tokens + counts[f"{part}.num_padding"]
        packed = {"num_sequences": num_sequences, "fill_fraction": full(num_tokens, num_slots)}
    dropped = counts[f"{part}.num_dropped_tokens"]
    return {"num_exported_tokens": num_tokens, "num_dropped_tokens": dropped, **packed}


def full(num_tokens: int, num_slots: int) -> float:
    """Return a fraction to four digits, rounded down: 1 is without padding; 0 of nothing."""
    return num_tokens * 10_000 // num_slots / 10_000 if num_slots else 0.0


def percent_full(fraction: float) -> float:
    """Return what `full` returned as people read it: 98.2 of 0.9829, and of 0.9999 not 100."""
    return round(10_000 * fraction) // 10 / 10


def ratio(part: int, whole: int) -> float:
    """Return a fraction to four digits; 0 of nothing."""
    return round(part / whole, 4) if whole else 0.0
