"""Rejects by reason: bad documents that were set aside."""

from tokflow.errors import counted
from tokflow.report.picture import SERIES, Picture, bars_picture
from tokflow.report.sample import StoreFacts
from tokflow.tokens.rejects import OTHERS

MAX_REASONS = 8


def reject_picture(facts: StoreFacts) -> Picture | None:
    """Return the bars of rejects by reason, the most frequent first; None where there is none."""
    reasons = facts.plan.totals.reject_reasons
    if not reasons:
        return None
    ordered = sorted(reasons.items(), key=lambda item: (item[0] == OTHERS, -item[1], item[0]))
    bars = [(reason, num, f"{num:,}") for reason, num in ordered[:MAX_REASONS]]
    note = f"{counted(reasons.total(), 'reject')} in all"
    if len(ordered) > MAX_REASONS:
        note += f"; {len(ordered) - MAX_REASONS:,} rarer reasons left out"
    name, title = "rejects_by_reason", "Rejects, by reason"
    return bars_picture(name, title, bars, note=note, color=SERIES[4], is_named_above=True)
