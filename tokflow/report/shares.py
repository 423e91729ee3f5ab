"""Pictures of shares: of parts, of tokens in sequences, and of the sources of a mixture."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokflow.pipeline.statistics import (
    export_statistics,
    part_statistics,
    percent_full,
    ratio,
    rows_of_mixture,
)
from tokflow.report.picture import (
    ROW_HEIGHT,
    SERIES,
    Picture,
    bars_picture,
    make_picture,
    short_number,
    shortened_name,
)
from tokflow.report.sample import StoreFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[dict[str, Any]]

MAX_BARS = 12


def part_rows(facts: StoreFacts) -> Rows:
    """Return a row for each part with its share of the tokens; none where nothing is split."""
    rows = part_statistics(facts.parts, [facts.split]) if facts.split else []
    whole = sum(row["num_tokens"] for row in rows)
    return [{**row, "tokens_fraction": ratio(row["num_tokens"], whole)} for row in rows]


def export_rows(facts: StoreFacts) -> Rows:
    """Return a row for each export and part: its counts, how full its sequences are, and in the
    first of one that a build would make anew the reason."""
    planned = [of for of in facts.plan.own if of.stage == "export"]
    reasons = {of.name: of.reason for of in planned if not of.is_made}
    return [
        {
            "export": (name := of.folder.parent.name),
            "state": "stale" if name in reasons else "built",
            "reason": reasons.get(name, "") if number == 0 else "",
            "format": of.manifest.details["format"],
            "part": part,
            "num_padding": of.manifest.counts.get(f"{part}.num_padding", 0),
            **export_statistics(of.manifest, part),
        }
        for of in facts.exports
        for number, part in enumerate(of.manifest.details["parts"])
    ]


def fill_rows(facts: StoreFacts) -> Rows:
    """Return those of `export_rows` that are of sequences; none of a part without any, which is
    neither full nor empty."""
    return [of for of in export_rows(facts) if of.get("num_sequences")]


def mixture_rows(facts: StoreFacts) -> Rows:
    """Return a row for each source and part of a mixture, as an export has it that is not stale or,
    before there is one, as it is planned; none of other datasets."""
    current = set(facts.folders("export"))
    details = [of.manifest.details for of in facts.exports if of.folder in current]
    made = [of["mixture"] for of in details if "mixture" in of]
    return rows_of_mixture(made[0] if made else facts.plan.of_mixture)


def share_pictures(facts: StoreFacts) -> Iterator[Picture]:
    """Yield the pictures of shares that there is something to see in."""
    if parts := part_rows(facts):
        shown = [(of["part"], of["tokens_fraction"]) for of in parts[:MAX_BARS]]
        bars = [(part, fraction, f"{fraction:.2%}") for part, fraction in shown]
        note = "share of the tokens" + _left_out(parts)
        yield bars_picture("split_shares", "Parts", bars, note=note, limit=1, color=SERIES[0])
    if packed := fill_rows(facts):
        bars = [(f"{of['export']}: {of['part']}", *_fill_of(of)) for of in packed[:MAX_BARS]]
        note = "tokens by the places for them; the rest is padding"
        note += _left_out(packed)
        yield bars_picture("packing_fill", "Packing", bars, note=note, limit=1, color=SERIES[2])
    if mixture := mixture_rows(facts):
        yield _of_mixture(mixture)


def _left_out(rows: Rows) -> str:
    return f"; {len(rows) - MAX_BARS:,} more left out" if len(rows) > MAX_BARS else ""


def _fill_of(row: Mapping[str, Any]) -> tuple[float, str]:
    dropped = row["num_dropped_tokens"]
    words = f"{percent_full(row['fill_fraction'])}%"
    words += f", {short_number(dropped)} dropped" if dropped else ""
    return row["fill_fraction"], words + (", stale" if row["state"] == "stale" else "")


def _of_mixture(rows: Sequence[Mapping[str, Any]]) -> Picture:
    """Return planned and realised tokens of each source, in all parts."""
    sources = list(dict.fromkeys(row["source"] for row in rows))[:MAX_BARS]
    names = ("planned_tokens", *(("tokens",) if "tokens" in rows[0] else ()))
    numbers = {
        name: [sum(row[name] for row in rows if row["source"] == of) for of in sources]
        for name in names
    }

    def draw(axes: "Axes") -> None:
        height = 0.8 / len(names)
        for number, (name, label) in enumerate(zip(names, ("planned", "realised"), strict=False)):
            places = [
                place + (number - (len(names) - 1) / 2) * height for place in range(len(sources))
            ]
            axes.barh(places, numbers[name], height=height * 0.9, color=SERIES[number], label=label)
            for place, value in zip(places, numbers[name], strict=True):
                axes.annotate(
                    f"{value:,}",
                    (value, place),
                    (4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8.5,
                )
        axes.set_yticks(range(len(sources)), [shortened_name(of) for of in sources])
        axes.set_ylim(len(sources) - 0.5, -0.5)
        axes.set_xlim(0)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)

    note = "tokens of each source, in all parts"
    height = 0.5 + 2 * ROW_HEIGHT * len(sources)
    return make_picture("mixture", "Mixture", draw, note=note, height=height)
