"""Two sides, compared: first whether they are the same, then recipes, raw files and documents."""

from typing import Any

from tokflow.audit.diff.documents import DocumentChanges
from tokflow.audit.diff.sides import Key, Recipes, Side, key_of
from tokflow.errors import ConfigError
from tokflow.exports.reading import is_export
from tokflow.store.store import StoredOutput


def compare(a: Side, b: Side, *, limit: int | None, num_shown: int) -> dict[str, Any]:
    """Return what differs, as plain values for JSON. `limit`: documents of each export at most;
    `num_shown`: those of which tokens are read and decoded.

    Raises: ConfigError where the sides have nothing in common; as `DocumentChanges`.
    """
    pairs = _pairs(a, b)
    alone = [sorted(of.roots.keys() - {pair[at] for pair in pairs}) for at, of in enumerate((a, b))]
    if a.is_one or b.is_one:
        alone = [[], []]
    names = [["/".join(filter(None, key)) for key in keys] for keys in alone]
    recipes = Recipes(a.only(key for key, _ in pairs), b.only(key for _, key in pairs))
    found = [
        _compare_outputs(recipes, recipes.a.roots[key], recipes.b.roots[other], limit, num_shown)
        for key, other in pairs
    ]
    lacks = [
        f"{name}: the store has not what it was made from, so no cause is known"
        for name, of in (("A", recipes.a), ("B", recipes.b))
        if not of.shards
    ]
    return {
        "a": a.name,
        "b": b.name,
        "is_same": not any(alone) and all(of["result"] == SAME for of in found),
        "only_a": names[0],
        "only_b": names[1],
        "outputs": found,
        "stages": recipes.stages(),
        "fields": recipes.changes(),
        "raw_files": recipes.raw_files(),
        "notes": lacks,
    }


SAME = "same bytes"


def _pairs(a: Side, b: Side) -> list[tuple[Key, Key]]:
    """Return what is compared with what: the only output of each, or those of the same name."""
    if len(a.roots) == len(b.roots) == 1:
        return [(next(iter(a.roots)), next(iter(b.roots)))]
    both = sorted(a.roots.keys() & b.roots.keys())
    if not both:
        has = "; ".join(", ".join("/".join(key) for key in sorted(of.roots)) for of in (a, b))
        raise ConfigError(
            where=f"{a.name} and {b.name}",
            expected="outputs of the same dataset and name, or one output each",
            found=has,
            remedy="name two exports by their folders",
        )
    return [(key, key) for key in both]


def _compare_outputs(
    recipes: Recipes, a: StoredOutput, b: StoredOutput, limit: int | None, num_shown: int
) -> dict[str, Any]:
    """Return what differs between two outputs; of exports the documents, too."""
    fields: dict[str, Any] = {"a": a.shown, "b": b.shown, "name": "/".join(filter(None, key_of(a)))}
    if a.manifest.files == b.manifest.files:
        return {**fields, "result": SAME}
    counts = [dict(of.manifest.counts) for of in (a, b)]
    names = [of for of in {**counts[0], **counts[1]} if counts[0].get(of) != counts[1].get(of)]
    fields["counts"] = {of: [each.get(of) for each in counts] for of in names}
    if not (is_export(a.manifest) and is_export(b.manifest)):
        return {**fields, "result": "other bytes"}
    changes = DocumentChanges(a, b, recipes)
    result = "same tokens in the same order, in other files"
    if changes.differs.any():
        result = "other tokens"
    elif not changes.is_in_order:
        result = "same tokens in another order"
    return {
        **fields,
        "result": result,
        "num_tokens": changes.num_tokens,
        "kinds": changes.counts(),
        "causes": dict(changes.causes().most_common()),
        "documents": changes.listed(limit, num_shown),
    }
