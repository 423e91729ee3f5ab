"""The place of a training in its samples: the number of the next one, and those to jump over."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokflow.errors import ConfigError
from tokflow.loaders.arguments import integer
from tokflow.loaders.mixture_stages import BLOCK
from tokflow.loaders.samples import ENDLESS, Numbers, Samples

STATE_VERSION = 1

AS_SAVED = "as `state_dict` returned it"
MADE_ALIKE = "make the loader as it was where the state was saved"


@dataclass(frozen=True, slots=True)
class Position:
    """The place between two batches, the same on every rank and with any batch size."""

    next_sample: int = 0
    """All samples before it were in a batch or jumped over."""
    skipped: tuple[range, ...] = ()
    """Samples that no batch has, from the first to the last, none touching the next."""

    def take(self, num_samples: int, *, length: int) -> tuple[Numbers, "Position"]:
        """Return the numbers of the next samples, and the place behind them.

        There are fewer of them only where the samples, `length` in all, end. After sample 2, with
        4 to 6 skipped, the next 3 samples are 3, 7 and 8.
        """
        taken, behind = self._next(num_samples, length)
        numbers = [np.arange(some.start, some.stop, dtype=np.int64) for some in taken]
        return np.concatenate([np.empty(0, dtype=np.int64), *numbers]), behind

    def after(self, num_samples: int, *, length: int) -> "Position":
        """Return the place behind the next samples, as `take` does, however many they are."""
        return self._next(num_samples, length)[1]

    def _next(self, num_samples: int, length: int) -> tuple[list[range], "Position"]:
        taken, first = [], self.next_sample
        for ahead in (*self.skipped, range(length, length)):
            last = min(first + num_samples, ahead.start, length)
            if first < last:
                taken.append(range(first, last))
                num_samples -= last - first
                first = last
            if not num_samples:
                break
            first = max(first, min(ahead.stop, length))
        return taken, replace(self, next_sample=first)

    def skip(self, samples: range, *, length: int) -> "Position":
        """Return the same place with these samples, of `length` in all, jumped over too.

        Raises: ConfigError.
        """
        if not isinstance(samples, range) or samples.step != 1:
            expected, remedy = "a range of samples one after another", "give `range(first, end)`"
        elif samples.start < self.next_sample:
            expected = f"a range of samples from {self.next_sample:,}, the next one, on"
            remedy = "those before it were handed out: load a state from before them first"
        elif samples.stop > length:
            expected = f"a range of samples up to {length:,}, their end"
            remedy = "name samples that there are"
        else:
            return replace(self, skipped=_joined((*self.skipped, samples)))
        raise ConfigError(where="skip", expected=expected, found=f"{samples!r:.60}", remedy=remedy)

    def state(self, samples: Samples) -> dict[str, Any]:
        """Return it as JSON has it, with what decides the samples.

        Its names are the same for all samples, and `order` is a text: torch's distributed
        checkpoint loads no name that the loader has not, and takes nested values apart by name.
        """
        return {
            "version": STATE_VERSION,
            "samples": self.next_sample,
            "skipped": [[some.start, some.stop] for some in self.skipped],
            "order": json.dumps(samples.identity),
        }


def _joined(ranges: Iterable[range]) -> tuple[range, ...]:
    """Return the same numbers in ranges that ascend and do not touch."""
    joined: list[range] = []
    for some in sorted(ranges, key=lambda one: one.start):
        if joined and some.start <= joined[-1].stop:
            some = range(joined[-1].start, max(joined.pop().stop, some.stop))
        joined += [some] if some else []
    return tuple(joined)


def share_of(numbers: Numbers, *, rank: int, world_size: int) -> Numbers:
    """Return what a rank gets of the samples of a batch: as many as the others, or one more."""
    first, last = (len(numbers) * some // world_size for some in (rank, rank + 1))
    return numbers[first:last]


def position_of(state: Mapping[str, Any], samples: Samples) -> Position:
    """Return the position that a state of these samples tells.

    A source may have another name, not another content; stages of a mixture that decide none of
    the samples so far may be others. Raises: ConfigError, which names the first difference, for a
    state of other samples or of another version.
    """
    if not isinstance(state, Mapping):
        _check("version", STATE_VERSION, f"{state!r:.60}, of {type(state).__name__}")
    _check("version", STATE_VERSION, state.get("version"))
    if not {"samples", "skipped", "order"} <= state.keys():
        _check("samples, skipped and order", AS_SAVED, ", ".join(map(str, state)))
    num_samples = integer("samples", state["samples"])
    _, ours = _read(Position().state(samples)["order"], num_samples)
    of_state, theirs = _read(state["order"], num_samples)
    for name in sorted(ours | theirs, key=lambda name: not name.startswith("sources")):
        _check(name, ours.get(name), theirs.get(name), _remedy(name, of_state, num_samples))
    if not 0 <= num_samples <= len(samples):
        _check("samples", f"from 0 to {len(samples):,}", num_samples)
    return Position(num_samples, _skipped(state["skipped"]))


def _read(order: Any, num_samples: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an order, and its leaves by name. Raises: ConfigError for what is no order."""
    try:
        parsed = json.loads(order)
        return parsed, dict(_leaves({**parsed}, num_samples))
    except (TypeError, ValueError, RecursionError):
        _check("order", AS_SAVED, f"{order!r:.60}")
        raise


