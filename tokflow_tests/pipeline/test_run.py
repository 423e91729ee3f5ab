from pathlib import Path
from typing import Any

import pytest

import tokflow
from tokflow.errors import BadDocumentError, MissingOutputError
from tokflow.pipeline import run
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.results import Reporter, StageResult
from tokflow.pipeline.run import build_dataset, make_output
from tokflow.split import write_split
from tokflow.store.listed_files import CARD_NAME, CROISSANT_NAME
from tokflow.tokens.shard import TokenShard
from tokflow_tests.outputs import content, new_in, touched
from tokflow_tests.tiny import build, declare, write_texts

FILES = {"b/2.jsonl": ["fghij", ""], "a.jsonl": ["abc", "de"], "c.jsonl": ["😀klmno" * 3, "pq"]}
EVERYTHING: dict[str, Any] = {
    "raw": {"files": "raw/**/*.jsonl"},
    "split": {
        "scope": "dataset",
        "boundary": "character",
        "parts": {"train": {"characters": 12}, "validation": {"start": 12, "characters": 9}},
    },
    "exports": ["bin", "parquet", "pickle"],
}


def stages_of(made: tuple[StageResult, ...]) -> list[tuple[str, str]]:
    return [(one.output.stage, one.output.name) for one in made]


def test_one_bad_file_stops_no_other_and_completes_the_dataset_when_it_is_fixed(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["a"], "c.jsonl": ["c"]}, exports=["bin"])
    (tmp_path / "raw" / "b.jsonl").write_text('{"text": "good"}\n{"text": 5}\n')

    built = build_dataset(dataset)

    assert stages_of(built.made)[1:] == [
        (stage, key) for stage in ("tokens", "split") for key in ("a.jsonl", "c.jsonl")
    ]
    [failed] = built.failed
    assert (failed.stage, failed.name) == ("tokens", "b.jsonl")
    assert isinstance(failed.error, BadDocumentError)
    assert not (dataset.folder / "exports").exists()
    assert not (dataset.folder / "tokens" / "b.jsonl").exists()
    write_texts(tmp_path / "raw" / "b.jsonl", ["b"])
    assert new_in(build(dataset)) == [
        ("tokens", "b.jsonl"),
        ("split", "b.jsonl"),
        ("export", "bin"),
    ]


def test_an_error_nobody_foresaw_stops_its_output_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails_for_c(shard: TokenShard, *arguments: Any, **more: Any) -> None:
        if shard.manifest.partition == "c.jsonl":
            raise ZeroDivisionError("of c")
        write_split(shard, *arguments, **more)

    monkeypatch.setattr("tokflow.split.stage.write_split", fails_for_c)

    built = build_dataset(declare(tmp_path, FILES))

    assert [(failed.stage, failed.name) for failed in built.failed] == [("split", "c.jsonl")]
    assert "found ZeroDivisionError: of c; " in str(built.failed[0].explained)
    assert ("sequences", "a.jsonl") in stages_of(built.made)


def test_some_partitions_are_built_and_exports_left_alone_until_all_are(tmp_path: Path):
    dataset = declare(tmp_path, FILES, **{**EVERYTHING, "split": {"parts": {"train": {}}}})

    some = build_dataset(dataset, partitions=["c.jsonl", "a.jsonl"])
    rest = build_dataset(dataset, partitions=["b/2.jsonl"])

    assert (some.failed, rest.failed) == ((), ())
    assert [name for stage, name in stages_of(some.made) if stage == "tokens"] == [
        "a.jsonl",
        "c.jsonl",
    ]
    assert [name for stage, name in stages_of(some.made) if stage == "export"] == []
    assert [name for stage, name in stages_of(rest.made) if stage == "export"] == [
        "bin",
        "parquet",
        "pickle",
    ]


def test_what_a_reporter_raises_is_no_failure_of_an_output(tmp_path: Path):
    class Gone(Reporter):
        def made(self, made: StageResult) -> None:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run.build_dataset(declare(tmp_path, {"a.jsonl": ["a"]}), reporter=Gone())


def test_a_missing_output_says_which_asset_to_materialize(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["a"]})
    graph = graph_of(dataset)
    make_output(graph, "tokenizer", "tokenizer")

    with pytest.raises(MissingOutputError) as raised:
        make_output(graph, "split", "a.jsonl")

    assert (raised.value.where, raised.value.found) == (
        "tiny/tokens (partition a.jsonl)",
        "none in the store for this file and this config",
    )


def test_tokenize_and_save_returns_the_folder_of_the_export_and_does_no_work_twice(tmp_path: Path):
    write_texts(tmp_path / "a.jsonl", ["ab", "c"])

    arguments = {"tokenizer": "bytes", "output": tmp_path / "out"}

    folder = tokflow.tokenize_and_save(tmp_path / "a.jsonl", **arguments)
    before = touched(tmp_path)

    assert (folder / "train.bin").read_bytes() == b"a\0b\0\0\1c\0\0\1"
    assert (folder.parent / "latest").resolve() == folder
    assert "dataset" in (folder / CARD_NAME).read_text()
    assert (folder / CROISSANT_NAME).exists()
    assert tokflow.tokenize_and_save(tmp_path / "a.jsonl", **arguments) == folder
    assert touched(tmp_path) == before


def test_tokenize_and_save_takes_a_path_for_a_path_and_text_for_a_pattern(tmp_path: Path):
    write_texts(tmp_path / "[x].jsonl", ["ab"])
    write_texts(tmp_path / "x.jsonl", ["c"])

    def tokens_of(files: str | Path) -> bytes:
        folder = tokflow.tokenize_and_save(files, tokenizer="bytes", output=tmp_path / "out")
        return (folder / "train.bin").read_bytes()

    assert tokens_of(tmp_path / "[x].jsonl") == b"a\0b\0\0\1"
    assert tokens_of(f"{tmp_path}/[x].jsonl") == b"c\0\0\1"


def test_tokenize_and_save_builds_what_the_yaml_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # as the YAML, which names raw files from its folder on
    dataset = declare(
        tmp_path,
        {"a.jsonl": ["ab", "c"], "b.jsonl": ["d"]},
        exports=[{"format": "parquet", "sequences_per_group": 1}],
        split={"parts": {"train": {"documents": 1}}},
    )
    by_yaml = build(dataset).export("parquet").output.folder

    by_call = tokflow.tokenize_and_save(
        [f"{tmp_path}/raw/*.jsonl"],
        tokenizer={"kind": "bytes"},
        output=tmp_path / "out",
        format={"format": "parquet", "sequences_per_group": 1},
        split={"parts": {"train": {"documents": 1}}},
        sequence_length=4,
        name="tiny",
    )

    assert content(by_call).items() > content(by_yaml).items()  # the cards are more


def test_after_a_verdict_a_split_waits_for_no_tokens_of_before(tmp_path: Path):
    tokenizer = {"kind": "trained", "vocab_size": 257}
    graph = graph_of(declare(tmp_path, FILES, **{**EVERYTHING, "tokenizer": tokenizer}))
    make_output(graph, "tokenizer", "tokenizer")
    assert not graph.split("a.jsonl").is_made  # for which the tokens of all files are looked for

    graph.disqualify("looked equal")
    for key in graph.partitions:
        make_output(graph, "tokens", key)

    assert make_output(graph, "split", "a.jsonl").is_new
