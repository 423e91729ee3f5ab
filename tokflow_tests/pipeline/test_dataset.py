from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.fields import check_cron, is_due, longest_pause
from tokflow.split.rule import PartConfig, SplitConfig
from tokflow_tests.outputs import touched
from tokflow_tests.tiny import build, declare, load_dataset


def load(folder: Path, text: str, **arguments: Any) -> Dataset:
    (folder / "defs.yaml").write_text(text)
    return load_dataset(folder / "defs.yaml", **arguments)


def error_of_text(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load(folder, text)
    return str(raised.value).replace(str(folder), "FOLDER")


def error_of(**attributes: Any) -> ConfigError:
    """Return the error of a dataset with these attributes; required ones that are None are left
    out."""
    required = {"name": "tiny", "raw": {"files": "*.jsonl"}, "tokenizer": {"kind": "bytes"}}
    given = {**required, **attributes}
    given = {name: of for name, of in given.items() if of is not None or name not in required}
    with pytest.raises(ConfigError) as raised:
        make_dataset(given, base=Path("/base"), where="defs.yaml")
    return raised.value


@pytest.mark.parametrize(
    ("attributes", "where", "nearest"),
    [
        ({"exprots": ["bin"]}, "defs.yaml", "exports"),
        ({"packing": {"sequence_lenght": 4}}, "defs.yaml: packing", "sequence_length"),
        ({"documents": {"limit": {"chars": 3}}}, "defs.yaml: documents.limit", "characters"),
        (
            {"exports": ["bin", {"format": "parquet", "num_shards": 3}]},
            "defs.yaml: exports[1]",
            "shards",
        ),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_named(
    attributes: dict, where: str, nearest: str
):
    error = error_of(**attributes)

    assert (error.where, error.remedy) == (where, f"did you mean {nearest!r}?")
    assert error.expected.startswith("one of the keys ")


def test_a_value_that_cannot_be_is_refused_with_its_place_and_what_to_write():
    shares, no_folder = {"val_fraction": 0.1}, ["../up", "a b", "", "é", "a/b"]
    named = [{"format": "bin", "name": name} for name in ("x-1", "x_1")]
    as_share = "write it as 0.9, as {documents: 1000} or as {characters: 1_000_000}"
    for attributes, where, found, remedy in (
        ({"packing": {"sequence_length": 4.5}}, "packing.sequence_length", "4.5", ""),
        ({"raw": "raw/*.jsonl"}, "raw", "'raw/*.jsonl'", "write {files: raw/*.jsonl}"),
        ({"packing": None}, "packing", "None", ""),
        ({"split": {"parts": []}}, "split.parts", "[]", ""),
        ({"split": {"parts": {"train": 90}}}, "split.parts.train", "90", as_share),
        (
            {"split": {"train": {"fraction": 0.9}}},
            "split",
            "train: {'fraction': 0.9}",
            "write `parts: {train: ...}`",
        ),
        (
            {"split": shares},
            "split",
            "val_fraction: 0.1",
            "write `parts: {val_fraction: 0.1}` if these are parts",
        ),
        ({"split": {"train": 1.5}}, "split.parts.train.fraction", "1.5", ""),
        ({"tokenizer": {"eos": "last"}}, "tokenizer", "none", "add it, as in `kind: tiktoken`"),
        ({"documents": {"text": ["a", 3]}}, "documents.text[1]", "3", ""),
        ({"packing": {"strategy": "concatenate"}}, "packing.strategy", "'concatenate'", ""),
        ({"exports": "bin"}, "exports", "'bin'", ""),
        ({"exports": ["bim"]}, "exports[0]", "'bim'", "did you mean 'bin'?"),
        ({"exports": ["nanochat"]}, "exports[0]", "'nanochat'", "name one of them"),
        ({"exports": [{"format": "pickle", "shards": "many"}]}, "exports[0].shards", "'many'", ""),
        ({"exports": [{"format": "pickle", "shards": 0}]}, "exports[0].shards", "0", ""),
        ({"exports": ["bin", "bin"]}, "exports", "'bin' twice", "give one a `name:`"),
        ({"exports": named}, "exports", "'x-1' and 'x_1', which are one name in Dagster", ""),
        ({"store": "s3://me:secret@bucket/store"}, "store", "s3://bucket/store", ""),
        ({"owners": 5}, "owners", "5", ""),
        ({"owners": ["data"]}, "owners[0]", "'data'", "write team:data"),
        ({"tags": {"a b": "c"}}, "tags.a b", "'a b'", ""),
        ({"tags": {"a": 5}}, "tags.a", "5", ""),
        ({"key_prefix": "a/b c"}, "key_prefix", "'b c'", ""),
        ({"pool": "a b"}, "pool", "'a b'", ""),
        ({"executor": "threads"}, "executor", "'threads'", ""),
        *(({"name": name}, "name", repr(name), "") for name in (*no_folder, "a__exports", "a-_b")),
        *(
            ({"exports": [{"format": "bin", "name": name}]}, "exports[0].name", repr(name), "")
            for name in no_folder
        ),
    ):
        error = error_of(**attributes)
        assert (error.where, error.found) == (f"defs.yaml: {where}", found)
        assert remedy in ("", error.remedy)


def test_of_what_is_missing_or_elsewhere_it_is_said_what_to_write():
    for attributes, remedy in (
        ({"shards": 4}, "put it into an entry of `exports`"),
        ({"keep_columns": ["url"]}, "put it under `documents`"),
        ({"packing": {"zzz": 1}}, "remove it"),
        ({"name": None}, "add it"),
        ({"raw": None}, "add it, as in `raw: {files: data/raw/*.jsonl}`"),
        ({"tokenizer": None}, "add it, as in `tokenizer: gpt2`"),
    ):
        assert error_of(**attributes).remedy == remedy


@pytest.mark.parametrize(
    "split",
    [
        {"train": 0.9, "validation": 0.1, "seed": 3},
        {"parts": {"train": 0.9, "validation": {"fraction": 0.1}}, "seed": 3},
    ],
)
def test_shares_alone_are_parts_by_fraction(split: dict[str, Any]):
    attributes = {"name": "tiny", "raw": {"files": "*"}, "tokenizer": "bytes", "split": split}
    parts = {"train": PartConfig(fraction=0.9), "validation": PartConfig(fraction=0.1)}

    dataset = make_dataset(attributes, base=Path("/base"), where="test")

    assert dataset.split == SplitConfig(parts=parts, seed=3)


def test_a_key_may_override_what_an_anchor_brings(tmp_path: Path):
    text = "name: tiny\nraw: {files: a}\ntokenizer: {<<: {kind: bytes, eos: none}, eos: last}\n"

    dataset = load(tmp_path, text)

    assert (dataset.tokenizer.kind, dataset.tokenizer.eos) == ("bytes", "last")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [\n", "line 2: expected the node content, found '<stream end>'; correct the line"),
        ("\tname: a\n", "line 1: expected YAML, found character '\\t' that cannot"),
        ("a: 1\na: 2\n", "line 2: expected YAML, found the key 'a' twice; correct the line"),
        ("a: 1\nb\n", "line 3: expected YAML, found no ':'; correct the line"),
        ("{[a]: 1}\n", "line 1: expected YAML, found the key ['a'], which is no word"),
        ("name: !!python/name:os.system\n", "line 1: expected YAML, found could not determine"),
        ("- a\n", "expected a mapping that declares a dataset, found list"),
        ("", "expected a mapping that declares a dataset, found NoneType"),
        (
            "type: tokflow.components.TextDataset\nattributs: {}\n",
            "expected one of the keys type, attributes, template_vars_module, "
            "requirements, post_processing, found 'attributs'; "
            "did you mean 'attributes'?",
        ),
        (
            "type: tokflow.Other\nattributes: {}\n",
            "type: expected tokflow.components.TextDataset, found 'tokflow.Other'",
        ),
    ],
)
def test_yaml_that_declares_no_dataset_is_refused(text: str, message: str, tmp_path: Path):
    assert error_of_text(tmp_path, text).startswith(f"FOLDER/defs.yaml: {message}")


FILES = {"a.jsonl": ["abc", "de"], "b.jsonl": ["fgh", "ij"]}


def new_after(folder: Path, **fields: Any) -> list[str]:
    """Return the stages and exports that a config makes anew; no file of before is touched."""
    store = folder / "store"
    old = touched(store)

    built = build(declare(folder, {}, **fields))

    files = {path for path in old if (store / path).is_file()}
    now = touched(store)
    assert {path: now[path] for path in files} == {path: old[path] for path in files}
    new = [made.output for made in built.made if made.is_new]
    return sorted({of.name if of.stage == "export" else of.stage for of in new})


def test_a_change_remakes_what_depends_on_it_and_nothing_else(tmp_path: Path):
    before = {"exports": ["bin", "parquet"]}
    build(declare(tmp_path, FILES, **before))
    everything = ["bin", "parquet", "sequences", "split", "tokens"]

    for change, stages in (
        ({}, []),
        ({"packing": {"sequence_length": 3}}, ["parquet", "sequences"]),
        ({"packing": {"sequence_length": 4, "tail": "drop"}}, ["parquet"]),
        ({"packing": {"sequence_length": 4, "pad_id": 0}}, ["parquet"]),
        (
            {"split": {"parts": {"train": {"documents": 1}}}},
            ["bin", "parquet", "sequences", "split"],
        ),
        ({"tokenizer": {"kind": "bytes", "eos": "none"}}, everything),
        ({"documents": {"limit": {"documents": 1}}}, everything),
        ({"exports": ["pickle", "parquet"]}, ["pickle"]),
        ({"exports": [{"format": "parquet", "sequences_per_group": 7}]}, ["parquet"]),
    ):
        assert new_after(tmp_path, **{**before, **change}) == stages, change


def test_where_all_exports_are_streams_no_file_is_packed(tmp_path: Path):
    streams = ["bin", {"format": "npy", "layout": "stream"}]

    stages = {made.output.stage for made in build(declare(tmp_path, FILES, exports=streams)).made}

    assert stages == {"tokenizer", "tokens", "split", "export"}
    rows = declare(tmp_path, FILES, exports=[*streams, "parquet"])
    new = [made.output for made in build(rows).made if made.is_new]
    assert {(of.stage, of.name) for of in new} == {
        *(("sequences", key) for key in FILES),
        ("export", "parquet"),
    }


@dg.job
def nothing() -> None:
    pass


def is_known_to_dagster(cron: str) -> bool:
    try:
        dg.ScheduleDefinition(name="s", job=nothing, cron_schedule=cron)
    except dg.DagsterInvalidDefinitionError:
        return False
    return True


@pytest.mark.parametrize(
    ("cron", "remedy"),
    [
        ("", "not nothing"),
        ("0 3 * *", "not 4 fields"),
        ("0 0 3 * * *", "not 6 fields"),
        ("60 3 * * *", "correct the minute"),
        ("0 25 * * *", "correct the hour"),
        ("0 3 0 * *", "correct the day-of-month"),
        ("0 3 * june *", "correct 'june'"),
        ("0 3 * jum *", "correct the month"),
        ("0 3 * * fri-mon", "correct the day-of-week"),
        ("*/0 3 * * *", "correct the minute"),
        ("0 3 1, * *", "correct '1,'"),
        ("0 3 L * *", "correct 'L'"),
        ("0 3 * * 1#2", "correct '1#2'"),
        ("0 3 30 2 *", "correct the day-of-month"),
        ("0 3 31 4,6 *", "correct the day-of-month"),
    ],
)
def test_another_is_refused_with_what_is_wrong(cron: str, remedy: str):
    with pytest.raises(ConfigError) as raised:
        check_cron(cron)

    assert remedy in raised.value.remedy


@st.composite
def fields(draw: st.DrawFn, least: int, greatest: int) -> str:
    number = st.integers(least, greatest)
    first, last = sorted(draw(st.sets(number, min_size=2, max_size=2)))
    step = draw(st.integers(1, 70))
    every, some = f"*/{step}", f"{first}-{last}/{step}"
    return draw(st.sampled_from(["*", str(first), f"{first}-{last}", every, f"{first},{some}"]))


RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


@pytest.mark.filterwarnings("ignore:Found a cron schedule with an interval")  # 0-1/2, say
@settings(max_examples=50, deadline=None)
@given(st.tuples(*(fields(least, greatest) for least, greatest in RANGES)).map(" ".join))
def test_what_is_taken_is_known_to_dagster(cron: str):
    try:
        check_cron(cron)
    except ConfigError as error:
        assert "day-of-month" in error.remedy  # noqa: PT017 (29 February may come)
    else:
        assert is_known_to_dagster(cron)


@pytest.mark.parametrize(
    ("cron", "pause"),
    [
        ("0 3 * * *", timedelta(days=1)),
        ("0 3 * * mon-fri", timedelta(days=3)),
        ("*/15 8-17 * * *", timedelta(hours=14, minutes=15)),
        ("0 0 1 * *", timedelta(days=31)),
        ("0 0 29 2 *", timedelta(days=4 * 365 + 1)),
        ("* * * * *", timedelta(minutes=1)),
        ("0 3 29 2 */5", timedelta(days=8 * 366)),
    ],
)
def test_the_longest_pause_between_two_times(cron: str, pause: timedelta):
    assert longest_pause(cron) == pause


def test_a_scan_is_due_once_for_each_of_its_times():
    three = datetime(2026, 7, 1, 3, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()

    def due(scan: str, since: float, now: float, timezone: str = "Europe/Berlin") -> bool:
        return is_due(scan, timezone, since=three + since, now=three + now)

    assert due("0 3 * * *", since=-10, now=0)
    assert due("0 3 * * *", since=-10, now=50)
    assert not due("0 3 * * *", since=0, now=60)
    assert not due("0 3 * * *", since=-10, now=50, timezone="UTC")
    assert due("hourly", since=-10, now=50)
    assert not due("hourly", since=50, now=3000)
    assert due("minutely", since=-10, now=50)
    assert is_due("0 3 * * *", "UTC", since=0.0, now=three)
    assert due("0 3 * * *", since=86_400, now=60)
