"""Section of a report on selection: rates by rule, source and file, strata, near-duplicates, and
evaluation texts that stand in documents."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokflow.attributes.contamination import LEAST_SHARE
from tokflow.attributes.stage import ATTRIBUTES, MATCHES_NAME
from tokflow.near_duplicates.stage import NEAR_DUPLICATES
from tokflow.pipeline.describe import Values, describe, describe_all
from tokflow.selection.left_out import rule_rows
from tokflow.selection.stage import SELECTION
from tokflow.shown import ratio
from tokflow.store.manifest import Manifest
from tokflow.store.tables import read_table
from tokflow.strata.codes import strata_rows
from tokflow.strata.stage import STRATA
from tokflow.views.picture import SERIES, Picture, bars_picture
from tokflow.views.report_facts import StoreFacts, files_of

CONTAMINATED = 2 * LEAST_SHARE
"""Share of an evaluation text from which a document counts as one that has it."""

OF_TEXT = ["evaluation_file", "evaluation_row"]

MAX_TEXTS = 20
"""Evaluation texts that are shown, those of most documents."""


def selection_values(facts: StoreFacts) -> dict[str, Any]:
    """Return what the template shows of the documents that there are."""
    selections = facts.manifests(SELECTION)
    selected = [{"file": str(of.partition), **describe(of).whole} for of in selections]
    return {
        "rules": [*_rules(selections)],
        "sources": _sources(selections),
        "selected": sorted(selected, key=lambda row: (row["kept_fraction"], row["file"])),
        "strata": strata_rows(facts.manifests(STRATA)),
        "alike": _near_duplicates(facts).get("samples", []),
        "leaks": _leaks(facts),
    }


def _rules(selections: list[Manifest]) -> Iterator[Values]:
    """Yield a row for each rule, of each source of a mixture."""
    for _, of_source in groupby(selections, key=lambda of: of.dataset):
        each = [*of_source]
        num = sum(of.counts["num_documents"] + of.counts["num_unselected"] for of in each)
        for row in rule_rows(each):
            yield {**row, "kept_fraction": ratio(num - row["num_left_out"], num)}


def _sources(selections: list[Manifest]) -> list[Values]:
    """Return a row for each source of a mixture; of another dataset none."""
    sources = [(name, [*of]) for name, of in groupby(selections, key=lambda of: of.dataset)]
    rows = [(name, describe_all(of)) for name, of in sources if len(sources) > 1]
    return [{"source": name, **of.whole} for name, of in rows if of]


def _near_duplicates(facts: StoreFacts) -> Mapping[str, Any]:
    """Return similarities and samples of the pairs of alike texts; nothing where there are none."""
    return next((of.details for of in facts.manifests(NEAR_DUPLICATES)), {})


def similarity_picture(facts: StoreFacts) -> Picture | None:
    """Return the bars of pairs of alike texts by similarity; None where none is looked for."""
    nums = _near_duplicates(facts).get("similarities", [])
    first = next((at for at, num in enumerate(nums) if num), None)
    if first is None:
        return None
    bars = [(f"{at / 20:.2f}", num, f"{num:,}") for at, num in [*enumerate(nums)][first:]]
    note = "pairs of texts by the least similarity of each bar, all of them proven"
    return bars_picture("similarities", "Near-duplicates", bars, note=note, color=SERIES[3])


def _leaks(facts: StoreFacts) -> dict[str, Any]:
    """Return a row for each file of evaluation texts, and one for each text that most documents
    have; nothing where there are none to look for."""
    outputs = (facts.plan.dataset.store.read(of) for of in facts.folders(ATTRIBUTES))
    every = {of.folder: of.manifest for of in outputs if MATCHES_NAME in of.manifest.files}
    if not every:
        return {}
    some = facts.sampled([*every])
    names = ["share", *OF_TEXT, "ngram"]
    table = pa.concat_tables(read_table(of.file(MATCHES_NAME), names) for of in some)
    table = table.filter(pc.greater_equal(table["share"], CONTAMINATED))
    found = table.group_by(OF_TEXT, use_threads=False).aggregate(
        [([], "count_all"), ("ngram", "first")]
    )
    texts = found.rename_columns([*OF_TEXT, "num_documents", "ngram"]).to_pylist()
    texts.sort(key=lambda of: (-of["num_documents"], of["evaluation_file"], of["evaluation_row"]))
    files: dict[str, Values] = {}
    for manifest in every.values():
        files |= manifest.details["evaluation_files"]
    for file, row in files.items():
        of_file = [of["num_documents"] for of in texts if of["evaluation_file"] == file]
        files[file] = {**row, "num_texts_found": len(of_file), "num_matches": sum(of_file)}
    return {
        "files": [{"evaluation_file": file, **row} for file, row in sorted(files.items())],
        "texts": texts[:MAX_TEXTS],
        "read": files_of(len(some), len(every)),
    }
