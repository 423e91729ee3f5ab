"""The assets of a dataset, run by Dagster."""

import json
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.audit.checks import Checker
from tokflow.components import make_definitions
from tokflow.components.file_partitions import sync_files
from tokflow.components.reports import report
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.tasks import make_outputs
from tokflow.raw.hashes import hash_file
from tokflow_tests.dagster_case import (
    KEYS,
    QUIET,
    Case,
    checks,
    failure,
    is_built,
    is_registered,
    reported,
    selection,
    shown,
    shown_failed,
)
from tokflow_tests.pipeline.test_mixture import declare_mixture, declare_source
from tokflow_tests.raw.fetching import Server, serving
from tokflow_tests.raw.servers import served
from tokflow_tests.tiny import build, declare

ROW = ["input_ids", "attention_mask", "segment_ids", "position_ids"]


pytestmark = is_registered


def test_the_tokens_of_one_file_are_made_alone_and_without_checks_if_they_are_left_out(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    hashed = []

    def hash_and_note(path, *arguments, **more):
        hashed.append(path.name)
        return hash_file(path, *arguments, **more)

    monkeypatch.setattr("tokflow.raw.files.hash_file", hash_and_note)
    result = case.run(selection("tokens").without_checks(), keys=["b.txt"])

    assert result.success, failure(result)
    assert checks(result) == []
    assert set(hashed) == {"b.txt"}
    graph = graph_of(case.dataset)
    assert [graph.tokens(key).is_made for key in KEYS] == [False, True, False]


def test_every_partition_of_one_run_has_the_data_version_of_its_own_output(built: Case):
    graph = graph_of(built.dataset)
    assert [built.data_version("raw", partition=key) for key in KEYS] == [
        graph.raw_file(key).sha256 for key in KEYS
    ]
    for stage in ("tokens", "split", "sequences"):
        assert [built.data_version(stage, partition=key) for key in KEYS] == [
            graph.output(stage, key).fingerprint for key in KEYS
        ]


def test_a_run_of_one_export_makes_all_that_it_is_made_from_and_no_more(case: Case):
    case.write("d", "new\n")

    result = case.run(selection("exports", "bin"))

    assert result.success, failure(result)
    assert case.partitions() == [*KEYS, "d.txt"]
    assert {of.split(":")[0] for of in case.not_fresh()} == {"sequences", "exports/parquet"}
    again = case.run(selection("exports", "bin"))
    assert reported(case, again) == {"exports/bin": 1}  # what is asked for is told of once more


@is_built
def test_a_range_of_what_is_up_to_date_records_all_that_it_is_asked_for(case: Case):
    result = case.run(keys=KEYS)

    of_files = dict.fromkeys(("raw", "tokens", "split", "sequences"), 3)
    of_all = dict.fromkeys(("files", "tokenizer", "exports/bin", "exports/parquet"), 1)
    assert reported(case, result) == of_files | of_all
    assert shown_failed(case.instance, case.dataset) == set()
    assert case.not_fresh() == {}


@is_built
def test_a_key_of_all_assets_leaves_exports_that_are_whole_as_they_are(case: Case):
    case.write("b", "other\ntext\nhere\n")

    result = case.run(keys=["b.txt"])

    assert result.success, failure(result)
    assert reported(case, result)["exports/bin"] == reported(case, result)["tokens"] == 1
    assert case.not_fresh() == {}


def test_an_asset_behind_an_export_runs_in_the_same_run(case: Case):
    @dg.asset(deps=[["small", "exports", "bin"]])
    def training() -> None:
        """Use the export."""

    both = dg.Definitions.merge(case.defs, dg.Definitions(assets=[training]))
    chosen = selection("exports", "bin") | dg.AssetSelection.assets("training")
    job = dg.define_asset_job("both", selection=chosen)
    resolved = dg.Definitions.merge(both, dg.Definitions(jobs=[job])).resolve_job_def("both")

    result = resolved.execute_in_process(QUIET, instance=case.instance)

    assert [event.step_key for event in result.get_step_success_events()] == [
        "small_build_all",
        "training",
    ]


def test_a_partition_registered_by_hand_is_refused(case: Case):
    key = "../../etc/passwd"
    case.instance.add_dynamic_partitions("small_files", [key])

    refused = failure(case.run(selection("raw"), keys=[key]))

    assert "expected the key of a partition" in refused
    assert "found none of that name among 3 such" in refused
    assert "the job small_scan" in refused


def test_metadata_of_a_tokenizer_says_what_it_lacks(case: Case):
    case.attributes["tokenizer"] = {"kind": "trained", "vocab_size": 1024}
    case.run(selection("tokenizer"))

    summary = shown(case.event("tokenizer").metadata["summary"])
    assert summary["bos"] == "none"
    assert int(summary["vocab size"]) < 1024
    assert summary["vocab size asked"] == "1,024"


def of_first_part(parts: dg.MetadataValue[str]) -> dict[str, str]:
    first, *_ = str(parts.value).split("\n| | |\n")
    return shown(dg.MetadataValue.md(first))


def test_metadata_of_an_export_has_the_statistics_of_each_part(built: Case):
    [bin_, parquet] = [built.event("exports", name).metadata for name in ("bin", "parquet")]
    of_train = of_first_part(bin_["parts"])
    assert of_train["exported tokens"] == of_train["tokens"]
    assert of_train["tokens of the longest"] == str(len("second of a") + 1)
    assert bin_["num_documents"].value == 9
    assert "num_rejects" not in bin_  # a plot of nothing
    assert "dagster/row_count" not in bin_  # a stream has no rows
    assert parquet["dagster/row_count"].value == parquet["num_sequences"].value > 0
    assert 0 < parquet["fill_fraction"].value < 1


def test_metadata_has_the_counts_of_the_manifest_the_speed_and_how_documents_meet(
    built: Case,
):
    metadata = built.event("tokens", partition="a.txt").metadata
    assert metadata["num_documents"].value == 3
    assert metadata["num_tokens"].value == len("first of asecond of athird of a") + 3
    assert metadata["bytes_per_token"].value == pytest.approx(31 / 34, abs=1e-3)
    details = shown(metadata["details"])
    assert details["dtype"] == "uint16"
    assert shown(metadata["summary"])["engine"] == "bytes"
    assert details["made by this run"] == "yes"
    assert {"engine reason", "tokens per second"} <= set(details)
    assert built.data_version("tokens", partition="a.txt").startswith(details["fingerprint"])
    preview = metadata["preview"].value
    assert preview == "```text\nfirst of a<eos>second of \na<eos>third of a<eos>\n```"


def test_no_credentials_reach_dagster(case: Case):
    case.attributes["raw"] = {"files": ["https://me:secret@host/a.txt?token=secret"]}

    shown = [str(spec.metadata) for spec in case.defs.resolve_all_asset_specs()]

    assert "secret" not in "".join(shown)


def test_without_one_file_no_export_is_made_and_checks_alone_are_of_the_others(case: Case):
    exports = case.run(keys=["a.txt", "b.txt"])
    before = case.event("tokens", partition="a.txt")

    result = case.run(dg.AssetSelection.checks_for_assets(dg.AssetKey(["small", "tokens"])))

    assert "1 not built: c.txt" in failure(exports)
    assert result.success, failure(result)
    evaluations = checks(result)
    assert {of.check_name for of in evaluations} == {"accounting_closes", "equal_to_reference"}
    assert {of.metadata["num_checked"].value for of in evaluations} == {2}
    assert {of.metadata["num_remembered"].value for of in evaluations} == {0}
    assert case.event("tokens", partition="a.txt") == before


@is_built
def test_a_check_that_fails_has_a_row_for_each_file_that_it_fails_in(case: Case):
    for key in ("a.txt", "c.txt"):
        path = graph_of(case.dataset).tokens(key).folder / "tokens.bin"
        path.write_bytes(b"\xff\xff" + path.read_bytes()[2:])
    check = dg.AssetCheckKey(dg.AssetKey(["small", "tokens"]), "accounting_closes")

    result = case.run(dg.AssetSelection.checks(check))

    [evaluation] = checks(result)
    rows = [record.data for record in evaluation.metadata["failed"].value.records]
    assert [(row["name"], row["num_problems"]) for row in rows] == [("a.txt", 1), ("c.txt", 1)]
    assert "expected an id below vocab_size 258" in rows[0]["first"]
    assert not result.success


def test_an_export_too_large_to_be_read_again_is_well_though_it_repeats_tokens(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.audit.checks.MAX_READ_BYTES", 0)
    case.attributes["packing"] = {"sequence_length": 16, "overlap": 4}
    build(case.dataset)
    graph = graph_of(case.dataset)

    export = graph.output("export", variant="parquet")

    [outcome] = Checker(graph).outcomes("export", [export], only=["complete"])

    assert not outcome.problems
    counts = export.manifest().counts
    assert counts["train.num_repeated_tokens"] > 0


def test_an_export_shows_the_notices_of_its_dataset(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["parquet"])

    metadata = report(build(dataset).export("parquet")).metadata

    [row] = metadata["notices"].records
    assert row.data == {"notice": "short rows: 2.5 tokens on average in parquet"}


def test_the_columns_that_are_shown_are_those_of_the_files_of_each_part(tmp_path: Path):
    kept = {"z": ["url"], "b": ["license", "url"], "b-": ["of"]}
    for name, names in kept.items():
        (tmp_path / name).mkdir()
        record = {"text": name, **dict.fromkeys(names, f"of {name}")}
        for part in ("train", "held"):
            (tmp_path / name / f"{part}.jsonl").write_text(json.dumps(record) + "\n")
        parts = {part: {"files": f"{part}.jsonl"} for part in ("train", "held")}
        more = {"documents": {"keep_columns": names}, "split": {"parts": parts}}
        declare_source(tmp_path, name, {}, **more)
    packing = {"sequence_length": 8, "parts": {"held": {"strategy": "one_document"}}}
    mixture = {"sources": {name: {"epochs": 1} for name in kept}}
    formats = ["parquet", "hf_dataset", "jsonl"]
    dataset = declare_mixture(tmp_path, mixture, packing=packing, exports=formats)

    build(dataset)

    folder = dataset.folder / "exports"
    shown = columns_shown(dataset)
    assert shown["parquet"] == [*ROW, "of", "license", "url"]
    for part, num_urls in {"train": 0, "held": 2}.items():
        [path] = (folder / "parquet/latest").glob(f"{part}*.parquet")
        rows = pq.read_table(path)
        assert rows.column_names == shown["parquet"]
        assert len(rows) - rows["url"].null_count == num_urls
        [path] = (folder / "jsonl/latest").glob(f"{part}*.jsonl")
        assert list(json.loads(path.read_text().splitlines()[0])) == shown["jsonl"]
        [path] = (folder / f"hf_dataset/latest/{part}").glob("*.arrow")
        assert pa.ipc.open_stream(str(path)).schema.names == shown["hf_dataset"]


def columns_shown(dataset: Dataset) -> dict[str, list[str] | None]:
    """Return the columns that the web UI shows of each export."""
    shown = {}
    for spec in make_definitions(dataset).resolve_all_asset_specs():
        if spec.key.path[1] == "exports":
            schema = spec.metadata.get("dagster/column_schema")
            shown[spec.key.path[2]] = schema and [column.name for column in schema.columns]
    return shown


def test_a_raw_file_that_is_fetched_as_it_is_read_is_reported_by_its_version(case: Case):
    case.attributes["documents"]["limit"] = {"documents": 3}
    with serving(Server(content=b"a line of text\n" * 200_000)) as server:
        case.attributes["raw"] = {"files": server.url}

        assert case.run(keys=["a.txt"]).success

    metadata = case.event("raw", partition="a.txt").metadata
    details = shown(metadata["details"])
    assert details["version"].startswith("url_sha256 ")
    assert "sha256" not in details
    assert metadata["num_bytes"].value == 3_000_000
    assert server.num_sent < 2_000_000


def test_a_bad_document_of_a_server_is_not_fetched_again(case: Case):
    case.attributes["documents"] = {"text": "text", "format": "jsonl"}
    files = {"a.jsonl": '{"text": "good"}\n', "b.jsonl": "{broken\n"}
    for name, text in files.items():
        (case.folder / name).write_text(text)

    with served(case.folder) as address:
        case.attributes["raw"] = {"files": [f"{address}/{name}" for name in files]}
        sync_files(case.instance, case.dataset)
        case.run(selection("tokenizer"))
        result = case.run(selection("tokens"), keys=["a.jsonl", "b.jsonl"])
        built = case.job()

    assert "b.jsonl" in failure(result)
    assert "b.jsonl" in failure(built)
    events = [*result.all_events, *built.all_events]
    assert not [event for event in events if event.is_step_up_for_retry]
    assert case.not_fresh()["tokens:b.jsonl"] == "MISSING"
    assert {"raw:a.jsonl", "raw:b.jsonl", "tokens:a.jsonl"} & set(case.not_fresh()) == set()


def test_a_fetch_that_fails_is_tried_again_and_what_the_step_made_before_is_reported_once(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.raw.remote_version.time.sleep", lambda seconds: None)
    monkeypatch.setattr("tokflow.components.checks.FETCH_AGAIN", dg.RetryPolicy(max_retries=2))
    case.attributes["raw"] = {"files": ["raw/*.txt", "http://127.0.0.1:1/d.txt"]}
    sync_files(case.instance, case.dataset)
    case.run(selection("tokenizer"))

    result = case.run(selection("tokens"), keys=case.partitions())

    assert "127.0.0.1:1" in failure(result)
    assert len([event for event in result.all_events if event.is_step_up_for_retry]) == 2
    told = case.instance.fetch_materializations(dg.AssetKey(["small", "tokens"]), limit=100)
    assert len(told.records) == 3
    # With a policy Dagster would begin a step that a user has terminated again.
    jobs = case.defs.get_repository_def().get_all_jobs()
    assert {op.retry_policy for job in jobs for op in job.all_node_defs} == {None}


@is_built
def test_a_raw_file_that_changes_while_tokens_are_made_makes_them_stale(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    case.write("b", "other\ntext\nhere\n")

    def make_then_change(graph, outputs, *arguments, **more):
        yield from make_outputs(graph, outputs, *arguments, **more)
        if outputs[0].step.has_engine:
            case.write("a", "changed\nmeanwhile\n")
            sync_files(case.instance, case.dataset)

    monkeypatch.setattr("tokflow.pipeline.run.make_outputs", make_then_change)
    result = case.run(selection("tokens").without_checks(), keys=KEYS)

    assert result.success, failure(result)
    assert case.not_fresh()["tokens:a.txt"] == "STALE"
    assert "tokens:b.txt" not in case.not_fresh()


SHORT = {"format": "parquet", "name": "short", "packing": {"sequence_length": 8}}
PICKLE = {"format": "pickle", "packing": {"sequence_length": 8, "pad_id": 1}}


def parents_of(case: Case, name: str) -> set[str]:
    key = dg.AssetKey(["small", "exports", name])
    [spec] = [of for of in case.defs.resolve_all_asset_specs() if of.key == key]
    return {"/".join(of.asset_key.path[1:]) for of in spec.deps}


def test_another_packing_is_an_asset_that_exports_of_it_share(case: Case):
    case.attributes["exports"] = ["parquet", SHORT, PICKLE]
    keys = {"/".join(of.key.path[1:]) for of in case.defs.resolve_all_asset_specs()}

    assert {key for key in keys if key.startswith("seq")} == {"sequences", "sequences/short"}
    assert parents_of(case, "parquet") == {"sequences", "files"}
    assert parents_of(case, "short") == parents_of(case, "pickle") == {"sequences/short", "files"}
    dg.Definitions.validate_loadable(case.defs)


def test_every_packing_is_built_checked_and_fresh_until_its_own_length_changes(case: Case):
    case.attributes["exports"] = ["parquet", SHORT, PICKLE]
    result = case.job()

    assert result.success, failure(result)
    assert case.not_fresh() == {}
    graph = graph_of(case.dataset)
    for key in KEYS:
        found = case.data_version("sequences", "short", partition=key)
        assert found == graph.output("sequences", key, "short").fingerprint
        assert found != case.data_version("sequences", partition=key)
    checked = {"/".join(of.asset_key.path[1:]) for of in result.get_asset_check_evaluations()}
    assert {"sequences", "sequences/short", "exports/pickle"} <= checked

    case.attributes["exports"] = ["parquet", {**SHORT, "packing": {"sequence_length": 9}}, PICKLE]

    assert {*case.not_fresh()} == {
        *(f"sequences/short:{key}" for key in KEYS),
        *(f"sequences/pickle:{key}" for key in KEYS),
        "exports/short",
        "exports/pickle",
    }
