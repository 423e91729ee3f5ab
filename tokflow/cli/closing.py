"""What a run says at its end: files, exports, what was left out, and how to load a batch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from tokflow.build.dataset import Dataset
from tokflow.build.plan import Plan
from tokflow.build.results import BuildResult, StageFailure, StageResult
from tokflow.cli.left_out import line_of_left_out
from tokflow.cli.lines import described_parts
from tokflow.cli.output import counted, print_table, shown_path, size, styled
from tokflow.cli.packing import described_rows
from tokflow.cli.snippets import loading_code
from tokflow.documents import Limit
from tokflow.store.atomic import LATEST
from tokflow.tokenizers.auto_tokenizer import describe_rebuilt
from tokflow.tokenizers.engines.gate import VERDICT
from tokflow.tokenizers.tokenizer import vocab_size_asked
from tokflow.tokens.writer import REJECTS_NAME

FILES_SHOWN = 30
"""Files listed on the screen; of more, those that are new come first."""


def print_closing(dataset: Dataset, plan: Plan, built: BuildResult, *, with_rows: bool) -> None:
    """Print the tables and lines that end a run; `with_rows` also what packing made."""
    _print_files(plan, built)
    exports = [made for made in built.made if made.output.stage == "export"]
    if exports:
        _print_exports(exports)
    print()
    for line in (
        *(packed(built) if with_rows else ()),
        *_notices(built),
        *left_out(dataset, built),
    ):
        print(line)
    if reason := _why_no_exports(dataset, plan, built):
        print(reason)
    elif code := loading_code(exports, sequence_length=dataset.packing.sequence_length):
        print(f"\nload a batch:\n{styled(code, 'cyan')}")
    print()
    ending = f", {counted(len(built.failed), 'failure')}" if built.failed else ""
    print(
        f"{dataset.name}: {counted(built.num_new, 'output')} new, "
        f"{len(built.made) - built.num_new:,} up to date{ending} ({built.seconds:.1f} s)"
    )


def _print_files(plan: Plan, built: BuildResult) -> None:
    new_stages: dict[str, list[str]] = {}
    for made in built.made:
        if made.is_new and made.output.stage in ("tokens", "split", "sequences"):
            new_stages.setdefault(made.output.name, []).append(made.output.stage)
    failed = {failed.name: failed.stage for failed in built.failed}
    shards = {made.output.name: made for made in built.made if made.output.stage == "tokens"}
    keys = sorted({*shards, *(name for name in failed if name in _keys(plan))})
    shown = sorted(keys, key=lambda key: (key not in failed, key not in new_stages))[:FILES_SHOWN]
    rows = [
        _file_row(key, shards.get(key), new_stages.get(key, []), failed.get(key))
        for key in sorted(shown)
    ]
    if not rows:  # no tokenizer, no files
        return
    print()
    print_table(("file", "documents", "tokens", "MB/s", "state"), rows)
    if len(keys) > len(shown):
        print(f"... and {len(keys) - len(shown):,} more")
    if len(shards) > 1:
        counts = [made.manifest.counts for made in shards.values()]
        print(
            f"{counted(len(shards), 'file')}: "
            f"{counted(sum(of['num_documents'] for of in counts), 'document')}, "
            f"{counted(sum(of['num_tokens'] for of in counts), 'token')}"
        )


def _keys(plan: Plan) -> set[str]:
    files = {p.name for p in plan.planned if p.stage in ("tokens", "split", "sequences")}
    return files | {bad.name for bad in plan.bad}


def _file_row(
    key: str, made: StageResult | None, new: Sequence[str], failed: str | None
) -> Sequence[str]:
    if made is None:
        return (key, "", "", "", f"failed ({failed})")
    counts = made.manifest.counts
    state = "new" if made.is_new else f"new {' and '.join(new)}" if new else "up to date"
    return (
        key,
        f"{counts['num_documents']:,}",
        f"{counts['num_tokens']:,}",
        f"{made.run.get('megabytes_per_second', 0):,.1f}",
        f"failed ({failed})" if failed else state,
    )


def _print_exports(exports: Sequence[StageResult]) -> None:
    rows = []
    for made in exports:
        counts = made.manifest.counts
        parts = made.manifest.details["parts"]
        tokens = ", ".join(f"{part} {counts[f'{part}.num_tokens']:,}" for part in parts)
        num_bytes = sum(entry.num_bytes for entry in made.manifest.files.values())
        latest = shown_path(made.output.folder.parent / LATEST)
        rows.append((made.output.name, tokens, size(num_bytes), latest))
    print()
    print_table(("export", "tokens", "bytes", "path"), rows)


def packed(built: BuildResult) -> Iterator[str]:
    """Yield how full the rows are and what was cut, repeated or dropped: a line for each part of
    the exports of rows, or where there is no such export one for the rows of all files."""
    rows: dict[str, list[str]] = {}
    for made in built.made:
        if made.output.stage == "export":
            counts = made.manifest.counts
            for part in made.manifest.details["parts"]:
                if f"{part}.num_sequences" in counts:
                    line = f"{part} {described_rows(counts, part)}"
                    rows.setdefault(line, []).append(made.output.name)
    yield from (f"rows of {', '.join(names)}: {line}" for line, names in rows.items())
    sequences = [made for made in built.made if made.output.stage == "sequences"]
    if sequences and not rows:
        yield f"rows of {counted(len(sequences), 'file')}: {described_parts(sequences)}"


def _notices(built: BuildResult) -> Iterator[str]:
    """Yield what to know of the tokenizer and its engine, in the run that has made them."""
    reasons = []
    for made in built.made:
        if made.is_new and made.output.stage == "tokenizer":
            if rebuilt := describe_rebuilt(made.output.folder):
                yield f"warning: {rebuilt}"
        elif made.is_new and made.output.stage == "tokens":
            reasons.append(str(made.run.get("engine_reason")))
    if verdict := next((reason for reason in reasons if reason.startswith(VERDICT)), None):
        yield f"warning: {verdict}; the reference makes all tokens of this tokenizer"


def left_out(dataset: Dataset, built: BuildResult) -> Iterator[str]:
    """Yield a line for each thing of the raw files that is not in the exports."""
    made = built.made
    lines = []
    if built.failed:
        names = dict.fromkeys(map(_name_of, built.failed))
        lines.append(f"not built: {', '.join(names)}; see the errors above")
    if built.left_out:
        lines.append(line_of_left_out(built.left_out))
    lines += _rejected(made)
    lines += _in_no_part(made)
    lines += _small_vocabulary(made)
    for part in dataset.split.parts:
        sizes = [
            one.manifest.counts[f"{part}.num_chars"] for one in made if one.output.stage == "split"
        ]
        if sizes and not sum(sizes):
            lines.append(f"{part}: no text falls into this part")
    lines += _dropped(made)
    if without := [one.output.name for one in made if _loses_loss_mask(one)]:
        lines.append(f"without the loss mask of the chats: {', '.join(without)}")
    lines += _limited(dataset.documents.limit, made)
    yield from lines or ["left out: nothing"]


def _rejected(made: Sequence[StageResult]) -> list[str]:
    """Return the line that says how many documents were set aside, and where they are listed."""
    shards = [one for one in made if one.output.stage == "tokens"]
    numbers = [one.manifest.counts["num_rejects"] for one in shards]
    lists = [
        f"{num:,} in {shown_path(one.output.folder / REJECTS_NAME)}"
        for one, num in zip(shards, numbers, strict=True)
        if num
    ]
    if not lists:
        return []
    more = [f"and {len(lists) - 5:,} more files"] if len(lists) > 5 else []
    total = counted(sum(numbers), "document")
    return [f"rejected: {total}: {', '.join(lists[:5] + more)}"]


def _in_no_part(made: Sequence[StageResult]) -> list[str]:
    """Return the line that says how much text no part of the split takes."""
    counts: Counter[str] = Counter()
    for one in made:
        if one.output.stage == "split":
            counts.update(one.manifest.counts)
    documents, pieces = counts["no_part.num_documents"], counts["no_part.num_cut_pieces"]
    if not documents and not pieces:
        return []
    of_pieces = f" and {counted(pieces, 'piece')} of cut ones" if pieces else ""
    tokens = counted(counts["no_part.num_tokens"], "token")
    return [
        f"in no part of the split: {counts['no_part.num_chars']:,} characters of "
        f"{counted(documents, 'document')}{of_pieces} ({tokens})"
    ]


def _dropped(made: Sequence[StageResult]) -> list[str]:
    """Return the line that says how many tokens each export drops."""
    dropped = []
    for one in made:
        counts = one.manifest.counts if one.output.stage == "export" else {}
        num = sum(num for name, num in counts.items() if name.endswith(".num_dropped_tokens"))
        dropped += [f"{counted(num, 'token')} by {one.output.name}"] if num else []
    return [f"dropped: {', '.join(dropped)}"] if dropped else []


def _limited(limit: Limit, made: Sequence[StageResult]) -> list[str]:
    """Return the line that names the files whose reading the limit stopped; it may be their end."""
    names = [
        one.output.name
        for one in made
        if one.output.stage == "tokens"
        and (
            one.manifest.counts["num_documents"] >= (limit.documents or inf)
            or one.manifest.counts["num_chars"] >= (limit.characters or inf)
        )
    ]
    more = [f"and {counted(len(names) - 5, 'more file')}"] if len(names) > 5 else []
    shown = ", ".join(names[:5] + more)
    return [f"not read: anything past documents.limit in {shown}"] if names else []


def _small_vocabulary(made: Sequence[StageResult]) -> list[str]:
    for one in made:
        num, asked = one.manifest.counts.get("vocab_size"), vocab_size_asked(one.manifest)
        if one.output.stage == "tokenizer" and asked is not None and num != asked:
            return [f"tokenizer: {num:,} ids of the {asked:,} asked for: the text has no more"]
    return []


def _loses_loss_mask(made: StageResult) -> bool:
    return "loss_mask" in made.manifest.details.get("lost", ())


def _why_no_exports(dataset: Dataset, plan: Plan, built: BuildResult) -> str | None:
    """Return why there was no export to make; None where there was one."""
    if not dataset.exports:
        return "exports: none declared"
    if any(one.output.stage == "export" for one in built.made):
        return None
    if built.failed and all(failed.stage == "export" for failed in built.failed):
        return None
    folders = [dataset.folder / "exports" / config.name for config in dataset.exports]
    state = "as they were" if any((of / LATEST).exists() for of in folders) else "not made"
    if built.failed:
        return f"exports: {state}, for not every file is built"
    return f"exports: {state}; {counted(plan.num_elsewhere, 'other file')} not built yet"


def _name_of(failed: StageFailure) -> str:
    return "the split of all files" if failed.name == "all files" else failed.name
