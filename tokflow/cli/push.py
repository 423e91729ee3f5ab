"""`tokflow push`: an export into a dataset repository of the hub."""

import sys
from dataclasses import asdict

from tokflow.cli.terminal import print_json
from tokflow.hub.push import push_export
from tokflow.shown import counted, size


def main(
    export: str,
    *,
    to: str,
    private: bool | None,
    revision: str | None,
    pull_request: bool,
    allow_pickle: bool,
    json: bool,
) -> None:
    """Push, a line for each commit, and say where it is."""
    _quiet()
    pushed = push_export(
        export,
        to,
        private=private,
        revision=revision,
        pull_request=pull_request,
        allow_pickle=allow_pickle,
        say=(lambda line: None) if json else (lambda line: print(line, flush=True)),
    )
    if json:
        print_json(asdict(pushed))
        return
    sent = f"{counted(pushed.num_sent, 'change')}, {size(pushed.num_sent_bytes)}"
    print(
        f"{counted(pushed.num_files, 'file')}, {size(pushed.num_bytes)}: all there with the sha256 "
        f"of the manifest ({sent if pushed.num_sent else 'nothing was sent'})"
    )
    visibility = "private" if pushed.is_private else "public"
    print(f"{visibility}: {pushed.url} at {pushed.commit[:7]}")


def _quiet() -> None:
    """Let huggingface_hub print bars on a terminal alone, and no URL that it is given to upload to,
    for that has a signature."""
    import huggingface_hub.utils as of_hub

    of_hub.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if not sys.stderr.isatty():
        of_hub.disable_progress_bars()  # type: ignore[attr-defined]
