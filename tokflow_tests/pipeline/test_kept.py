"""Tokens that are dropped when the exports stand, and made again where something needs them."""

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.document_trace import trace_document
from tokflow.audit.trace import TokenOrigin, trace_tokens
from tokflow.audit.verify import verify_dataset
from tokflow.documents import ranges
from tokflow.errors import MissingOutputError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import drop_tokens, spare_tokens
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.store.remote import CACHE_VARIABLE
from tokflow.tokens import shard_files
from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.disks import flip
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import export_bytes
from tokflow_tests.pipeline.test_mixture import declare_mixture, declare_source
from tokflow_tests.tiny import declare, load_dataset, write_raw, write_yaml

TEXTS = {f"{name}.jsonl": [f"text {name} {of} " * 9 for of in range(9)] for name in "abc"}
PARTS = {"parts": {"train": {"fraction": 0.8}, "validation": {"fraction": 0.2}}}


def declared(folder: Path, keep: str = "exports", **attributes: Any) -> Dataset:
    fields: dict[str, Any] = {"exports": ["bin"], "split": PARTS, **attributes}
    return declare(folder, TEXTS, keep=keep, **fields)


def tokens_in(dataset: Dataset) -> list[Path]:
    return sorted((dataset.folder / "tokens").rglob("*.bin"))


def tokens_there(store: ObjectStore) -> list[str]:
    keys = store.keys()
    return [key for key in keys if key.endswith("/tokens.bin")]


def test_tokens_go_when_the_exports_stand_and_everything_else_stays(tmp_path: Path):
    whole = build_dataset(declared(tmp_path / "whole", "all"))
    dataset = declared(tmp_path / "kept")

    built = build_dataset(dataset)

    assert built.dropped_bytes == sum(
        of.manifest.counts["num_tokens"] * 2 for of in whole.of("tokens")
    )
    assert tokens_in(dataset) == []
    assert export_bytes(built, "bin") == export_bytes(whole, "bin")
    assert make_plan(dataset).is_up_to_date
    assert build_dataset(dataset).num_new == 0
    names = {of.name for of in (dataset.folder / "tokens").rglob("*") if of.is_file()}
    assert names == {"documents.parquet", "manifest.json", "run.json"}


def test_what_needs_tokens_again_says_how_many_bytes_and_makes_the_same(tmp_path: Path):
    build_dataset(declared(tmp_path / "kept"))
    more: dict[str, Any] = {"exports": ["bin", "parquet"], "packing": {"sequence_length": 8}}
    whole = build_dataset(declared(tmp_path / "whole", "all", **more))

    dataset = declared(tmp_path / "kept", **more)
    plan = make_plan(dataset)
    built = build_dataset(dataset)

    num_raw = sum(of.stat().st_size for of in (tmp_path / "kept/raw").iterdir())
    assert plan.num_bytes == num_raw
    assert {of.cause for of in plan.missing if of.stage == "tokens"} == {"dropped"}
    assert {of.output.stage for of in built.made if of.is_new} == {"tokens", "sequences", "export"}
    for name in ("bin", "parquet"):
        assert export_bytes(built, name) == export_bytes(whole, name)
    assert tokens_in(dataset) == []


@pytest.mark.parametrize("split", [PARTS, {"parts": {"train": {"documents": 9}}}])
def test_a_file_more_makes_exports_of_all_tokens(split: dict[str, Any], tmp_path: Path):
    dataset = declared(tmp_path / "kept", split=split)
    whole = declared(tmp_path / "whole", "all", split=split)
    build_dataset(dataset)
    for of in (dataset, whole):
        write_raw(of.base, {"0.jsonl": ["new", "text"]})

    built = build_dataset(dataset)

    assert export_bytes(built, "bin") == export_bytes(build_dataset(whole), "bin")
    assert tokens_in(dataset) == []


@pytest.mark.parametrize(("strategy", "cut"), [("concat", {("a.jsonl", 6)}), ("best_fit", set())])
def test_a_trace_finds_characters_by_the_tokens_of_an_export_that_has_all_of_a_document(
    strategy: str, cut: set[tuple[str, int]], tmp_path: Path
):
    packing = {"strategy": strategy, "sequence_length": 150}  # a document is shorter
    exports = ["bin", "parquet", "llmc"]
    dataset = declared(tmp_path, "all", packing=packing, exports=exports)
    built = build_dataset(dataset)

    def traced() -> list[TokenOrigin]:
        folders = [built.export(name).folder for name in exports]
        return [
            origin
            for of in folders
            for origin in trace_tokens(of, part="train", start=70, stop=700)
        ]

    before = traced()
    drop_tokens(graph_of(declared(tmp_path, packing=packing, exports=exports)))

    assert tokens_in(dataset) == []
    pairs = list(zip(before, traced(), strict=True))
    assert before[0].text
    assert {(old.raw_file, old.row) for old, new in pairs if old != new} == cut
    assert all(new.text is None for old, new in pairs if old != new)


