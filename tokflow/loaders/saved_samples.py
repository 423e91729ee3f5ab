"""The samples of a training opened again from the state that its loader saved."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

from tokflow.errors import ConfigError, CorruptOutputError, MissingOutputError
from tokflow.loaders.mixed_samples import mix
from tokflow.loaders.orders import WINDOW
from tokflow.loaders.position import Position, position_of
from tokflow.loaders.rows import Rows, open_rows
from tokflow.loaders.samples import Samples
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import opened, output_at

FIELDS = ("input_ids", "labels")


def open_saved(state: Mapping[str, Any], path: str | None = None) -> tuple[Samples, Position]:
    """Return the samples that the state of a loader is of, and the position that it tells.

    Exports are looked for where they were or, with `path`, there: an export, a store or a folder of
    one, or its URL. They have no end, since the state tells none.

    Raises: ConfigError for what is no state; MissingOutputError where an export is not there any
    more, or was made again with another content.
    """
    try:
        order = json.loads(state["order"])
        sources = [{"name": "", "path": None, "part": None, **of} for of in order["sources"]]
        kind = order["kind"]
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            where="--state",
            expected="what `Loader.state_dict` returned, as JSON",
            found=f"{state!r:.60}",
            remedy="save it with `json.dumps(loader.state_dict())`",
        ) from None
    rows = [_open_source(source, path) for source in sources]
    of_rows = order["epochs"] if kind == "mixture" else order.get("order", {})
    how = {"blocks": of_rows.get("blocks"), "window": of_rows.get("window", WINDOW)}
    if kind == "mixture":
        stages: list[tuple[int, Mapping[str, Any]]] = [
            (of["first_sample"], {name: Fraction(share) for name, share in of["weights"].items()})
            for of in order["stages"]
        ]
        named = dict(zip(stages[0][1], rows, strict=True))
        samples: Samples = mix(named, stages=stages, seed=order["seed"], **how)
    elif kind == "random windows":
        samples = rows[0].random_windows(order["seed"])
    elif order["seed"] is not None:
        samples = rows[0].epochs(order["seed"], **how)
    elif "seed" in of_rows:
        samples = rows[0].shuffled(of_rows["seed"], of_rows["epoch"], **how).epochs()
    else:
        samples = rows[0].epochs()
    return samples, position_of(state, samples)


def _open_source(source: Mapping[str, Any], path: str | None) -> Rows:
    """Return the rows that an identity has a source of. Raises: MissingOutputError."""
    is_stream = "tail" in source
    across = source["across_documents"]
    seen: list[str] = []
    for output in _outputs(source, path):
        with suppress(ConfigError):  # of another format or part
            rows = open_rows(
                output,
                source["part"],
                source["sequence_length"],
                fields=FIELDS,
                tail=source.get("tail", "pad"),
                across_documents=across if is_stream else across or None,
            )
            if rows.source.fingerprint == source["fingerprint"]:
                return rows
        seen.append(output.manifest.recipe.fingerprint[:16])
    raise MissingOutputError(
        where=source["path"] if path is None else path,
        expected=f"{source['name']}, {source['output']}, of which the training was",
        found=f"{', '.join(seen)}: it was made again since" if seen else "none",
        remedy="name the store that has it, or a copy of the export: "
        "`tokflow trace EXPORT --state FILE`; equal raw files and config make it again",
    )


def _outputs(source: Mapping[str, Any], path: str | None) -> Iterator[StoredOutput]:
    """Yield outputs that can be the one of a source, the likeliest first: the one at the path, and
    those where the source has its place in a store that is there, or above it."""
    store, folder = opened(source["path"] if path is None else path)
    place = Path(source["name"].removesuffix(f"/{source['part']}"))
    above = [folder, *folder.absolute().parents]
    likely = [
        folder,
        *(of / place / source["output"] for of in above),
        *(of / place for of in above),
    ]
    store.look_for(likely)
    found: dict[Path, None] = {}
    for each in (of for of in likely if of.exists()):
        with suppress(MissingOutputError, CorruptOutputError):
            output = output_at(store, each)
            if output is not None and output.folder not in found:
                found[output.folder] = None
                yield output
