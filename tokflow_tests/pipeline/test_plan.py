import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import yaml

from tokflow.errors import ConfigError, ForeignOutputError
from tokflow.pipeline import raw_files
from tokflow.pipeline.plan import Plan, make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.pipeline.status import FileStatus, file_statuses
from tokflow.store import manifest
from tokflow.store.manifest import read_manifest
from tokflow_tests.calls import num_calls
from tokflow_tests.cli.commands import run
from tokflow_tests.outputs import content, edit_manifest
from tokflow_tests.pipeline.test_mixture import declare_mixture
from tokflow_tests.tiny import TEXTS, TINY, build, declare, declare_small, write_raw, write_texts

NAMED = {"parts": {"train": {"characters": 10}, "validation": {"start": 12}}}


def built(folder: Path, **fields: Any) -> None:
    assert build_dataset(declare_small(folder, **fields)).failed == ()


def reasons(plan: Plan) -> dict[str, str]:
    return {f"{planned.stage} {planned.name}": planned.reason for planned in plan.missing}


def test_a_tokenizer_that_a_run_would_fetch_is_named(tmp_path: Path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/tokenizer.json").write_text("{}")
    names = {"org/words": "huggingface", "gpt2": "tiktoken", f"{tmp_path}/here": "huggingface"}

    found = [
        reasons(make_plan(declare_small(tmp_path, tokenizer={"kind": kind, "name": name})))
        for name, kind in names.items()
    ]

    assert [of["tokenizer tokenizer"] for of in found] == [
        "missing (to be fetched: huggingface org/words)",
        "missing (to be fetched: tiktoken gpt2)",
        "missing",
    ]


def test_a_part_or_a_tokenizer_of_files_that_are_not_there_names_the_nearest(tmp_path: Path):
    parts = {"validation": {"files": "z.jsonl"}, "train": {"files": "*"}}
    tokenizer = {"kind": "trained", "vocab_size": 260, "files": "z.jsonl"}

    with pytest.raises(ConfigError) as raised:
        make_plan(declare_small(tmp_path, split={"parts": parts}))
    (bad,) = make_plan(declare_small(tmp_path, tokenizer=tokenizer)).bad

    found = "found 'z.jsonl', and the raw files are a.jsonl, b.jsonl, sub/c.jsonl; did you mean "
    assert str(raised.value).startswith(
        "dataset 'small': split.parts.validation.files: expected a pattern that matches the key of "
        f"a raw file, {found}"
    )
    assert str(bad.error).startswith(
        f"tokenizer.files: expected a pattern that matches a raw file, {found}"
    )


def test_a_file_that_no_documents_are_read_from_is_named_at_once(tmp_path: Path):
    dataset = declare_small(tmp_path, raw={"files": "raw/*"})
    (tmp_path / "raw" / "README.md").write_text("about them")

    for use in (make_plan, build_dataset):
        with pytest.raises(ConfigError) as caught:
            use(dataset)

        message = str(caught.value)
        assert message.startswith(
            f"dataset 'small': {tmp_path / 'raw' / 'README.md'}: expected a suffix of .parquet"
        )
        assert "found '.md'; narrow the pattern of raw.files that matches it, or set" in message


def test_a_split_that_is_of_each_file_now_is_another_of_those_with_files_before_them(
    tmp_path: Path,
):
    built(tmp_path, split={**NAMED, "scope": "dataset"}, exports=[])

    plan = make_plan(declare_small(tmp_path, split=NAMED, exports=[]))

    assert reasons(plan) == {
        "split b.jsonl": "input changed (the files before it)",
        "split sub/c.jsonl": "input changed (the files before it)",
        "sequences b.jsonl": "input changed (split)",
        "sequences sub/c.jsonl": "input changed (split)",
    }


def test_files_that_change_come_or_go_remake_what_is_of_them_and_the_exports(tmp_path: Path):
    built(tmp_path, exports=["bin"])

    def reasons_with(files: dict[str, list[str]]) -> tuple[dict[str, str], int]:
        write_raw(tmp_path, files)
        plan = make_plan(declare_small(tmp_path, exports=["bin"]))
        return reasons(plan), plan.num_bytes

    found, num_bytes = reasons_with({"b.jsonl": ["other"]})
    assert found == {
        "tokens b.jsonl": "file changed (b.jsonl)",
        "split b.jsonl": "input changed (tokens)",
        "export bin": "input changed (b.jsonl)",
    }
    assert num_bytes == len('{"text": "other"}\n')
    found, _ = reasons_with({"b.jsonl": TEXTS["b.jsonl"], "new.jsonl": ["new"]})
    assert found["tokens new.jsonl"] == "missing"
    assert found["export bin"] == "input changed (new.jsonl is new)"
    assert len(found) == 3
    for name in ("new.jsonl", "b.jsonl"):
        (tmp_path / "raw" / name).unlink()
    assert reasons_with({}) == ({"export bin": "input changed (b.jsonl is gone)"}, 0)


def test_a_file_that_outgrew_a_limit_has_changed_and_not_the_config(tmp_path: Path):
    fields: dict[str, Any] = {"documents": {"limit": {"document_bytes": 200}}, "exports": []}
    built(tmp_path, **fields)
    write_raw(tmp_path, {"b.jsonl": ["other"] * 20})

    plan = make_plan(declare_small(tmp_path, **fields))

    assert reasons(plan)["tokens b.jsonl"] == "file changed (b.jsonl)"


def test_the_field_that_changed_is_named(tmp_path: Path):
    built(tmp_path, split=NAMED, exports=["pickle"])

    for fields, output, why in (
        (
            {"documents": {"limit": {"documents": 9}}},
            "tokens a.jsonl",
            "documents.limit.documents: null to 9",
        ),
        (
            {"documents": {"text": ["text", "b"], "join": "-", "on_bad_document": "reject"}},
            "tokens a.jsonl",
            'documents.join: null to "-", documents.text: "text" to ["text", "b"]',
        ),
        (
            {"documents": {"limit": {"document_bytes": 9}}},
            "tokens a.jsonl",
            "documents.limit.document_bytes is new",
        ),
        (
            {"split": {"parts": {"train": {"characters": 11}, "validation": {"start": 12}}}},
            "split a.jsonl",
            "parts.train.characters: 10 to 11",
        ),
        (
            {"split": {"parts": {"train": {"characters": 10}}}},
            "split a.jsonl",
            "parts.validation is gone",
        ),
        (
            {"exports": [{"format": "pickle", "shards": 3}]},
            "export pickle",
            'options.shards: "by_file" to 3',
        ),
    ):
        changed = {"split": NAMED, "exports": ["pickle"], **fields}
        plan = make_plan(declare_small(tmp_path, **changed))
        assert reasons(plan)[output] == f"config changed ({why})"


def test_an_output_of_older_code_is_remade(tmp_path: Path):
    built(tmp_path)
    (folder,) = (tmp_path / "store/small/tokens/a.jsonl").iterdir()
    older = edit_manifest(folder, lambda fields: fields.update(version=0))
    folder.rename(folder.parent / older[:16])

    plan = make_plan(declare_small(tmp_path))

    assert reasons(plan)["tokens a.jsonl"].startswith("code changed (version 0 to ")


def test_a_trained_tokenizer_is_remade_when_a_file_it_read_changes(tmp_path: Path):
    tokenizer = {"kind": "trained", "vocab_size": 260, "files": "a.jsonl"}
    built(tmp_path, tokenizer=tokenizer)
    write_raw(tmp_path, {"b.jsonl": ["other"]})
    assert "tokenizer tokenizer" not in reasons(
        make_plan(declare_small(tmp_path, tokenizer=tokenizer))
    )
    write_raw(tmp_path, {"a.jsonl": ["other"]})

    plan = make_plan(declare_small(tmp_path, tokenizer=tokenizer))

    found = reasons(plan)
    assert found.pop("tokenizer tokenizer") == "file changed (a.jsonl)"
    assert {*found.values()} == {"input changed (the tokenizer changes, and with it all token ids)"}
    assert len(found) == 3 * 3 + 3


def test_a_damaged_output_is_made_again_and_the_plan_says_so(tmp_path: Path):
    built(tmp_path, exports=["bin"])
    (tokens,) = (tmp_path / "store/small/tokens/a.jsonl").iterdir()
    (split,) = (tmp_path / "store/small/split/b.jsonl").iterdir()
    size = read_manifest(tokens).files["documents.parquet"].num_bytes
    (tokens / "documents.parquet").write_bytes(b"cut")
    (split / "_tokflow/manifest.json").write_text("{")

    plan = make_plan(declare_small(tmp_path, exports=["bin"]))

    assert reasons(plan) == {
        "tokens a.jsonl": f"damaged ({tokens}/documents.parquet: expected {size:,} bytes, found 3)",
        "split b.jsonl": f"damaged ({split}/_tokflow/manifest.json: expected JSON, found Expecting "
        "property name enclosed in double quotes: line 1 column 2 (char 1))",
    }
    assert build_dataset(declare_small(tmp_path, exports=["bin"])).num_new == 2
    assert make_plan(declare_small(tmp_path, exports=["bin"])).is_up_to_date


def test_what_a_newer_tokflow_made_is_named_and_never_built_over(tmp_path: Path):
    built(tmp_path, exports=["bin"])
    (tokens,) = (tmp_path / "store/small/tokens/a.jsonl").iterdir()
    edit_manifest(tokens, lambda fields: fields.update(format_version=3))
    before = content(tokens)
    made = declare_small(tmp_path, exports=["bin"])

    plan, failed = make_plan(made), build_dataset(made).failed

    assert [(bad.stage, bad.name, type(bad.error)) for bad in plan.bad] == [
        ("tokens", "a.jsonl", ForeignOutputError)
    ]
    assert [(f.stage, f.name, type(f.error)) for f in failed] == [
        ("tokens", "a.jsonl", ForeignOutputError)
    ]
    assert content(tokens) == before


def test_a_plan_of_200_unbuilt_files_takes_no_more_calls_for_each_than_one_of_30(tmp_path: Path):
    calls = {}
    for num in (30, 200):
        dataset = declare(tmp_path / f"{num}", {f"{at:05}.jsonl": "a" for at in range(num)})
        calls[num] = num_calls(lambda: file_statuses(make_plan(dataset))) / num  # noqa: B023

    assert calls[200] < 1.1 * calls[30]


def test_files_that_wait_for_the_tokens_of_one_do_not_look_at_all_others_each(tmp_path: Path):
    calls = {}
    for num in (6, 24):
        folder, texts = tmp_path / f"{num}", {f"{at:02}.jsonl": "a" for at in range(num)}
        dataset = declare(folder, texts, split={"scope": "dataset"})
        build_dataset(dataset, jobs=1)
        write_raw(folder, {"last.jsonl": "a"})
        calls[num] = num_calls(lambda: make_plan(dataset)) / num  # noqa: B023

    assert calls[24] < calls[6]


def statuses(folder: Path, **fields: object) -> dict[str, FileStatus]:
    return {of.key: of for of in file_statuses(make_plan(declare_small(folder, **fields)))}


def test_a_file_is_built_new_or_stale_with_the_counts_and_the_time_of_its_last_tokens(
    tmp_path: Path,
):
    build(declare_small(tmp_path))
    write_texts(tmp_path / "raw" / "b.jsonl", ["other"])
    write_texts(tmp_path / "raw" / "new.jsonl", ["more"])

    found = statuses(tmp_path)

    states = {"a.jsonl": "built", "b.jsonl": "stale", "new.jsonl": "new", "sub/c.jsonl": "built"}
    assert {key: of.state for key, of in found.items()} == states
    assert found["b.jsonl"].reason == "tokens: file changed (b.jsonl)"
    assert (found["b.jsonl"].num_documents, found["b.jsonl"].num_tokens) == (4, 23)
    of = found["a.jsonl"]
    assert (of.reason, of.num_tokens, of.bytes_per_token) == ("", 29, round(25 / 29, 4))
    (manifest,) = (tmp_path / "store/small/tokens/a.jsonl").glob("*/_tokflow/manifest.json")
    assert of.built_at is not None
    assert of.built_at.timestamp() == pytest.approx(manifest.stat().st_mtime)


def test_every_file_is_stale_by_another_config(tmp_path: Path):
    build(declare_small(tmp_path))

    longer = statuses(tmp_path, packing={"sequence_length": 16})

    reason = "sequences: config changed (sequence_length: 8 to 16)"
    assert {(of.state, of.reason) for of in longer.values()} == {("stale", reason)}


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


FILES = {"a.jsonl": ["one"], "b.jsonl": ["two"], "c.jsonl": ["three"]}
EXPORTS = ["bin", "parquet", "pickle"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each manifest is read, and how often raw files are looked for."""
    counts: Counter[str] = Counter()
    parsed, list_raw = manifest._parsed, raw_files.list_raw

    def counted_parsed(path: str, data: bytes) -> dict[str, Any]:
        counts[path] += 1
        return parsed(path, data)

    def counted_list(*arguments: Any, **named: Any) -> Any:
        counts["list_raw"] += 1
        return list_raw(*arguments, **named)

    monkeypatch.setattr(manifest, "_parsed", counted_parsed)
    monkeypatch.setattr(raw_files, "list_raw", counted_list)
    return counts


def test_a_plan_and_its_build_look_for_raw_files_and_read_each_manifest_once(
    tmp_path: Path, reads: Counter[str]
):
    dataset = declare(tmp_path, FILES, exports=EXPORTS)

    built = build_dataset(dataset, graph=make_plan(dataset).graph)

    assert len(built.made) == 1 + 3 * 3 + 3
    assert set(reads.values()) == {1}
    assert len(reads) == len(built.made) + 1

    reads.clear()
    assert make_plan(dataset).is_up_to_date
    assert set(reads.values()) == {1}


CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

RECORD = {"body": "a", "messages": CHAT}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a.parquet": ({}, "column 'text', found the columns 'body', 'messages'; set documents.text"),
    "a.arrow": ({}, "column 'text', found the columns 'body', 'messages'; set documents.text"),
    "a.csv": ({}, "column 'text', found the columns 'body', 'messages'; set documents.text"),
    "a.jsonl": ({}, "in 'text', found the fields 'body', 'messages'; set documents.text"),
    "b.jsonl": ({"messages": "chat"}, "in 'chat', found the fields 'body', 'messages'; set"),
    "c.jsonl": ({"text": "messages"}, "found chats; write `documents: {messages: messages}` in"),
    "b.parquet": ({"text": "messages"}, "; write `documents: {messages: messages}` in place of"),
}
"""A file, `documents`, and what is said."""


def write(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    table = pa.Table.from_pylist([RECORD])
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path)
        case ".arrow":
            pyarrow.feather.write_feather(table, path)
        case ".csv":
            path.write_text("body,messages\na,b\n")
        case _:
            path.write_text(f"{json.dumps(RECORD)}\n")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_column_ends_plan_and_run_before_the_tokenizer_is_looked_for(
    name: str, tmp_path: Path
):
    documents, said = WRONG[name]
    write(tmp_path / "raw" / name)
    tokenizer = {"kind": "file", "name": "nowhere/tokenizer.json"}
    fields = {**TINY, "raw": {"files": "raw/*"}, "tokenizer": tokenizer, "documents": documents}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(fields))

    for command in ("plan", "run"):
        result = run(command, "--config", tmp_path / "tiny.yaml")

        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "store").exists()


def test_a_column_that_is_wrong_after_a_build_is_told_as_before_the_first(tmp_path: Path):
    build(declare(tmp_path, {"a.jsonl": ["ab"]}))

    with pytest.raises(ConfigError, match="in 'body', found the field"):
        make_plan(declare(tmp_path, documents={"text": "body"}))


def test_one_file_without_the_column_stops_no_other(tmp_path: Path):
    declare(tmp_path, {"b.jsonl": ["right"]})
    write(tmp_path / "raw/a.jsonl")

    plan = make_plan(declare(tmp_path))

    assert len(plan.graph.partitions) == 2


def test_a_field_that_comes_late_is_waited_for_where_bad_records_are_set_aside(tmp_path: Path):
    write(tmp_path / "raw/a.jsonl")

    assert make_plan(declare(tmp_path, documents={"on_bad_document": "reject"})).missing
