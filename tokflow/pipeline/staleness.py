"""Causes of staleness: what differs from the newest output of the same stage and file."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from tokflow.errors import CorruptOutputError, MissingOutputError, shortened
from tokflow.formatting import counted
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import Output
from tokflow.stage import Stage
from tokflow.store.manifest import Manifest, Recipe
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import made_in, newest_output
from tokflow.store.versions import described_changes
from tokflow.tokenizers.stage import tokenizer_source

Cause = Literal[
    "missing",
    "damaged",
    "dropped",
    "file changed",
    "config changed",
    "code changed",
    "input changed",
]


_LIMIT = "documents.limit."
_LEFT = re.compile(r"documents\.limit\.(\w+)s: (\d+) to (\d+)")
"""A limit that is another number; anything else is a change of the config."""

_COMES_AND_GOES = re.compile(r"documents\..* is (new|gone)")
"""A field of `documents` that decides only by what else is so: a limit no document could reach."""


def why(newest: Manifest, expected: Recipe, step: Stage) -> tuple[Cause, tuple[str, ...]]:
    """Compare the newest output with the one to be made; the first cause is the root."""
    was = newest.recipe
    if was.version != expected.version:
        return "code changed", (f"version {was.version} to {expected.version}",)
    libraries = expected.config.get("libraries", {})
    if libraries != was.config.get("libraries", {}):
        return "code changed", tuple(described_changes(libraries) or ["older libraries again"])
    as_stored, of_newest = json.loads(json.dumps([expected.config, was.config]))
    fields = list(_changed_fields(as_stored, of_newest))
    for name, called in (("shuffle", "shuffle"), ("document_order", "shuffle.documents")):
        if (name in as_stored) != (name in of_newest):
            fields.append(f"{called} is {'new' if name in as_stored else 'gone'}")
    parents, before, inputs = expected.parents, was.parents, dict[str, str]()
    for of in sorted({*parents, *before}):
        if parents.get(of) != before.get(of):
            both = of in parents and of in before
            inputs[of] = of if both else f"{of} is {'new' if of in parents else 'gone'}"
    files: list[str] = []
    if step.decides_all:
        files, inputs = list(inputs.values()), {}
    elif "raw" in inputs:
        files, _ = [str(newest.partition)], inputs.pop("raw")
    if step.has_engine and "engine" in expected.config and "engine" not in was.config:
        inputs["engine"] = "gigatoken was found wrong with this tokenizer"
    position, earlier = (of.config.get("position", {}) for of in (expected, was))
    if any(position.get(of, 0) != earlier.get(of, 0) for of in {*position, *earlier}):
        inputs["position"] = "the files before it"
    if "scope" in expected.config.get("documents", {}).get("limit", {}):
        fields, left = _of_limit(fields)
        inputs |= left
    set_by_user = [field for field in fields if not _COMES_AND_GOES.fullmatch(field)]
    found: dict[Cause, Sequence[str]] = {
        "config changed": set_by_user if set_by_user or files or inputs else fields,
        "file changed": files,
        "input changed": list(inputs.values()),
    }
    causes = [cause for cause, names in found.items() if names]
    details = [", ".join(shortened(names, 3)) for names in found.values() if names]
    return (causes[0] if causes else "config changed"), tuple(details)


def _of_limit(fields: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return changed fields without what is left of a limit of the dataset, which is an input, for
    the files before it decide."""
    changed = [field for field in fields if field.startswith(_LIMIT)]
    others = [field for field in fields if field not in changed]
    numbers = [number for field in changed if (number := _LEFT.fullmatch(field))]
    if len(numbers) < len(changed):
        return [*others, "documents.limit"], {}
    said = "documents.limit leaves it {}, before {}"
    left = {of[0]: said.format(counted(int(of[3]), of[1]), of[2]) for of in numbers}
    return others, left


def cause_of(graph: BuildGraph, output: Output) -> tuple[Cause | None, tuple[str, ...]]:
    """Return why an output must be made, and what differs; None where it is there."""
    if output.known is None and output.is_first_of_kind:
        source = tokenizer_source(output) if output.step.decides_all else None
        is_remote = source is not None and source.config.kind in ("huggingface", "tiktoken")
        if source is None or not is_remote or source.is_local:
            return "missing", ()
        return "missing", (f"to be fetched: {source.config.kind} {source.config.name}",)
    try:
        manifest = output.manifest()
    except CorruptOutputError as error:
        return "damaged", (str(error).partition("; ")[0],)
    except MissingOutputError:
        newest = _likest(graph, output)
        if newest is None:
            return "missing", ()
        if newest.folder == output.folder:
            return "config changed", ("it has bad documents or special tokens, now an error",)
        return why(newest.manifest, output.recipe, output.step)
    if manifest.dropped and graph.lacks_tokens(output):
        return "dropped", ("they are to be read again, with the same tokens",)
    return None, ()


def _likest(graph: BuildGraph, output: Output) -> StoredOutput | None:
    """Return the newest output of the same stage and file, and of the same config if there is one;
    of sequences none that is of another packing of now."""
    config, variants = output.recipe.config, output.step.variants(graph.dataset)
    if not output.step.is_of_file or len(variants) == 1:
        return newest_output(output.graph.store, output.place)
    others = [graph.output(output.stage, output.key, variant) for variant in variants]
    folders = {of.folder for of in others if of is not output}
    found = [of for of in made_in(output.graph.store, output.place) if of.folder not in folders]
    return next(
        (of for of in found if of.manifest.recipe.config == config), next(iter(found), None)
    )


def _changed_fields(
    expected: Mapping[str, Any], found: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    """Yield `documents.text: 'a' to 'b'` for each field of `found` that is another now."""
    for name, value in found.items():
        if name == "position":
            continue
        if name not in expected:
            if prefix:
                yield f"{prefix}{name} is gone"
            continue
        old, new = _named(value), _named(expected[name])
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changed_fields(new, old, f"{prefix}{name}.")
            yield from (f"{prefix}{name}.{other} is new" for other in new if other not in old)
        elif old != new:
            text = f"{prefix}{name}: {json.dumps(old)} to {json.dumps(new)}"
            yield text if len(text) <= 80 else f"{prefix}{name}"


def _named(value: Any) -> Any:
    """Return a list of names and values, as the parts of a split, as a mapping."""
    is_named = (
        isinstance(value, list)
        and value
        and all(isinstance(item, list) and len(item) == 2 for item in value)
    )
    return dict(value) if is_named else value
