"""Raw files that cannot be read, where `raw.on_bad_file: skip` leaves them out."""

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.document_trace import trace_document
from tokflow.audit.verify import verify_dataset
from tokflow.cli.closing_summary import left_out
from tokflow.loaders import open_rows
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.failures import PastFailure, note_failures
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.pipeline.status import file_statuses
from tokflow_tests.outputs import export_bytes
from tokflow_tests.pipeline.test_mixture import declare_mixture, declare_source
from tokflow_tests.raw.fetching import Server, serving
from tokflow_tests.tiny import declare

WHOLE = gzip.compress(b'{"text": "the middle"}\n' * 100, mtime=0)
TEXTS = {"a.jsonl": ["one", "two"], "c.jsonl": ["three"], "d.jsonl": ["four", "five"]}
FILES = {"files": "raw/*"}


def skipping(folder: Path, bad: bytes, name: str = "b.jsonl.gz", **attributes: Any) -> Dataset:
    """Return a dataset of good files and one that is bad."""
    raw = {**FILES, "on_bad_file": "skip", **attributes.pop("raw", {})}
    dataset = declare(folder, TEXTS, raw=raw, **{"exports": ["bin", "parquet"], **attributes})
    (folder / "raw" / name).write_bytes(bad)
    return dataset


@pytest.mark.parametrize(
    ("name", "bad", "reason"),
    [
        ("b.jsonl.gz", WHOLE[:-10], "a stream that is cut short"),
        ("b.parquet", b"PAR1 and no more", "parquet"),
        ("b.jsonl", b"", "0 bytes"),
        ("b.jsonl", b"{broken\n", "{broken"),
    ],
    ids=["truncated", "parquet", "empty", "document"],
)
def test_a_bad_file_is_named_with_its_reason_and_stops_no_export(
    name: str, bad: bytes, reason: str, tmp_path: Path
):
    dataset = skipping(tmp_path, bad, name)

    built = build_dataset(dataset)
    plan = make_plan(dataset)

    assert built.failed == ()
    counts, line = left_out(dataset, built)
    assert counts == "bad files: 1 of 4 files, left out as raw.on_bad_file says"
    assert f"raw/{name} (a bad file: expected " in line
    assert reason in line
    for export in ("bin", "parquet"):
        manifest = built.export(export).manifest
        assert list(manifest.recipe.parents) == ["a.jsonl", "c.jsonl", "d.jsonl"]
        assert reason in manifest.details["bad_files"][name]
    assert plan.is_up_to_date
    assert [of.found for of in plan.left_out] == [of.found for of in built.left_out]
    assert {of.key: of.state for of in file_statuses(plan)} == {
        **dict.fromkeys(TEXTS, "built"),
        name: "bad",
    }
    assert build_dataset(dataset).num_new == 0


def test_another_bad_file_leaves_files_and_rows_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copied, copy = list[int](), os.copy_file_range

    def note(*files_and_size: int) -> int:
        copied.append(copy(*files_and_size))
        return copied[-1]

    before = build_dataset(skipping(tmp_path, WHOLE[:-10]))
    monkeypatch.setattr(os, "copy_file_range", note)
    after = build_dataset(skipping(tmp_path, b"{broken\n", "z.jsonl"))

    tables = [of.export("parquet") for of in (before, after)]
    assert tables[0].folder != tables[1].folder
    assert tables[0].manifest.details["shards"] == tables[1].manifest.details["shards"]
    tokens = [of.export("bin").folder for of in (before, after)]
    assert (tokens[0] / "train.bin").stat().st_size in copied
    assert len({open_rows(of, "train", sequence_length=2).source.fingerprint for of in tokens}) == 1


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"raw": {"group": 2}},
        {"split": {"parts": {"train": {"documents": 3}, "validation": {"start": 3}}}},
        {"documents": {"limit": {"documents": 4, "scope": "dataset"}}},
        {"shuffle": {"documents": "dataset", "seed": 3}},
        {"tokenizer": {"kind": "trained", "vocab_size": 270}},
    ],
    ids=lambda of: "-".join(of),
)
def test_exports_have_the_bytes_of_a_build_in_which_the_file_never_was(
    attributes: dict[str, Any], tmp_path: Path
):
    of_bad = build_dataset(skipping(tmp_path / "bad", WHOLE[:-10], **attributes))
    never = skipping(tmp_path / "never", b"", **attributes)
    (tmp_path / "never/raw/b.jsonl.gz").unlink()
    of_never = build_dataset(never)

    assert of_bad.failed == ()
    for export in ("bin", "parquet"):
        assert export_bytes(of_bad, export) == export_bytes(of_never, export)
        fingerprints = {of.export(export).manifest.recipe.fingerprint for of in (of_bad, of_never)}
        assert len(fingerprints) == 2