def _skipped(ranges: Any) -> tuple[range, ...]:
    """Return the ranges of a state. Raises: ConfigError unless they are pairs of whole numbers that
    ascend, and do not touch."""
    try:
        last = -1
        for first, stop in ranges:
            if not last < integer("skipped", first) < integer("skipped", stop) <= ENDLESS:
                raise ValueError
            last = stop
    except (TypeError, ValueError):
        _check("skipped", AS_SAVED, f"{ranges!r:.60}")
    return tuple(range(*ends) for ends in ranges)


def _leaves(value: Any, num_samples: int, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what an identity holds by its name, such as `order.seed`; a source is one thing.

    What `decides_from` a sample behind the first `num_samples` on is left out.
    """
    if isinstance(value, Mapping) and "fingerprint" not in value:
        first = value.get("decides_from", 0)
        if isinstance(first, int) and first >= max(1, num_samples):
            return
        for key, inner in value.items():
            yield from _leaves(inner, num_samples, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, num_samples, f"{name}[{number}]")
    else:
        yield name, value


def _check(name: str, ours: Any, theirs: Any, remedy: str = MADE_ALIKE) -> None:
    """Make sure that what the loader has is what the state has. Raises: ConfigError."""
    if _content(ours) != _content(theirs):
        others: dict[str, Any] = {}
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            same = ours.keys() & theirs.keys() - {"name", "fingerprint"}
            others = {
                key: theirs[key] for key in theirs if key in same and ours[key] != theirs[key]
            }
        if others:
            remedy = f"open {theirs.get('name')}{_how(others)}"
        raise ConfigError(
            where="load_state_dict",
            expected=f"a state of {name} {_shown(ours, others)}",
            found=_shown(theirs, others),
            remedy=f"{remedy}, or begin without a state",
        )


def _how(arguments: Mapping[str, Any]) -> str:
    """Return how a source is to be opened: ` of the folder 2bd3a0c4e85f9b17 with tail='drop'`."""
    others = [f"{key}={of!r:.60}" for key, of in arguments.items() if key != "output"]
    folder = f" of the folder {arguments['output']}" if "output" in arguments else ""
    return f"{folder} with {', '.join(others)}" if others else folder


def _content(value: Any) -> Any:
    return value.get("fingerprint") if isinstance(value, Mapping) else value


def _shown(value: Any, others: Iterable[str] = ()) -> str:
    """Return a value as people read it; of a source what is other in the other."""
    if isinstance(value, Mapping):
        told = [f"{key} {value[key]!s:.60}" for key in others] or [
            f"fingerprint {value.get('fingerprint')!s:.7}"
        ]
        return f"{value.get('name')} ({', '.join(told)})"
    return f"{value if isinstance(value, str) else repr(value):.200}"


def _remedy(name: str, order: Mapping[str, Any], num_samples: int) -> str:
    """Return what to do where something differs from the order of a state of so many samples."""
    if name.startswith("sources"):
        return "open the export that it is of, with the same part"
    if not name.startswith("stages"):
        return MADE_ALIKE
    decided = max(1, num_samples)
    try:
        *_, last = (of["first_sample"] for of in order["stages"] if of["decides_from"] < decided)
        last = integer("first_sample", last)
    except (LookupError, TypeError, ValueError):  # in a state that was edited
        return MADE_ALIKE
    first = max(last + 1, last + -((last - decided) // BLOCK) * BLOCK)
    return (
        f"keep the stages of the first {num_samples:,} samples: others may begin at sample "
        f"{first:,} and later, for samples are mixed in blocks of {BLOCK:,}"
    )