@pytest.mark.parametrize("is_cut", [False, True])
def test_tokens_that_are_other_ones_when_made_again_make_no_export(
    is_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if is_cut:
        monkeypatch.setattr(ranges, "RANGE_BYTES", 300)
        monkeypatch.setattr(shard_files, "WHOLE_RANGES", 1)
    suffix = tmp_path / "suffix.txt"
    suffix.write_text("!!")
    (tmp_path / "clean.py").write_text(
        "from pathlib import Path\n"
        f"def longer(text): return text + Path({str(suffix)!r}).read_text()\n"
    )

    def exports(*names: str) -> Dataset:
        return declared(tmp_path, documents={"transform": "clean:longer"}, exports=[*names])

    build_dataset(exports("bin"))
    suffix.write_text("?!")  # as many tokens, and nothing that is in a recipe
    built = build_dataset(exports("bin", "npy"))

    assert {of.name for of in built.failed} == {"a.jsonl", "b.jsonl", "c.jsonl"}
    said = str(built.failed[0].error)
    assert "expected the tokens that were dropped, " in said
    assert "set documents.transform_version" in said
    assert not (tmp_path / "store/tiny/exports/npy").exists()
    suffix.write_text("!!")
    assert build_dataset(exports("bin", "npy")).failed == ()


def test_what_reads_tokens_of_one_file_brings_them_back(tmp_path: Path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "text b 3 text b 3 text b 3 text b 3 text b 3"}\n')
    attributes = {"leaks": {"evaluation": str(texts), "text": "text"}}
    build_dataset(declared(tmp_path))

    plan = make_plan(declared(tmp_path, attributes=attributes))
    built = build_dataset(declared(tmp_path, attributes=attributes))

    assert {of.stage: of.cause for of in plan.missing} == {
        "tokens": "dropped",
        "attributes": "missing",
    }
    assert built.failed == ()
    assert sum(of.manifest.counts["num_tokens"] > 0 for of in built.of("tokens")) == 3
    assert make_plan(declared(tmp_path, attributes=attributes)).is_up_to_date
    assert tokens_in(declared(tmp_path)) == []


def test_verify_says_what_it_could_not_compare(tmp_path: Path):
    dataset = declared(tmp_path)
    build_dataset(dataset)

    found = {of.name: of for of in verify_dataset(dataset)}

    assert [of.problems for of in found.values()] == [()] * len(found)
    assert "tokens.bin: dropped" in found["tokens of a.jsonl"].notes[0]
    assert "were dropped: not compared" in found["export bin"].notes[0]
    assert trace_document(dataset, "a.jsonl", 1).pieces
    with pytest.raises(MissingOutputError, match="they were dropped"):
        graph_of(dataset).open_tokens("a.jsonl").tokens()


def test_gc_drops_the_tokens_if_it_is_asked_and_frees_what_it_says(tmp_path: Path):
    config = write_yaml(tmp_path, raw={"files": "raw/*"}, exports=["bin"], split=PARTS)
    write_raw(tmp_path, TEXTS)
    dataset = load_dataset(config)
    build_dataset(dataset)
    num_bytes = sum(of.stat().st_size for of in tokens_in(dataset))

    [listed] = json_of("gc", "--tokens", "--config", config)["datasets"]
    said = run("gc", "--tokens", "--yes", "--config", config).stdout

    assert listed["num_token_bytes"] == num_bytes
    assert f"small: the tokens of 3 files, {num_bytes / 1000:.1f} kB, removed\n" in said
    assert tokens_in(dataset) == []
    assert make_plan(dataset).is_up_to_date
    assert "no tokens that may go" in run("gc", "--tokens", "--config", config).stdout


def test_tokens_stay_where_an_export_does_not_stand(tmp_path: Path):
    dataset = declared(tmp_path, "all")
    build_dataset(dataset)

    assert spare_tokens(graph_of(declared(tmp_path, exports=["bin", "npy"]))) == []
    assert spare_tokens(graph_of(declared(tmp_path, exports=[]))) == []
    assert len(spare_tokens(graph_of(dataset))) == 3


def killed_steps(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield after each kill: at the first step that changes the disk, the second and so on."""
    replace, unlink = os.replace, os.unlink
    place = 0
    while True:
        steps = iter(range(place))

        def step(of: Any, *args: Any, steps: Iterator[int] = steps, **how: Any) -> Any:
            if next(steps, None) is None:
                raise KeyboardInterrupt
            return of(*args, **how)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", partial(step, replace))
            patch.setattr(os, "unlink", partial(step, unlink))
            try:
                drop_tokens(graph_of(dataset))
                return
            except KeyboardInterrupt:
                pass
        yield place
        place += 1


def test_a_kill_at_any_step_of_dropping_leaves_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    build_dataset(declared(tmp_path, "all"))
    dataset = declared(tmp_path)

    num_kills = 0
    for _ in killed_steps(dataset, monkeypatch):
        num_kills += 1
        assert make_plan(dataset).is_up_to_date
        assert not any(of.problems for of in verify_dataset(dataset))

    assert num_kills >= 3
    assert tokens_in(dataset) == []


@pytest.mark.parametrize("is_first", [True, False])
def test_an_output_made_again_while_its_tokens_are_dropped_stays_whole(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset, replace = declared(tmp_path, "all"), os.replace
    build_dataset(dataset)
    output = graph_of(dataset).tokens("a.jsonl").open()
    again = shutil.copytree(output.folder, tmp_path / "again")

    def made_again(*args: Any, **how: Any) -> None:
        if is_first:
            rename()
        replace(*args, **how)
        if not is_first:
            rename()

    def rename() -> None:
        output.folder.rename(tmp_path / "aside")
        again.rename(output.folder)

    monkeypatch.setattr(os, "replace", made_again)
    dataset.store.drop(output, ["tokens.bin"])

    assert not dataset.store.problems([dataset.store.read(output.folder)])[0]
    assert (output.folder / "tokens.bin").exists()


def test_tokens_of_a_mixture_go_and_come_with_its_exports(tmp_path: Path):
    for name in ("web", "code"):
        declare_source(tmp_path, name, TEXTS, keep="exports")

    def mixture(*exports: str) -> Dataset:
        sources = {"web": {"weight": 2}, "code": {"weight": 1}}
        return declare_mixture(tmp_path, {"sources": sources}, exports=[*exports])

    first = build_dataset(mixture("bin"))
    sources = mixture("bin").sources
    assert (first.failed, first.dropped_bytes > 0) == ((), True)
    assert [of for source in sources for of in tokens_in(source)] == []
    assert make_plan(mixture("bin")).is_up_to_date

    both = mixture("bin", "npy")
    assert {of.cause for of in make_plan(both).missing if of.stage == "tokens"} == {"dropped"}
    assert build_dataset(both).failed == ()

    assert export_bytes(build_dataset(both), "bin") == export_bytes(first, "bin")
    assert [of for source in sources for of in tokens_in(source)] == []


def test_tokens_of_a_store_at_a_url_go_there_too_and_come_again(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    store = f"{object_store.url}/store"
    whole = build_dataset(declared(tmp_path / "whole", "all", exports=["bin", "npy"]))
    build_dataset(declared(tmp_path / "there", store=store))

    tokens = tokens_there(object_store)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "other"))  # as on another machine
    again = declared(tmp_path / "there", store=store)
    assert tokens == []
    assert make_plan(again).is_up_to_date
    assert not any(of.problems for of in verify_dataset(again))

    more = declared(tmp_path / "there", store=store, exports=["bin", "npy"])
    built = build_dataset(more)

    for name in ("bin", "npy"):
        assert export_bytes(built, name) == export_bytes(whole, name)
    assert tokens_there(object_store) == []


def test_a_recheck_without_tokens_computes_all_but_the_check_that_needs_them(tmp_path: Path):
    write_raw(tmp_path, TEXTS)
    fields: dict[str, Any] = {"raw": {"files": "raw/*"}, "split": PARTS, "exports": ["bin"]}
    config = write_yaml(tmp_path, keep="exports", **fields)
    built = build_dataset(load_dataset(config))

    said = run("run", "--config", config, "--recheck").output
    flip(built.export("bin").folder / "train.bin")
    found = run("run", "--config", config, "--recheck")

    assert "all checks but those of dropped tokens were computed again" in said
    assert "not computed: tokens equal_to_reference (3 of 3)\n" in said
    assert (found.exit_code, "train.bin" in found.output) == (1, True)