def test_what_was_bad_is_made_as_soon_as_it_is_whole(tmp_path: Path):
    dataset = skipping(tmp_path, WHOLE[:-10])
    build_dataset(dataset)
    (tmp_path / "raw/b.jsonl.gz").write_bytes(WHOLE)

    waiting = {of.stage for of in make_plan(dataset).missing}
    built = build_dataset(dataset)

    assert waiting == {"tokens", "split", "sequences", "export"}
    assert "b.jsonl.gz" in built.export("bin").manifest.recipe.parents
    assert "bad_files" not in built.export("bin").manifest.details
    assert left_out(dataset, built) == ["left out: nothing"]
    assert not (dataset.folder / "bad_files.json").exists()


@pytest.mark.parametrize("is_mended_there", [True, False])
def test_a_transform_that_is_mended_brings_back_what_it_could_not_read(
    is_mended_there: bool, tmp_path: Path
):
    limit = tmp_path / "limit.txt"
    read = f"int(__import__('pathlib').Path({str(limit)!r}).read_text())"

    def write(most: int) -> None:
        limit.write_text(f"{most}")
        said = most if is_mended_there else read
        code = f"def short(text):\n    assert len(text) <= {said}\n    return text\n"
        (tmp_path / "clean.py").write_text(code)

    def made_from(**documents: Any) -> list[str]:
        fields = {"transform": "clean:short", **documents}
        bad = b'{"text": "a longer one"}\n'
        built = build_dataset(skipping(tmp_path, bad, "b.jsonl", documents=fields))
        return list(built.export("bin").manifest.recipe.parents)

    write(9)
    before = made_from()
    write(99)

    assert before == [*TEXTS]
    assert ("b.jsonl" in made_from()) == is_mended_there
    assert "b.jsonl" in made_from(transform_version=2)  # as docs/data.md asks for


@pytest.mark.parametrize("raw", [{"on_bad_file": "error"}, {"max_bad_files": 1}])
def test_by_default_and_where_too_many_are_bad_no_export_is_made(
    raw: dict[str, Any], tmp_path: Path
):
    dataset = skipping(tmp_path, WHOLE[:-10], raw=raw)
    (tmp_path / "raw/z.jsonl").write_bytes(b"{")

    built = build_dataset(dataset)

    assert {of.name for of in built.failed} == {"b.jsonl.gz", "z.jsonl"}
    assert built.of("export") == []
    assert ("raw.max_bad_files is 1" in str(built.failed[0].error)) == ("max_bad_files" in raw)
    assert not make_plan(dataset).is_up_to_date


def test_what_may_be_well_later_is_no_bad_file(tmp_path: Path):
    dataset = skipping(tmp_path, WHOLE)
    (tmp_path / "raw/b.jsonl.gz").unlink()
    (tmp_path / "raw/b.jsonl.gz").symlink_to("/proc/self/mem")  # reading it is an error of the disk

    built, plan = build_dataset(dataset), make_plan(dataset)

    assert [of.name for of in built.failed if of.stage == "raw"] == ["b.jsonl.gz"]
    assert (built.of("export"), plan.graph.bad_files) == ([], {})


