"""`tokflow verify`: a line per output, and every problem."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.audit.verify.verifier import Verification
from tokflow.cli.options import Configs, Jobs, Json, ProjectFolder, StoreName, Trust, select
from tokflow.cli.terminal import FAILED, exit_status, print_error, print_json, print_styled
from tokflow.errors import ConfigError
from tokflow.formatting import counted, size
from tokflow.pipeline.declared import list_declared
from tokflow.store.stored_outputs import opened, path_of
from tokflow.store.urls import is_url

Verified = Annotated[
    str | None,
    typer.Argument(
        metavar="[PATH | URL | NAME]",
        help="An output, a folder of outputs, or a declared dataset.",
    ),
]
Reference = Annotated[
    bool,
    typer.Option("--reference", help="Compare the tokens of all documents with the reference's."),
]
Receipt = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Compare a receipt with the store at PATH or URL, or with that and the raw files "
        "of NAME, by default the dataset that it names.",
    ),
]
PublicKey = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="With --receipt: the public key in PEM that must have signed it."
    ),
]
Rebuild = Annotated[
    bool,
    typer.Option(
        "--rebuild",
        help="With --receipt: build NAME from its raw files in a temporary folder, in place of "
        "reading its store, and compare.",
    ),
]

Excluded = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="LIST",
        help="Look in all exports of NAME, and of mixtures of it, for the documents that a list "
        "names, as `exclude` takes it, and write a proof; can be repeated.",
    ),
]

HELD_SHOWN = 20
"""Documents in exports of which a line says so."""


def main(
    target: Verified = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    reference: Reference = False,
    trust_remote_code: Trust = False,
    jobs: Jobs = None,
    receipt: Receipt = None,
    key: PublicKey = None,
    rebuild: Rebuild = False,
    excluded: Excluded = None,
    json: Json = False,
) -> int:
    """Print the result of each output as soon as it is known; return the exit status."""
    _check_given(excluded, receipt, key, rebuild=rebuild, reference=reference)
    if excluded:
        return _verify_excluded(excluded, target, configs, store, json=json)
    if receipt is not None:
        return _verify_receipt(receipt, target, configs, store, key, rebuild=rebuild, json=json)
    results: list[Verification] = []
    found: Iterable[Verification]
    broken: dict[str, ConfigError] = {}
    if target is None or configs or target in (declared := list_declared()):
        datasets = select([target] if target else None, configs, store, broken=broken)
        found = (
            replace(of, name=f"{dataset.name}: {of.name}" if len(datasets) > 1 else of.name)
            for dataset in datasets
            for of in verify_dataset(dataset, all_documents=reference, jobs=jobs)
        )
    else:
        _check_target(target, declared, is_reference=reference)
        found = verify_path(target, trust_remote_code=trust_remote_code, jobs=jobs)
    for verified in found:
        results.append(verified)
        if not json:
            note = f" ({'; '.join(verified.notes)})" if verified.notes else ""
            state = ("failed", "red") if verified.problems else ("ok", "green")
            print_styled(state, f"  {verified.name}  {verified.folder.name}{note}")
            for problem in verified.problems:
                print_error(problem)
    num_problems = sum(len(verified.problems) for verified in results)
    if json:
        print_json({"num_problems": num_problems, "outputs": results})
    else:
        print(f"{size(sum(verified.num_bytes for verified in results))} compared with checksums")
        outputs = counted(len(results), "output")
        print(f"{outputs}: {counted(num_problems, 'problem') if num_problems else 'all well'}")
    return FAILED if num_problems else exit_status(broken.values())


def _check_given(
    excluded: list[Path] | None,
    receipt: Path | None,
    key: Path | None,
    *,
    rebuild: bool,
    reference: bool,
) -> None:
    """Refuse options that --excluded or --receipt would leave unread, or that lack a receipt."""
    options = {"--receipt": receipt, "--key": key, "--rebuild": rebuild, "--reference": reference}
    given = [name for name, of in options.items() if of]
    unread = [*options] if excluded else ["--reference"] if receipt else []
    if found := [name for name in unread if name in given]:
        raise ConfigError(
            where="--excluded" if excluded else "--receipt",
            expected=f"none of {', '.join(unread)}" if excluded else "no --reference",
            found=", ".join(found),
            remedy="run `tokflow verify` twice",
        )
    if given and given[0] in ("--key", "--rebuild"):
        raise ConfigError(
            where=given[0],
            expected="a receipt, by --receipt FILE",
            found="none",
            remedy="name it; `tokflow receipt` writes one",
        )


def _verify_receipt(
    receipt: Path,
    target: str | None,
    configs: list[Path] | None,
    store: str | None,
    key: Path | None,
    *,
    rebuild: bool,
    json: bool,
) -> int:
    """Print what a receipt says otherwise than what is there; return the exit status."""
    from tokflow.record import receipt as record

    statement, signature = record.statement_in(receipt.read_bytes(), where=receipt, key=key)
    name = target or str(statement["predicate"]["dataset"])
    is_declared = bool(configs) or name in list_declared()
    found: Iterable[str]
    if rebuild:
        with TemporaryDirectory() as folder:
            [dataset] = select([name], configs, folder)
            found = list(record.check_rebuilt(statement, dataset))
    elif is_declared:
        [dataset] = select([name], configs, store)
        found = record.check_dataset(statement, dataset)
    else:
        found = record.check_store(statement, *opened(name))
    problems = list(found)
    root = statement["predicate"]["merkle_root"]
    if json:
        print_json({"merkle_root": root, "signature": signature, "problems": problems})
    else:
        for problem in problems:
            print_error(problem)
        raw = "" if rebuild or is_declared else "; raw files were not read: name the dataset"
        well = counted(len(problems), "problem") if problems else f"all well{raw}"
        print(f"{receipt}: root {root}, {signature}: {well}")
    return FAILED if problems else 0


def _verify_excluded(
    lists: Sequence[Path],
    target: str | None,
    configs: list[Path] | None,
    store: str | None,
    *,
    json: bool,
) -> int:
    """Print which documents of lists are in an export; return the exit status."""
    from tokflow.audit.verify.excluded import prove_excluded

    datasets = select([target] if target else None, configs, store)
    proofs = [prove_excluded(dataset, lists) for dataset in datasets]
    if json:
        print_json({"proofs": [{"path": of.path, **of.fields} for of in proofs]})
    for proof in proofs if not json else ():
        fields, held = proof.fields, proof.fields["held"]
        for of in held[:HELD_SHOWN]:
            last = of["position"] + of["num_tokens"] - 1
            row = f", sequence {of['sequence']:,}" if "sequence" in of else ""
            print_error(
                f"{of['raw_file']}, row {of['row']:,}: expected in no export, found in "
                f"{of['export']}: {of['part']}: tokens {of['position']:,} to {last:,}{row}; "
                "name it by `exclude`, run, then remove old exports by `tokflow gc --keep 0 --yes`"
            )
        if len(held) > HELD_SHOWN:
            print_error(f"{len(held) - HELD_SHOWN:,} segments more, all in {proof.path}")
        for problem in fields["problems"]:
            print_error(problem)
        exports = counted(len(fields["exports"]), "export")
        found = f"{counted(len(held), 'segment')} of them found" if held else "none of them found"
        print(
            f"{fields['dataset']}: {counted(fields['num_documents'], 'document')}, "
            f"{counted(fields['num_tokens'], 'token')} looked for in {exports}: {found}; "
            f"{proof.path}"
        )
    return 0 if all(of.is_proven for of in proofs) else FAILED


def _check_target(target: str, declared: Iterable[str], *, is_reference: bool) -> None:
    """Refuse a path where there is nothing, or one whose raw files would have to be known."""
    if is_reference:
        raise ConfigError(
            where="option --reference",
            expected="a declared dataset, whose raw files are read",
            found=f"the path {target}",
            remedy="name the dataset, or its YAML file by --config",
        )
    if not is_url(target) and not path_of(target).exists():
        raise ConfigError(
            where=f"argument {target!r}",
            expected=f"a path in a store or a declared dataset: {', '.join(declared) or '(none)'}",
            found="neither",
            remedy="correct it, or name a YAML file by --config",
        )
