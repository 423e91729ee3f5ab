"""Datasets of a hub on this machine, listed, pinned and fetched."""

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig, Limit
from tokflow.errors import ConfigError, FetchError
from tokflow.raw import Listing, RawConfig, RawFile, list_raw, read_raw_files
from tokflow.store.manifest import read_manifest
from tokflow_tests.hub import Hub
from tokflow_tests.reading import read_documents

NAME = "hf://datasets/team/texts"
FILES = {
    "data/train-00000-of-00002.parquet": b"one",
    "data/train-00001-of-00002.parquet": b"two",
    "data/test-00000-of-00001.parquet": b"three",
    "README.md": b"---\nlicense: mit\n---\n",
}


@pytest.fixture(autouse=True)
def texts(hub: Hub) -> None:
    hub.push("team/texts", FILES)


def listed(store: Path | None = None, files: object = NAME, **fields: object) -> Listing:
    config = RawConfig(files=files, **fields)
    return list_raw(config, base=Path("/"), store=store)


def fetched(listing: Listing, store: Path) -> dict[str, RawFile]:
    return read_raw_files(listing.sources.values(), store=store)


def refusal(kind: type[Exception] = ConfigError, **fields: object) -> str:
    with pytest.raises(kind) as raised:
        listed(**fields)
    return str(raised.value)


def requests(hub: Hub) -> list[str]:
    """Return what was asked for, but for what the hub's own library asks once."""
    asked = [each for each in hub.asked if "agent-harnesses" not in each]
    hub.asked.clear()
    return asked


def test_the_files_of_a_dataset_are_found_by_its_name_and_manifests_name_their_commit(
    hub: Hub, tmp_path: Path
):
    sources = listed().sources
    raw = fetched(listed(), tmp_path)

    train = {f"data/train-0000{number}-of-00002.parquet": "train" for number in range(2)}
    test = "data/test-00000-of-00001.parquet"
    assert {key: source.source_split for key, source in sources.items()} == {test: "test", **train}
    for key, file in raw.items():
        assert file.path.read_bytes() == FILES[key]
        origin = {"hub_id": "team/texts", "commit": hub.branches["team/texts"]["main"], "path": key}
        assert read_manifest(file.path.parent).details["origin"] == origin


def test_a_new_commit_fetches_what_is_new_in_it_alone_and_an_unmoved_branch_costs_one_question(
    hub: Hub, tmp_path: Path
):
    before = fetched(listed(tmp_path), tmp_path)
    requests(hub)
    fetched(listed(tmp_path), tmp_path)
    assert requests(hub) == ["GET /api/datasets/team/texts/revision/main"]

    new = "data/train-00000-of-00002.parquet"
    hub.push("team/texts", {new: b"another", "README.md": b"# Other"})
    after = fetched(listed(tmp_path), tmp_path)

    assert [key for key in after if after[key].sha256 != before[key].sha256] == [new]
    assert hub.downloads() == [new]


@pytest.mark.parametrize("is_in_url", [True, False])
def test_a_commit_stays_as_it_is_and_is_asked_for_once(is_in_url: bool, hub: Hub, tmp_path: Path):
    commit = hub.branches["team/texts"]["main"]
    pinned = {"files": f"{NAME}@{commit}"} if is_in_url else {"revision": commit}
    before = fetched(listed(tmp_path, **pinned), tmp_path)
    requests(hub)
    hub.push("team/texts", {"data/test-00000-of-00001.parquet": b"another"})

    assert fetched(listed(tmp_path, **pinned), tmp_path) == before
    assert requests(hub) == []


TRAIN = ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
TEST = "test-00000-of-00001.parquet"


@pytest.mark.parametrize(
    ("files", "keys"),
    [
        (f"{NAME}/data/train-*.parquet", TRAIN),
        (f"{NAME}@main/**/*est*.parquet", [f"data/{TEST}"]),
        (f"{NAME}/data/{TEST}", [TEST]),
        (f"{NAME}/table.parquet", ["table.parquet/part-0.parquet"]),
        ([f"{NAME}/data/test*", f"{NAME}/notes/*.txt"], [f"data/{TEST}", "notes/a.txt"]),
    ],
)
def test_files_of_a_dataset_are_named_by_patterns_too(files: object, keys: list[str], hub: Hub):
    others = dict.fromkeys(["notes/a.txt", "notes/.b.txt", "table.parquet/part-0.parquet"], b"")
    hub.push("team/texts", others)
    requests(hub)

    sources = listed(files=files).sources

    assert list(sources) == keys
    assert sum("/revision/" in asked for asked in requests(hub)) == 1
    assert {of.hub.commit for of in sources.values()} == {hub.branches["team/texts"]["main"]}


@pytest.mark.parametrize("files", [[NAME, f"{NAME}/data/{TEST}"], [f"{NAME}/data/{TEST}", NAME]])
def test_a_file_that_is_named_beside_its_dataset_is_of_its_split(files: list[str], hub: Hub):
    assert listed(files=files) == listed()


