"""Asset checks: problems that `tokflow.audit.verify` finds in the outputs of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import dagster as dg
import pyarrow as pa

from tokflow.audit.verify import (
    verify_against_raw,
    verify_export,
    verify_sequences,
    verify_split,
    verify_tokens,
)
from tokflow.build.graph import BuildGraph
from tokflow.components.dagster_names import asset_key
from tokflow.errors import TokflowError, message_of, shortened
from tokflow.exports.part import Part, inputs_of
from tokflow.split.leakage import find_shared_texts
from tokflow.store.manifest import broken_files
from tokflow.store.verdicts import try_to_write_verdict

SAMPLED_FILES = 4
"""Files of a run that are compared with the reference: opening it takes up to a second each."""

SAMPLED_CHARACTERS = 1_000_000
"""Characters of a file after which that comparison stops."""

SAMPLED_DOCUMENTS = 16

MAX_READ_BYTES = 2_000_000_000
"""A larger export is not read again after it was written; `tokflow verify` does that."""

MAX_SHOWN = 20
"""Problems that a check lists."""


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """One asset check."""

    name: str
    description: str
    problems: Callable[[BuildGraph, Sequence[str]], list[str]]
    """From the partition keys that were built (of an export, its name) to sentences."""
    is_blocking: bool = True
    """Nothing downstream is built when it fails; else it warns."""


def _tokens_close(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    return [problem for key in keys for problem in verify_tokens(graph.open_tokens(key))]


def _tokens_equal_reference(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    every = -(-len(keys) // SAMPLED_FILES)
    tokenizer = graph.tokenizer
    return [
        problem
        for key in keys[::every]
        for problem in verify_against_raw(
            graph.raw_file(key),
            graph.open_tokens(key),
            graph.dataset.documents,
            graph.encoding,
            num_samples=SAMPLED_DOCUMENTS,
            max_characters=SAMPLED_CHARACTERS,
            on_difference=partial(try_to_write_verdict, tokenizer.folder, tokenizer.fingerprint),
        )
    ]


def _split_closes(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    return [problem for key in keys for problem in verify_split(graph.open_split(key))]


def _split_shares_no_text(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    return find_shared_texts([graph.open_split(key) for key in keys])


def _sequences_close(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    return [problem for key in keys for problem in verify_sequences(graph.open_sequences(key))]


def _export_is_complete(graph: BuildGraph, names: Sequence[str]) -> list[str]:
    config = graph.export_config(names[0])
    folder, manifest = graph.export(config).folder, graph.export(config).manifest()
    parts = graph.parts(config)
    if manifest.num_bytes <= MAX_READ_BYTES:
        problems = verify_export(folder, manifest, parts)
        return (_damage_of(parts) or problems) if problems else []
    problems = []
    for part in parts:
        num = sum(manifest.counts[f"{part.name}.num_{n}tokens"] for n in ("", "dropped_"))
        if num != part.num_tokens:
            problems.append(
                f"{folder}: {part.name}: expected {part.num_tokens:,} tokens written or dropped, "
                f"found {num:,}"
            )
    return problems


def _damage_of(parts: Sequence[Part]) -> list[str]:
    """Return which files are damaged that an export was compared with."""
    return [str(p) for one in inputs_of(parts) for p in broken_files(one.folder, one.manifest)]


CHECKS: dict[str, tuple[OutputCheck, ...]] = {
    "tokens": (
        OutputCheck(
            "accounting_closes",
            "Documents in = documents + rejects; characters, tokens and bytes add up; every id "
            "is below vocab_size; BOS and EOS are where they belong.",
            _tokens_close,
        ),
        OutputCheck(
            "equal_to_reference",
            "A sample of documents, read again from the raw file, has the tokens of the "
            "reference tokenizer and, where that loses nothing, decodes to its text.",
            _tokens_equal_reference,
        ),
    ),
    "split": (
        OutputCheck(
            "accounting_closes",
            "Every character of every document is in one part or in none.",
            _split_closes,
        ),
        OutputCheck(
            "no_shared_text",
            "No text of 32 characters or more is in two parts of the files of this run.",
            _split_shares_no_text,
            is_blocking=False,
        ),
    ),
    "sequences": (
        OutputCheck(
            "accounting_closes",
            "Every token of every part is in exactly one sequence, is a leftover token of the "
            "file, or is counted as dropped or repeated.",
            _sequences_close,
        ),
    ),
    "export": (
        OutputCheck(
            "complete",
            "The files can be read, and hold the tokens of the split but for those that the "
            "config drops by name.",
            _export_is_complete,
        ),
    ),
}
"""Stage to checks."""


def check_specs(stage: str, key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Return the checks of an asset as they are declared before it runs."""
    return [
        dg.AssetCheckSpec(
            check.name, asset=key, description=check.description, blocking=check.is_blocking
        )
        for check in CHECKS.get(stage, ())
    ]


def check_results(
    graph: BuildGraph, stage: str, name: str, outputs: Sequence[str]
) -> list[dg.AssetCheckResult]:
    """Return the result of each check of an asset, the export `name` for one, for `outputs`: its
    partitions, or of an asset without that name."""
    results = []
    for check in CHECKS.get(stage, ()):
        problems = _problems(check, graph, [name] if name else outputs)
        severity = dg.AssetCheckSeverity
        results.append(
            dg.AssetCheckResult(
                asset_key=asset_key(graph.dataset, stage, name),
                check_name=check.name,
                passed=not problems,
                severity=severity.ERROR if check.is_blocking else severity.WARN,
                description="\n".join(shortened(problems, MAX_SHOWN)) or None,
                metadata={"num_checked": len(outputs), "num_problems": len(problems)},
            )
        )
    return results


def _problems(check: OutputCheck, graph: BuildGraph, names: Sequence[str]) -> list[str]:
    """Return what a check finds; an output too damaged to be read is a problem, too."""
    try:
        return check.problems(graph, names)
    except (TokflowError, OSError, pa.ArrowException) as error:
        return [message_of(error, where=check.name)]