def test_a_bad_evaluation_file_condemns_no_raw_file(tmp_path: Path):
    (tmp_path / "model.py").write_text("def size(texts): return {'size': [len(t) for t in texts]}")
    (tmp_path / "eval.jsonl.gz").write_bytes(WHOLE[:-10])
    named = {
        "size": {"function": "model:size", "columns": {"size": "number"}},
        "leaks": {"evaluation": "eval.jsonl.gz"},
    }
    built = build_dataset(skipping(tmp_path, WHOLE, attributes=named))

    assert {of.stage for of in built.failed} == {"attributes"}
    assert built.bad_files == ()


def test_verify_and_trace_say_the_state_of_the_file(tmp_path: Path):
    dataset = skipping(tmp_path, WHOLE[:-10])
    build_dataset(dataset)

    [of_file] = [of for of in verify_dataset(dataset) if of.name == "raw file b.jsonl.gz"]
    traced = trace_document(dataset, "b.jsonl.gz", 0)

    assert of_file.problems == ()
    assert "left out" in of_file.notes[0]
    assert "cut short" in of_file.notes[0]
    assert "cut short" in str(traced.why_not)
    assert not any(of.problems for of in verify_dataset(dataset))


def test_a_mixture_says_what_its_source_leaves_out(tmp_path: Path):
    raw = {"files": "web/*.jsonl", "on_bad_file": "skip"}
    declare_source(tmp_path, "web", {"a.jsonl": ["one"], "z.jsonl": ["two"]}, raw=raw)
    (tmp_path / "web/b.jsonl").write_bytes(b"{")
    mixture = declare_mixture(tmp_path, {"sources": {"web": {"weight": 1}}}, exports=["bin"])

    built = build_dataset(mixture)

    assert built.failed == ()
    assert list(built.export("bin").manifest.details["bad_files"]) == ["web/b.jsonl"]
    assert "web/b.jsonl (a bad file: " in "\n".join(left_out(mixture, built))
    assert make_plan(mixture).is_up_to_date


def test_a_server_is_asked_again_for_a_bad_file_and_made_with_it_once_it_is_whole(tmp_path: Path):
    with serving(Server(name="b.jsonl.gz", content=WHOLE[:-10])) as server:
        raw = {"files": [server.url, "raw/*"], "on_bad_file": "skip"}
        dataset = declare(tmp_path, TEXTS, raw=raw, exports=["bin"])
        first, plan = build_dataset(dataset), make_plan(dataset)
        num_asked = len(server.requests)
        second = build_dataset(dataset, graph=plan.graph)
        asked_again = len(server.requests) > num_asked
        server.content, server.etag = WHOLE, '"v2"'
        third = build_dataset(dataset, graph=make_plan(dataset).graph)

    [key] = plan.graph.bad_files
    assert (first.failed, second.failed, third.failed) == ((), (), ())
    assert (plan.is_up_to_date, plan.num_remote) == (True, 1)
    assert (second.num_new, asked_again) == (0, True)
    assert key not in first.export("bin").manifest.recipe.parents
    assert key in third.export("bin").manifest.recipe.parents


def test_where_every_file_is_bad_the_build_fails_with_their_own_errors(tmp_path: Path):
    dataset = declare(tmp_path, raw={**FILES, "on_bad_file": "skip"}, exports=["bin"])
    (tmp_path / "raw").mkdir(exist_ok=True)
    (tmp_path / "raw/a.jsonl").write_bytes(b"")

    built = build_dataset(dataset)

    assert [(of.name, of.explained.found) for of in built.failed] == [("a.jsonl", "0 bytes")]
    assert built.of("export") == []


