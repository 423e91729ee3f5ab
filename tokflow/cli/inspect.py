"""`tokflow inspect` and `tokflow report`: an output for people, with its counts, files and first
sequences decoded; one page of pictures and tables for each dataset."""

from pathlib import Path
from typing import Annotated

import typer

from tokflow.audit.inspection import Inspection, Segment, inspect_output
from tokflow.audit.token_texts import drawn
from tokflow.cli.options import (
    Configs,
    Html,
    Json,
    Names,
    ProjectFolder,
    StoreName,
    Trust,
    select,
)
from tokflow.cli.terminal import (
    print_chat,
    print_json,
    print_rows,
    print_styled,
    print_table,
    shown_ids,
    shown_path,
)
from tokflow.errors import ConfigError, shortened
from tokflow.formatting import counted, size
from tokflow.pipeline.mixture import mixture_rows
from tokflow.sequences import described
from tokflow.split.permutation import shuffled_by
from tokflow.store.atomic import new_file
from tokflow.store.manifest import Manifest

FILES_SHOWN = 20

SEQUENCES_SHOWN = 2


OutputPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="An output's folder, a link to it, a file in it, or the URL of one.",
    ),
]

SequencesShown = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=1_000_000,
        help="Sequences of each part to show; by default 2, with --html as many as fit.",
    ),
]

FirstShown = Annotated[
    int, typer.Option(min=0, metavar="N", help="With --html: the first sequence to show.")
]

PartShown = Annotated[
    str | None, typer.Option(help="With --html: the only part to show; by default all.")
]

ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File to write, of one dataset; by default STORE/NAME/report/report.html.",
    ),
]


def main(
    path: OutputPath,
    sequences: SequencesShown = None,
    html: Html = None,
    part: PartShown = None,
    first: FirstShown = 0,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """Print what the output at `path` holds, or write a page that shows it to the file `html`."""
    if html is not None:
        from tokflow.views.viewer_page import make_viewer  # late: few look at a page

        page = make_viewer(
            path,
            part=part,
            first=first,
            num_sequences=sequences,
            trust_remote_code=trust_remote_code,
        )
        with new_file(html) as temporary:
            temporary.write_bytes(page)
        if json:
            print_json({"path": html, "num_bytes": len(page)})
        else:
            print(f"viewer: {shown_path(html)}, {size(len(page))}")
        return
    if part is not None or first:
        raise ConfigError(
            where="arguments",
            expected="--part and --first with --html, which shows them in a page",
            found="no --html",
            remedy="add `--html FILE`",
        )
    num = SEQUENCES_SHOWN if sequences is None else sequences
    inspection = inspect_output(path, num_sequences=num, trust_remote_code=trust_remote_code)
    found = inspection.found
    if not json:
        _print(inspection)
        return
    tokenizer = None if inspection.tokenizer is None else str(inspection.tokenizer.folder)
    print_json(
        {
            "folder": str(found.folder),
            "manifest": found.manifest.fields(),
            "run": found.run(),
            "num_bytes": found.manifest.num_bytes,
            "tokenizer": tokenizer,
            "notes": inspection.notes,
            "excerpts": inspection.excerpts,
        }
    )


def _print(inspection: Inspection) -> None:
    found = inspection.found
    manifest = found.manifest
    print_styled((found.name, "bold"), f" of dataset {manifest.dataset}")
    print_styled(f"folder       {found.shown}")
    print(f"fingerprint  {manifest.recipe.fingerprint}")
    print(f"size         {size(manifest.num_bytes)} in {counted(len(manifest.files), 'file')}")
    for name in ("format", "dtype", "vocab_size", "sequence_length", "pad_id"):
        if (value := manifest.details.get(name)) is not None:
            print(f"{name:<11}  {described(value) if isinstance(value, dict) else value}")
    for role in ("eos", "bos"):
        if (token_id := manifest.details.get(f"{role}_id")) is not None:
            token = manifest.details.get(f"{role}_token")
            if token is None and inspection.tokenizer is not None:
                token = getattr(inspection.tokenizer, f"{role}_token")
            print(f"{role:<11}  {token_id:,}" + (f" {token!r}" if token else ""))
    for name, seed in shuffled_by(manifest).items():
        print(f"shuffled     {name}, seed {seed}")
    _print_origins(manifest)
    if (version := manifest.details.get("raw_version")) is not None:
        known_by = [version[name] for name in ("etag", "last_modified") if version[name]]
        print(f"raw file     {size(version['num_bytes'])}, known by its version: {known_by[0]}")
    if of_mixture := mixture_rows(manifest.details.get("mixture", {})):
        print()
        print_rows(of_mixture)
    print()
    print_table(("count", ""), [(name, f"{num:,}") for name, num in manifest.counts.items()])
    print()
    rows = [(name, size(of.num_bytes), of.sha256[:16]) for name, of in manifest.files.items()]
    print_table(("file", "size", "sha256"), rows, max_rows=FILES_SHOWN)
    for note in inspection.notes:
        print(f"\nnote: {note}")
    for excerpt in inspection.excerpts:
        num_tokens = sum(len(s.token_ids) for s in excerpt.segments if not s.is_padding)
        num_segments = sum(not segment.is_padding for segment in excerpt.segments)
        tokens, segments = counted(num_tokens, "token"), counted(num_segments, "segment")
        print()
        print_styled((excerpt.name, "bold"), f": {tokens} of {segments}")
        for number, segment in enumerate(excerpt.segments):
            _print_segment(segment, number)


def _print_origins(manifest: Manifest) -> None:
    parents = [f"{name} {parent[:16]}" for name, parent in manifest.recipe.parents.items()]
    for line in shortened(parents, FILES_SHOWN):
        print_styled(f"made from    {line}")
    origin = manifest.details.get("origin", {})
    commits = {origin["hub_id"]: origin["commit"]} if "commit" in origin else {}
    for name, commit in {**commits, **manifest.details.get("commits", {})}.items():
        print(f"of the hub   {name} at {commit}")


def _print_segment(segment: Segment, number: int) -> None:
    """Print a document's tokens behind a bar that shows where it begins and ends."""
    if segment.is_padding:
        print_styled((f"  {counted(len(segment.token_ids), 'token')} of padding", "dim"))
        return
    print_styled((f"  {segment.document or 'document'}", "dim"))
    if segment.text is None:
        print(f"  │ {shown_ids(segment.token_ids)}")
        return
    if segment.spans:
        print_chat(segment.spans)
        return
    color = ("cyan", "yellow")[number % 2]
    text = drawn(segment.text).removesuffix("\n")
    for line in text.split("\n") if text else ():
        print_styled("  │ ", (line, color))


def report(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    output: ReportFile = None,
    json: Json = False,
) -> None:
    """Write the report of each dataset, and print its path."""
    from tokflow.views.picture import check_report

    check_report("tokflow report")
    from tokflow.views.report_page import make_report, write_report

    datasets = select(names, configs, store)
    if output is not None and len(datasets) > 1:
        raise ConfigError(
            where="--output",
            expected="one dataset, whose report the file is to hold",
            found=f"{len(datasets):,}",
            remedy="name the dataset, or leave --output out",
        )
    reports = []
    for dataset in datasets:
        path = output or write_report(dataset)
        if output is not None:
            with new_file(output) as temporary:
                temporary.write_bytes(make_report(dataset).html)
        num_bytes = path.stat().st_size
        reports.append({"dataset": dataset.name, "path": path, "num_bytes": num_bytes})
        if not json:
            shown = shown_path(path, None if output else dataset.store)
            print(f"report: {shown}, {size(num_bytes)}")
    if json:
        print_json({"reports": reports})
