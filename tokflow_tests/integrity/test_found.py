"""Every fault in every kind of file is found by `verify` of the output, the store, the dataset."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.audit.verify.verifier import Verification
from tokflow.errors import CorruptOutputError, ForeignOutputError
from tokflow.exports import FORMATS
from tokflow.store.manifest import MANIFEST_NAME, keep_manifest, read_manifest
from tokflow_tests.integrity.store import FAULTS, declared, files_of, outputs
from tokflow_tests.tiny import copy_of

pytestmark = pytest.mark.integrity

STAGES = ("tokens", "split", "sequences")
"""Of each of them another raw file's output is damaged, so that no fault hides another."""


def targets(store: Path) -> list[Path]:
    """Return an output of each kind that is made for good, none made from another."""
    found = outputs(store)
    exports = [found[name][-1] for name in FORMATS]
    return [*(found[stage][i % len(found[stage])] for i, stage in enumerate(STAGES)), *exports]


def most_files(built: Path) -> int:
    return max(len(files_of(output)) for output in targets(built / "store"))


def blamed(verified: list[Verification]) -> set[Path]:
    return {each.folder for each in verified if each.problems}


def assert_found(folder: Path, url: str, damaged: set[Path]) -> None:
    """Let `verify` look at each output alone, at the store and at the dataset."""
    alone = {output for output in damaged if blamed(list(verify_path(output)))}
    of_store = list(verify_path(folder / "store"))
    of_dataset = list(verify_dataset(declared(folder, url)))

    assert alone == damaged
    assert damaged <= blamed(of_store)
    assert damaged <= blamed(of_dataset)


def test_what_was_built_is_well(built: Path, url: str, tmp_path: Path):
    folder = copy_of(built, tmp_path)

    assert blamed(list(verify_path(folder / "store"))) == set()
    assert blamed(list(verify_dataset(declared(folder, url)))) == set()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_in_any_file_is_found(
    fault: Callable[[Path], None], built: Path, url: str, tmp_path: Path
):
    for ordinal in range(most_files(built)):
        (tmp_path / str(ordinal)).mkdir()
        folder = copy_of(built, tmp_path / str(ordinal))
        damaged = set()
        for output in targets(folder / "store"):
            names = files_of(output)
            if ordinal < len(names):
                fault(output / names[ordinal])
                damaged.add(output)

        assert_found(folder, url, damaged)


@pytest.mark.parametrize("kind", ["tokenizer", "raw"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_in_what_all_is_made_from_is_found(
    kind: str, fault: Callable[[Path], None], built: Path, url: str, tmp_path: Path
):
    [whole] = outputs(built / "store")[kind]
    for ordinal, name in enumerate(files_of(whole)):
        (tmp_path / str(ordinal)).mkdir()
        folder = copy_of(built, tmp_path / str(ordinal))
        output = folder / whole.relative_to(built)
        fault(output / name)

        assert_found(folder, url, {output})


def test_an_additional_file_is_found(built: Path, url: str, tmp_path: Path):
    folder = copy_of(built, tmp_path)
    found = outputs(folder / "store")
    damaged = {*targets(folder / "store"), *found["tokenizer"], *found["raw"]}
    for number, output in enumerate(sorted(damaged)):
        name = ("more.bin", "inner/more.bin", ".more", "inner/_tokflow/manifest.json")[number % 4]
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_bytes(b"")

    assert_found(folder, url, damaged)


def test_every_byte_of_every_kind_of_manifest_is_covered(built: Path, tmp_path: Path):
    kinds = outputs(built / "store")
    for kind in ("raw", "tokenizer", "tokens", "split", "sequences", "bin", "parquet"):
        data = (kinds[kind][0] / MANIFEST_NAME).read_bytes()
        for position in range(len(data)):
            flipped = bytearray(data)
            flipped[position] ^= 1 << (3 * position % 8)
            keep_manifest(tmp_path, bytes(flipped))
            with pytest.raises((CorruptOutputError, ForeignOutputError)):
                read_manifest(tmp_path)