def bad(folder: Path, **attributes: Any) -> Dataset:
    """Return a dataset of which b.jsonl cannot be read."""
    dataset = declare(folder, {"a.jsonl": ["one"], "b.jsonl": ["two"]}, **attributes)
    (folder / "raw/b.jsonl").write_text("{broken\n")
    return dataset


def told(dataset: Dataset) -> dict[str, PastFailure]:
    """Return the failures that a plan tells, by output."""
    planned = make_plan(dataset).planned
    return {f"{of.stage} {of.name}": of.failure for of in planned if of.failure is not None}


def test_a_failure_is_told_as_long_as_the_file_and_what_decides_are_the_same(tmp_path: Path):
    dataset = bad(tmp_path)
    build_dataset(dataset)
    build_dataset(dataset, partitions=["a.jsonl"])

    for kept in ({}, {"packing": {"sequence_length": 2}}):
        assert list(told(declare(tmp_path, **kept))) == ["tokens b.jsonl"]
    for documents in ({"on_bad_document": "reject"}, {"text": "other"}):
        assert told(declare(tmp_path, documents=documents)) == {}
    (tmp_path / "raw/b.jsonl").write_text('{"text": "mended"}\n')
    assert told(dataset) == {}


def test_what_succeeds_leaves_no_file_behind_even_if_it_is_deleted_again(tmp_path: Path):
    dataset = bad(tmp_path)
    build_dataset(dataset)
    assert (dataset.folder / "failures.json").is_file()
    (tmp_path / "raw/b.jsonl").write_text('{"text": "mended"}\n')
    build_dataset(dataset)

    assert not (dataset.folder / "failures.json").exists()

    shutil.rmtree(dataset.folder / "tokens")

    assert told(dataset) == {}


def test_a_failure_that_passed_by_itself_or_whose_export_is_gone_is_forgotten(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["one"]}, exports=["bin", "npy"])
    in_the_way = [dataset.folder / "tokens/a.jsonl", dataset.folder / "exports/npy"]
    for path, output in zip(in_the_way, ("tokens a.jsonl", "export npy"), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        build_dataset(dataset)
        assert list(told(dataset)) == [output]
        if output == "tokens a.jsonl":
            path.unlink()

    build_dataset(declare(tmp_path, exports=["bin"]))

    assert not (dataset.folder / "failures.json").exists()


def test_a_failure_of_a_file_that_is_gone_is_forgotten(tmp_path: Path):
    dataset = bad(tmp_path)
    build_dataset(dataset)
    (tmp_path / "raw/b.jsonl").unlink()

    build_dataset(dataset)

    assert not (dataset.folder / "failures.json").exists()


def test_a_failure_of_an_export_that_a_later_build_did_not_try_is_still_told(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["one"]}, exports=["npy"])
    in_the_way = dataset.folder / "exports/npy"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    build_dataset(dataset)

    graph = BuildGraph(dataset)
    note_failures(graph, [], graph.partitions)  # of a build of the tokens alone

    assert list(told(dataset)) == ["export npy"]


def test_a_file_that_could_not_be_fetched_is_told_of_and_a_plan_asks_no_server(tmp_path: Path):
    with serving(Server(name="b.jsonl", statuses=[404] * 9)) as server:
        raw = {"files": [server.url, "raw/a.jsonl"]}
        dataset = declare(tmp_path, {"a.jsonl": ["one"]}, raw=raw, exports=["bin"])
        [failed] = build_dataset(dataset).failed
        num_asked = len(server.requests)
        found = told(dataset)

    [(output, failure)] = found.items()
    assert output == f"tokens {failed.name}"
    assert failure.message == str(failed.error)
    assert len(server.requests) == num_asked


def test_a_file_of_failures_that_cannot_be_read_tells_nothing(tmp_path: Path):
    dataset = bad(tmp_path)
    build_dataset(dataset)
    (dataset.folder / "failures.json").write_text('{"a": 1')

    assert told(dataset) == {}
