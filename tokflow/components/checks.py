"""Asset checks: problems that `tokflow.audit.verify` finds in the outputs of a run."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import dagster as dg
import pyarrow as pa

from tokflow.audit.verify.export import verify_export
from tokflow.audit.verify.raw import verify_against_raw
from tokflow.audit.verify.remade import verify_sequences, verify_split
from tokflow.audit.verify.tokens import verify_tokens
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


OutputCheck = Callable[[BuildGraph, Sequence[str]], list[str]]
"""One asset check: from the partition keys that were built (of an export, its name) to sentences.

Its docstring is its description in the web UI.
"""


def _tokens_close(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    """Documents in = documents + rejects + left out; characters, tokens and bytes add up; every id
    is below vocab_size; BOS and EOS are where they belong."""
    return [problem for key in keys for problem in verify_tokens(graph.open_tokens(key))]


def _tokens_equal_reference(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    """A sample of documents, read again from the raw file, has the tokens of the reference
    tokenizer and, where that loses nothing, decodes to its text."""
    every = -(-len(keys) // SAMPLED_FILES)
    tokenizer = graph.tokenizer
    return [
        problem
        for key in keys[::every]
        for problem in verify_against_raw(
            graph.raw(key),
            graph.open_tokens(key),
            graph.dataset.documents,
            graph.encoding,
            num_samples=SAMPLED_DOCUMENTS,
            max_characters=SAMPLED_CHARACTERS,
            on_difference=partial(try_to_write_verdict, tokenizer.folder, tokenizer.fingerprint),
        )
    ]


def _split_closes(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    """Every character of every document is in one part or in none."""
    return [problem for key in keys for problem in verify_split(graph.open_split(key))]


def _split_shares_no_text(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    """No text of 32 characters or more is in two parts of the files of this run."""
    return find_shared_texts([graph.open_split(key) for key in keys])


def _sequences_close(graph: BuildGraph, keys: Sequence[str]) -> list[str]:
    """Every token of every part is in exactly one sequence, is a leftover token of the file, or is
    counted as dropped or repeated."""
    return [problem for key in keys for problem in verify_sequences(graph.open_sequences(key))]


def _export_is_complete(graph: BuildGraph, names: Sequence[str]) -> list[str]:
    """The files can be read, and hold the tokens of the split but for those that the config drops
    by name."""
    config = graph.export_config(names[0])
    folder, manifest = graph.export(config).folder, graph.export(config).manifest()
    parts = graph.parts(config)
    reads_files = manifest.num_bytes <= MAX_READ_BYTES
    problems = verify_export(folder, manifest, parts, reads_files=reads_files)
    return (_damage_of(parts) or problems) if problems else []


def _damage_of(parts: Sequence[Part]) -> list[str]:
    """Return which files are damaged that an export was compared with."""
    return [str(p) for one in inputs_of(parts) for p in broken_files(one.folder, one.manifest)]


CHECKS: Mapping[str, Mapping[str, OutputCheck]] = {
    "tokens": {"accounting_closes": _tokens_close, "equal_to_reference": _tokens_equal_reference},
    "split": {"accounting_closes": _split_closes, "no_shared_text": _split_shares_no_text},
    "sequences": {"accounting_closes": _sequences_close},
    "export": {"complete": _export_is_complete},
}
"""Stage to checks by name."""

WARNING = "no_shared_text"
"""The check that warns; where another fails, nothing downstream is built."""


def check_specs(stage: str, key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Return the checks of an asset as they are declared before it runs."""
    return [
        dg.AssetCheckSpec(
            name,
            asset=key,
            description=" ".join(str(check.__doc__).split()),
            blocking=name != WARNING,
        )
        for name, check in CHECKS.get(stage, {}).items()
    ]


def check_results(
    graph: BuildGraph, stage: str, name: str, outputs: Sequence[str]
) -> list[dg.AssetCheckResult]:
    """Return the result of each check of an asset, the export `name` for one, for `outputs`: its
    partitions, or of an asset without that name."""
    results = []
    for check_name, check in CHECKS.get(stage, {}).items():
        try:
            problems = check(graph, [name] if name else outputs)
        except (TokflowError, OSError, pa.ArrowException) as error:  # too damaged to be read
            problems = [message_of(error, where=check_name)]
        severity = dg.AssetCheckSeverity
        results.append(
            dg.AssetCheckResult(
                asset_key=asset_key(graph.dataset, stage, name),
                check_name=check_name,
                passed=not problems,
                severity=severity.WARN if check_name == WARNING else severity.ERROR,
                description="\n".join(shortened(problems, MAX_SHOWN)) or None,
                metadata={"num_checked": len(outputs), "num_problems": len(problems)},
            )
        )
    return results
