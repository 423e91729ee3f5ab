"""Summary at the end of a run: files, exports, what was left out, and how to load a batch."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tokflow.cli.terminal import (
    described_dropped,
    described_left_out,
    print_notices,
    print_rows,
    print_styled,
    print_table,
    shown_path,
)
from tokflow.errors import first_five
from tokflow.exclusion.stage import EXCLUSION
from tokflow.exports import Export
from tokflow.exports.config import PRESETS
from tokflow.formatting import counted, duration, size
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.describe import (
    describe,
    describe_all,
    formatted,
    label,
    phrase_of_part,
    phrases,
    statistics_of,
    total_counts,
)
from tokflow.pipeline.gc import unreferred_bytes
from tokflow.pipeline.mixture import mixture_rows_of
from tokflow.pipeline.plan import Plan
from tokflow.pipeline.results import BuildResult, StageResult
from tokflow.selection.stage import SELECTION
from tokflow.split import NOT_IN_STRATA
from tokflow.split.mixed_split import BUDGET_CUTS
from tokflow.split.rule import NOT_TAKEN
from tokflow.store.listed_files import LATEST, named_by, path_of_newest
from tokflow.strata.stage import undivided
from tokflow.tokenizers.auto_tokenizer import describe_rebuilt
from tokflow.tokenizers.engines.gate import VERDICT
from tokflow.views.picture import has_report

FILES_SHOWN = 30
"""Files in the table; of more, those that failed, those with rejects, and the largest."""

OF_FILES = ("num_documents", "num_tokens", "megabytes_per_second")
"""Numbers of each file in the table."""

BATCH_ROWS = 8

LEAST_SECONDS = 0.05
"""A stage that takes less is not worth a word."""


def print_summary(plan: Plan, built: BuildResult, *, is_declared: bool = False) -> None:
    """Print the tables and lines that end a run, of a declared dataset also the command that draws
    its report, for which no run waits."""
    dataset, exports = plan.graph.dataset, built.of("export")
    _print_files(plan, built)
    statistics = statistics_of(built)
    if text := statistics["text"]:
        numbers = ", ".join(phrases(text, lambda _, kind: not kind.is_loss))
        print(f"{counted(len(built.of('tokens')), 'file')}: {numbers}")
    for of in ("select", "strata", "mixture", "parts"):
        if rows := statistics.get(of):
            print()
            print_rows(rows)
    rows = []
    for made in exports:
        parts = describe(made.manifest).parts.items()
        tokens = ", ".join(f"{part} {values['num_exported_tokens']:,}" for part, values in parts)
        path = shown_path(path_of_newest(made.folder), made.store)
        rows.append((made.output.name, tokens, size(made.manifest.num_bytes), path))
    if rows:
        print()
        print_table(("export", "tokens", "bytes", "path"), rows)
    print()
    print_styled("\n".join([*_known(dataset, built), *left_out(dataset, built)]))
    if reason := _why_no_exports(plan, built):
        print_styled(reason)
    elif code := loading_code(exports, sequence_length=dataset.packing.sequence_length):
        print("\nload a batch:")
        print_styled((code, "cyan"))
    if is_declared and exports and dataset.report and has_report():
        print("\ndraw its report:")
        print_styled((f"tokflow report {dataset.name}", "cyan"))
    print_notices(built.notices, before="\n")
    _print_spent(plan, built)
    ending = f", {counted(len(built.failed), 'failure')}" if built.failed else ""
    print(
        f"{dataset.name}: {counted(built.num_new, 'output')} new, "
        f"{len(built.made) - built.num_new:,} up to date{ending} ({duration(built.seconds)})"
    )


def _print_spent(plan: Plan, built: BuildResult) -> None:
    """Print what of the store a whole build does not use any more, equal files counted once, the
    time that each stage took, and the memory of all processes."""
    is_whole = not built.failed and built.partitions.keys() == plan.graph.partitions.keys()
    used = {made.folder for made in built.made}
    if is_whole and (unused_bytes := unreferred_bytes(plan.graph.dataset, used)):
        files = {entry for made in built.made for entry in made.manifest.files.values()}
        all_bytes = sum(entry.num_bytes for entry in files) + unused_bytes - built.dropped_bytes
        print(
            f"\nstore: {size(all_bytes)}, {size(unused_bytes)} of it no longer referred to; "
            "`tokflow gc --keep 1` with the same NAME or --config lists that"
        )
    if built.dropped_bytes:
        print(f"\n{described_dropped(built.dropped_bytes)}")
    taken = [(of, num) for of, num in built.stage_seconds.items() if num >= LEAST_SECONDS]
    stages = ", ".join(f"{stage} {duration(num)}" for stage, num in taken)
    memory = "" if built.peak_bytes is None else f"peak memory {size(built.peak_bytes)}"
    print(f"\n{'; '.join(filter(None, [stages, memory]))}")


def _counts(built: BuildResult, stage: str) -> Counter[str]:
    """Return the counts of all outputs of a stage together."""
    return total_counts(made.manifest.counts for made in built.of(stage))


def _print_files(plan: Plan, built: BuildResult) -> None:
    new: dict[str, dict[str, None]] = {}
    for made in built.made:
        if made.is_new and made.output.step.is_of_file:
            new.setdefault(made.output.name, {})[made.output.stage] = None
    shards = {made.output.name: made for made in built.of("tokens")}
    files = plan.graph.listed
    failed = {failed.name: failed.stage for failed in built.failed if failed.name in files}
    keys = sorted({*shards, *failed})
    if not keys:  # no tokenizer, no files
        return

    def rank(key: str) -> tuple[bool, bool, int]:
        counts = shards[key].manifest.counts if key in shards else Counter[str]()
        return key not in failed, not counts["num_rejects"], -counts["num_bytes"]

    first = sorted(keys, key=rank)[:FILES_SHOWN]
    keys = [*sorted(first), *(key for key in keys if key not in first)]
    print()
    print_table(
        ("file", *map(label, OF_FILES), "state"),
        [_file_row(key, shards.get(key), [*new.get(key, ())], failed) for key in keys],
        max_rows=FILES_SHOWN,
    )


def _file_row(
    key: str, made: StageResult | None, new: Sequence[str], failed: Mapping[str, str]
) -> Sequence[str]:
    values = describe(made.manifest, made.run if made.is_new else None).whole if made else {}
    cells = [formatted(name, values.get(name)) for name in OF_FILES]
    if key in failed or made is None:
        return (key, *cells, f"failed ({failed[key]})")
    state = "new" if made.is_new else f"new {' and '.join(new)}" if new else "up to date"
    return (key, *cells, ", ".join([state, *phrases(values, lambda _, kind: kind.is_loss)]))


def _known(dataset: Dataset, built: BuildResult) -> Iterator[str]:
    """Yield how full sequences are and what was cut, repeated or dropped, a line for each part of
    the packed exports; what to know of a tokenizer and its engine, in the run that has made them;
    how much of a limit of all files these have together, where it is more than that."""
    names: dict[str, list[str]] = {}
    for made in built.of("export"):
        for part, values in describe(made.manifest).parts.items():
            if "num_sequences" in values:
                line = f"{part} {phrase_of_part(values)}"
                names.setdefault(line, []).append(made.output.name)
    yield from (f"packed in {', '.join(of)}: {line}" for line, of in names.items())
    for made in built.of("tokenizer"):
        if made.is_new and (rebuilt := describe_rebuilt(made.folder)):
            yield f"warning: {rebuilt}"
    shards, limit = built.of("tokens"), dataset.documents.limit
    reasons = [str(of.run.get("engine_reason")) for of in shards if of.is_new]
    if verdict := next((reason for reason in reasons if reason.startswith(VERDICT)), None):
        yield f"warning: {verdict}; the reference makes all tokens of this tokenizer"
    is_whole = shards and len(shards) == len(shards[0].output.graph.listed)
    counts = _counts(built, "tokens")
    if limit.scope != "file" and is_whole and limit.after(counts) is not None:
        nouns = {} if limit.count_empty else {"documents": "documents that have text"}
        taken = ", ".join(
            f"{num:,} of {getattr(limit, name):,} {nouns.get(name, name)}"
            for name, num in limit.taken(counts).items()
        )
        yield f"documents.limit is not reached: all files together have {taken}"


def left_out(dataset: Dataset, built: BuildResult) -> list[str]:
    """Return a line for each thing of the raw files that is not in the exports."""
    lines = [
        *_not_tokenized(dataset, built),
        *_in_no_part(dataset, built),
        *_not_mixed(built),
        *_not_exported(built),
    ]
    is_all = not lines and not any(notice.is_loss for notice in built.notices)
    return ["left out: nothing"] if is_all else lines


def _not_tokenized(dataset: Dataset, built: BuildResult) -> Iterator[str]:
    """Yield what of the raw files is in no token shard, and of the vocabulary in no tokenizer."""
    if built.failed:
        all_files = {"all files": "the split of all files"}
        not_built = dict.fromkeys(all_files.get(of.name, of.name) for of in built.failed)
        yield f"not built: {', '.join(not_built)}; see the errors below"
    if num_bad := len(built.made[0].output.graph.bad_files) if built.made else 0:
        files = counted(built.num_files + num_bad, "file")
        yield f"bad files: {num_bad:,} of {files}, left out as raw.on_bad_file says"
    if built.left_out:
        yield described_left_out(built.left_out)
    if selections := built.of(SELECTION.name):
        yield from _not_selected(dataset, selections)
    for made in built.of(EXCLUSION.name):
        if num := made.manifest.counts["num_unused_rows"]:
            unused = made.manifest.details["unused"].items()
            some = [f"{name}, row {row}" for name, rows in unused for row in rows]
            rows = f"{counted(num, 'row')} of {made.manifest.counts['num_list_rows']:,}"
            yield f"exclude: {rows} of the lists name no document ({first_five(some)})"
    if num_left_out := _counts(built, "tokens")["num_left_out"]:
        yield f"left out by {dataset.documents.transform}: {counted(num_left_out, 'record')}"
    reached = [
        one
        for one in built.of("tokens")
        if one.output.graph.documents(one.output.name).limit.after(one.manifest.counts) is None
    ]
    if reached:
        graph, names = reached[0].output.graph, [one.output.name for one in reached]
        num_behind = len(graph.listed) - len(graph.partitions)
        behind = f", and {counted(num_behind, 'file')} behind it" if num_behind else ""
        yield f"not read: anything past documents.limit in {first_five(names)}{behind}"
    for one in built.of("tokenizer"):
        whole = describe(one.manifest).whole
        if asked := whole.get("vocab_size_asked"):
            num = whole["vocab_size"]
            yield f"tokenizer: {num:,} ids of the {asked:,} asked for: the text has no more"


def _not_selected(dataset: Dataset, selections: Sequence[StageResult]) -> Iterator[str]:
    """Yield what `exclude` and `select` keep of all files, and of those of which they keep the
    least."""
    of_files = {made.output.name: describe(made.manifest).whole for made in selections}
    total = describe_all(made.manifest for made in selections)
    if total is None or not total.whole["num_unselected"]:
        return
    kept, left_out = total.whole["num_documents"], total.whole["num_unselected"]
    asked = {"exclude": dataset.exclude.path, "select": dataset.select.expression.strip()}
    by = " and ".join(name for name, of in asked.items() if of)
    if not kept:
        yield f"warning: {by} keeps none of {counted(left_out, 'document')}"
        return
    least = sorted(of_files, key=lambda name: (of_files[name]["kept_fraction"], name))
    shares = [f"{of} {formatted('kept_fraction', of_files[of]['kept_fraction'])}" for of in least]
    share = formatted("kept_fraction", total.whole["kept_fraction"])
    yield (
        f"left out by {by}: {counted(left_out, 'document')} of {kept + left_out:,}; kept: "
        f"{share} of the tokens ({first_five(shares)})"
    )


def _in_no_part(dataset: Dataset, built: BuildResult) -> Iterator[str]:
    """Yield how much text no part of the split takes, or no stratum, and which part takes none."""
    counts, selected = _counts(built, "split"), _counts(built, SELECTION.name)
    selected["num_documents_unselected"] = selected["num_unselected"]
    names = ("num_documents", "num_cut_pieces", "num_chars", "num_tokens")
    in_none = {of: counts[f"{NOT_IN_STRATA}.{of}"] for of in names}
    in_no_part = {
        of: counts[f"{NOT_TAKEN}.{of}"] - selected[f"{of}_unselected"] - in_none[of] for of in names
    }
    for where, lost in (("part of the split", in_no_part), ("stratum", in_none)):
        documents, cut, num_chars, num_tokens = lost.values()
        taken_from = [counted(documents, "document")] if documents else []
        taken_from += [f"{counted(cut, 'span')} of cut documents"] if cut else []
        if counts and taken_from:
            text, of = counted(num_chars, "character"), " and ".join(taken_from)
            yield f"in no {where}: {text} of {of} ({counted(num_tokens, 'token')})"
    limited = built.of("split")[0].output.graph.limited if counts else None
    behind = limited.parts_behind() if limited else []
    for part in dataset.parts if counts else ():
        if undivided(part) in behind:
            yield (
                f"warning: {part}: no text falls into this part, since documents.limit is reached "
                "before its files; raise it, or set its scope to file"
            )
        elif not counts[f"{part}.num_chars"]:
            yield f"{part}: no text falls into this part"


def _not_mixed(built: BuildResult) -> Iterator[str]:
    """Yield what of its sources a mixture does not take, and how many documents it cuts."""
    rows = mixture_rows_of(built)
    for row in rows:
        source, part, available = row["source"], row["part"], row["available_tokens"]
        if num := max(0, available - row["tokens"]):
            yield f"not taken of {source}: {num:,} of its {available:,} tokens of {part}"
    cuts = Counter[str]()
    for row in rows:
        cuts[row["source"]] += row[BUDGET_CUTS]
    if num_cuts := cuts.total():
        end = "its tokens end" if num_cuts == 1 else "their tokens end"
        of_each = ", ".join(f"{num:,} of {source}" for source, num in cuts.items() if num)
        yield f"cut where {end}: {counted(num_cuts, 'document')} ({of_each})"


def _not_exported(built: BuildResult) -> Iterator[str]:
    """Yield which exports drop tokens, which drop the loss mask, and of which a training attends
    from one chat to the next."""
    dropped, without_mask = [], []
    for one in built.of("export"):
        num = describe(one.manifest).whole["num_dropped_tokens"]
        dropped += [f"{counted(num, 'token')} by {one.output.name}"] if num else []
        without_mask += [one.output.name] if _is_without_mask(one) else []
    if dropped:
        yield f"dropped: {', '.join(dropped)}"
    if without_mask:
        yield f"without the loss mask of the chats: {', '.join(without_mask)}"
    for one in built.of("export"):
        export, packing = Export(one.stored), one.manifest.recipe.config.get("packing", {})
        is_chats = _is_without_mask(one) or any(map(export.has_loss_mask, export.parts))
        is_of_one = packing.get("strategy") == "one_document"
        if is_chats and export.layout.is_across_documents and not is_of_one:
            yield (
                f"warning: {one.output.name}: readers of {one.manifest.details['format']} attend "
                "from one chat to the next; for chats name a preset "
                f"({', '.join(PRESETS)}), or a format that keeps segment_ids"
            )


def _is_without_mask(export: StageResult) -> bool:
    return "loss_mask" in export.manifest.details.get("lost", ())


def _why_no_exports(plan: Plan, built: BuildResult) -> str | None:
    """Return why there was no export to make; None where there was one."""
    dataset = plan.graph.dataset
    if not dataset.exports:
        return "exports: none declared"
    failed = {of.stage for of in built.failed}
    if built.of("export") or failed == {"export"}:
        return None
    folders = [dataset.folder / "exports" / config.name for config in dataset.exports]
    state = "as they were" if any(named_by(of / LATEST) for of in folders) else "not made"
    if failed:
        why = "there is no tokenizer" if "tokenizer" in failed else "not every file is built"
        return f"exports: {state}, since {why}"
    if plan.is_open:  # how many these are is not known
        return f"exports: {state}; other files that documents.limit takes are not built yet"
    return f"exports: {state}; {counted(plan.num_elsewhere, 'other file')} not built yet"


def loading_code(exports: Sequence[StageResult], *, sequence_length: int) -> str | None:
    """Return three lines of Python, to be copied and run as they are, that load a batch from the
    bin export if there is one, else from the first that can be read and has some text; from one
    that has lost the loss mask only where all have."""

    def rank(made: StageResult) -> tuple[bool, bool]:
        return _is_without_mask(made), made.manifest.details["format"] != "bin"

    for made in sorted(exports, key=rank):
        export = Export(made.stored)
        parts = (part for part in export.parts if export.counts[f"{part}.num_tokens"] > 1)
        if export.is_read and (part := next(parts, None)):
            arguments = f"{shown_path(path_of_newest(made.folder), made.store)!r}, part={part!r}"
            if not export.layout.is_packed:
                arguments += f", sequence_length={sequence_length}"
            return (
                "from tokflow.loaders import open_rows\n"
                f"rows = open_rows({arguments})\n"
                f"batch = rows[:{BATCH_ROWS}]  # input_ids, labels and so on"
            )
    return None
