from pathlib import Path

import pytest

from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.pipeline.status import FileStatus, file_statuses
from tokflow_tests.pipeline.test_mixture import declare_mixture
from tokflow_tests.tiny import build, declare_small, write_texts


def statuses(folder: Path, **fields: object) -> dict[str, FileStatus]:
    return {of.key: of for of in file_statuses(make_plan(declare_small(folder, **fields)))}


def test_a_built_file_has_the_counts_and_the_time_of_its_tokens(tmp_path: Path):
    build(declare_small(tmp_path))

    found = statuses(tmp_path)["a.jsonl"]

    counts = found.num_documents, found.num_tokens, found.bytes_per_token
    assert (found.state, found.reason, counts) == ("built", "", (4, 29, round(25 / 29, 4)))
    (manifest,) = (tmp_path / "store/small/tokens/a.jsonl").glob("*/_tokflow/manifest.json")
    assert found.built_at is not None
    assert found.built_at.timestamp() == pytest.approx(manifest.stat().st_mtime)


def test_a_file_that_changed_is_stale_and_keeps_the_counts_of_what_was_built(tmp_path: Path):
    build(declare_small(tmp_path))
    write_texts(tmp_path / "raw" / "b.jsonl", ["other"])
    write_texts(tmp_path / "raw" / "new.jsonl", ["more"])

    found = statuses(tmp_path)

    assert {key: of.state for key, of in found.items()} == {
        "a.jsonl": "built",
        "b.jsonl": "stale",
        "new.jsonl": "new",
        "sub/c.jsonl": "built",
    }
    assert found["b.jsonl"].reason == "tokens: file changed (b.jsonl)"
    assert (found["b.jsonl"].num_documents, found["b.jsonl"].num_tokens) == (4, 23)


def test_a_change_of_a_later_stage_leaves_its_tokens_and_says_which_stage(tmp_path: Path):
    build(declare_small(tmp_path))

    found = statuses(tmp_path, packing={"sequence_length": 16})

    reason = "sequences: config changed (sequence_length: 8 to 16)"
    assert {(of.state, of.reason) for of in found.values()} == {("stale", reason)}


def test_a_file_whose_build_failed_says_the_message(tmp_path: Path):
    build(declare_small(tmp_path))
    (tmp_path / "raw" / "a.jsonl").write_text('{"text": 5}\n')
    assert build_dataset(declare_small(tmp_path)).failed

    found = statuses(tmp_path)

    assert found["a.jsonl"].state == "failed"
    assert "expected" in found["a.jsonl"].reason
    assert found["a.jsonl"].num_tokens == 29  # of the last build that was well
    assert found["sub/c.jsonl"].state == "built"


def test_a_mixture_has_the_files_of_its_sources(tmp_path: Path):
    mixture = declare_mixture(
        tmp_path, {"sources": {"code": {"epochs": 1}, "prose": {"epochs": 1}}}
    )
    build(mixture)
    write_texts(tmp_path / "prose" / "e.jsonl", ["more"])

    found = {of.key: (of.state, of.num_tokens) for of in file_statuses(make_plan(mixture))}

    assert found == {
        "code/a.jsonl": ("stale", 12),
        "code/b.jsonl": ("stale", 6),
        "prose/c.jsonl": ("stale", 80),
        "prose/d.jsonl": ("stale", 10),
        "prose/e.jsonl": ("new", None),
    }