def test_the_token_goes_to_the_hub_and_to_no_other_host(
    hub: Hub, tmp_path: Path, monkeypatch, caplog
):
    hub.token = "hf_secret"
    refused = refusal()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.authorizations.clear()

    fetched(listed(tmp_path), tmp_path)

    assert "found none of that name, or one that is private;" in refused
    sent = {path.startswith("/lfs/"): header for path, header in hub.authorizations[1:]}
    assert sent == {False: "Bearer hf_secret", True: None}
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [content for content in written if b"hf_secret" in content]
    assert "hf_secret" not in caplog.text


@pytest.mark.parametrize(
    "name", ["datasets/imdb", "datasets/imdb/*", "team/texts", "datasets/a/b@"]
)
def test_a_name_that_no_dataset_can_have_is_refused(name: str):
    assert "found another form of name;" in refusal(files=f"hf://{name}")


@pytest.mark.parametrize(
    "fields",
    [
        {"files": f"{NAME}@v1", "revision": "main"},
        {"files": [f"{NAME}/data/train*", f"{NAME}@v1/data/test*"]},
    ],
)
def test_a_dataset_has_one_revision(fields: dict[str, object]):
    assert "found 'v1' and 'main';" in refusal(**fields)


def test_what_is_not_there_is_refused_by_name(hub: Hub):
    assert "found 'v2';" in refusal(revision="v2")
    assert "found data/*.txt;" in refusal(files="data/*.txt", revision="main")
    assert "found data/*.txt;" in refusal(files="data/*.txt", split="train")


def test_a_file_of_two_splits_is_refused(hub: Hub):
    card = "---\nconfigs:\n- config_name: all\n  data_files:\n  - {split: a, path: data/*}\n"
    hub.push("team/texts", {"README.md": f"{card}  - {{split: b, path: data/test*}}\n---".encode()})

    assert "found one of a and of b;" in refusal()
    assert list(listed(split="b").sources) == ["data/test-00000-of-00001.parquet"]


def test_a_gated_dataset_says_where_to_ask(hub: Hub, tmp_path: Path):
    hub.gated.add("team/texts")

    with pytest.raises(ConfigError, match="found one whose authors decide who may read it;"):
        fetched(listed(), tmp_path)


def test_bytes_that_are_not_those_of_the_commit_are_refused(hub: Hub, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tokflow.raw.remote_version.FIRST_WAIT_SECONDS", 0.01)
    hub.is_lying = True

    with pytest.raises(FetchError, match=r"test-00000-of-00001\.parquet: .*, found sha256 "):
        fetched(listed(split="test"), tmp_path)
    hub.is_lying = False
    assert len(fetched(listed(split="test"), tmp_path)) == 1


def test_a_busy_hub_is_asked_again(hub: Hub, caplog):
    hub.statuses = [503, 503]

    assert len(listed().sources) == 3
    assert caplog.messages[0].startswith(f"{NAME}: HfHubHTTPError: Server error '503")
    assert "/api/datasets/team/texts/revision/main'; trying again in " in caplog.messages[0]


def test_offline_the_files_are_those_of_the_last_run(hub: Hub, tmp_path: Path, monkeypatch):
    before = fetched(listed(tmp_path / "store"), tmp_path / "store")
    requests(hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    after = fetched(listed(tmp_path / "store"), tmp_path / "store")

    assert after == before
    found = "found HF_HUB_OFFLINE, and no list of its files from an earlier run;"
    assert found in refusal(FetchError, store=tmp_path / "none")
    assert requests(hub) == []


@pytest.mark.parametrize(
    "content",
    ["{", "3", '{"team/texts@main": 3}', '{"team/texts@main": {"commit": 0, "files": [[]]}}'],
)
def test_a_damaged_memory_of_the_hub_is_made_again(content: str, hub: Hub, tmp_path: Path):
    before = listed(tmp_path)
    whole = (tmp_path / "hub.json").read_bytes()
    (tmp_path / "hub.json").write_text(content)

    assert listed(tmp_path) == before
    assert (tmp_path / "hub.json").read_bytes() == whole


def test_of_a_large_file_no_more_is_fetched_than_is_read_and_the_hub_tells_its_sha256(
    hub: Hub, tmp_path: Path
):
    texts = [f"{nth} {np.random.default_rng(nth).bytes(1500).hex()}" for nth in range(2000)]
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), sink, row_group_size=500)
    hub.push("team/large", {"train.parquet": sink.getvalue()})
    hub.push("team/plain", {"train.txt": b"x" * 10**7})  # which git keeps itself
    names = [f"hf://datasets/team/{name}" for name in ("large", "plain")]
    sources = [source for name in names for source in listed(files=name).sources.values()]

    raw = read_raw_files(sources, store=tmp_path, as_read=True)

    table, text = raw["train.parquet"], raw["train.txt"]
    config = DocumentsConfig(limit=Limit(documents=3))
    [batch] = read_documents(table.path, config)
    assert batch.texts.to_pylist() == texts[:3]
    with text.path.open("rb") as file:
        assert file.read(9) == b"x" * 9
    assert hub.num_sent < 5_000_000 < 6_000_000 < table.num_bytes
    assert table.sha256 == hashlib.sha256(sink.getvalue()).hexdigest()
    assert (table.version, text.version["num_bytes"]) == (None, 10**7)
    newest = json.loads((tmp_path / "raw/train.parquet/.source.json").read_text())
    assert newest["origin"]["commit"] == hub.branches["team/large"]["main"]
