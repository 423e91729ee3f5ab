import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tokflow import open_export
from tokflow.errors import ConfigError, CorruptOutputError
from tokflow.push.repository import PushError
from tokflow.push.upload import UNFINISHED, push_export
from tokflow.raw import RawConfig, list_raw, read_raw_files
from tokflow.raw.hub_repository import card_of
from tokflow.record.export_card import write_cards
from tokflow.store.manifest import MANIFEST_NAME, sealed
from tokflow_tests.hub import TOKEN, Hub
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import TEXTS, build, declare

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

NAME = "team/texts"
URL = f"hf://datasets/{NAME}"


def tree(hub: Hub, branch: str = "main") -> dict[str, bytes]:
    """Return the files of the repository but git's own."""
    files = hub.commits[NAME][hub.branches[NAME][branch]]
    return {path: content for path, content in files.items() if path != ".gitattributes"}


def files_of(export: Path, folder: str = "") -> dict[str, bytes]:
    """Return the files that are to be on the hub of an export, without the card."""
    names = [*open_export(export).manifest.files, "_tokflow/manifest.json"]
    return {folder + name: (export / name).read_bytes() for name in names}


def without_card(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in files.items() if path != "README.md"}


def test_the_hub_has_the_files_and_a_card(writable: Hub, exports: dict[str, Path]):
    pushed = push_export(exports["parquet"], URL)

    found = tree(writable)
    assert without_card(found) == files_of(exports["parquet"])
    [config] = card_of(found["README.md"].decode(), where="card")["configs"]
    digits = "[0-9]" * 5
    assert config["data_files"] == [
        {"split": "train", "path": [f"train-{digits}-of-00003.parquet"]},
        {"split": "val_2", "path": [f"val-2-{digits}-of-00001.parquet"]},
    ]
    assert pushed.commit == writable.branches[NAME]["main"]
    assert pushed.is_private
    assert writable.private == {NAME}
    assert (pushed.num_files, pushed.num_sent) == (6, 7)
    assert len(writable.summaries) == 1


def test_what_is_there_is_not_sent_again(writable: Hub, exports: dict[str, Path]):
    push_export(exports["parquet"], URL)
    writable.asked.clear()

    again = push_export(exports["parquet"], URL)

    assert again.num_sent == again.num_sent_bytes == 0
    assert not any("PUT" in asked or "commit" in asked for asked in writable.asked)


@pytest.mark.parametrize(
    ("earlier", "export", "name"),
    [
        ("jsonl", "jsonl", "_tokflow/index.parquet"),
        ("parquet", "whole", "train-00001-of-00003.parquet"),  # which the other build has not
        (None, "parquet", "train-00001-of-00003.parquet"),
    ],
)
def test_content_that_no_push_has_sent_is_refused_and_stays(
    earlier: str | None, export: str, name: str, writable: Hub, exports: dict[str, Path]
):
    if earlier is not None:
        push_export(exports[earlier], URL)
    size = len(tree(writable)[name]) if earlier else 9
    writable.push(NAME, {name: b"?" * size})
    before = tree(writable)

    writable.asked.clear()
    with pytest.raises(ConfigError, match=f"found {name}, with content that no push of it"):
        push_export(exports[export], URL)

    assert not any("preupload" in asked for asked in writable.asked)
    assert tree(writable) == before


def manifest_naming(
    *names: str, content: bytes = b"mine", of: str = "tiny", form: str = "parquet"
) -> bytes:
    """Return a manifest, with its own digest, of an earlier push."""
    entry = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    files = dict.fromkeys(names, entry)
    return sealed({"dataset": of, "details": {"format": form}, "files": files})


@pytest.mark.parametrize(
    ("place", "data"),
    [
        (MANIFEST_NAME, b"[" * 100_000),
        (MANIFEST_NAME, manifest_naming(of="other")),
        (MANIFEST_NAME, manifest_naming("mine.txt", form="bin")),
        (MANIFEST_NAME, manifest_naming("a/../../mine.txt")),
        (MANIFEST_NAME, manifest_naming()[:-2] + b" }"),
        (f"{UNFINISHED}/0.json", manifest_naming("../mine.txt")),
    ],
    ids=["brackets", "another's", "as another format", "around", "changed", "above, unfinished"],
)
def test_a_manifest_there_that_no_push_of_the_export_has_written_is_refused(
    place: str, data: bytes, writable: Hub, exports: dict[str, Path]
):
    there = {"mine.txt": b"mine", f"rows/{place}": data}
    writable.push(NAME, there)

    with pytest.raises(ConfigError, match=r"found (other, as|tiny, as bin|a .* that is not)"):
        push_export(exports["whole"], f"{URL}/rows")

    assert tree(writable) == there


def test_a_manifest_there_that_names_gitattributes_does_not_delete_it(
    writable: Hub, exports: dict[str, Path]
):
    name, content = ".gitattributes", b"*.parquet filter=lfs\n"
    writable.push(NAME, {name: content, MANIFEST_NAME: manifest_naming(name, content=content)})

    push_export(exports["whole"], URL)

    found = writable.commits[NAME][writable.branches[NAME]["main"]]
    assert found[name] == content
    assert without_card(tree(writable)) == files_of(exports["whole"])


def test_exports_in_folders_are_configs_of_one_card(writable: Hub, exports: dict[str, Path]):
    push_export(exports["whole"], URL)

    push_export(exports["bin"], f"{URL}/as/bin")

    expected = files_of(exports["whole"]) | files_of(exports["bin"], "as/bin/")
    assert without_card(tree(writable)) == expected
    first, second = card_of(tree(writable)["README.md"].decode(), where="card")["configs"]
    index = [{"split": "index", "path": ["as/bin/_tokflow/index.parquet"]}]
    assert first["config_name"] == "default"
    assert second == {"config_name": "as-bin", "data_files": index}


def test_files_that_another_build_has_no_more_are_deleted(writable: Hub, exports: dict[str, Path]):
    push_export(exports["parquet"], URL)
    writable.push(NAME, {"mine.csv": b"mine", "README.md": tree(writable)["README.md"] + b"Mine."})

    push_export(exports["whole"], URL)

    found = tree(writable)
    assert found.pop("README.md").endswith(b"Mine.")
    assert found == files_of(exports["whole"]) | {"mine.csv": b"mine"}


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        ("GET .*/revision/main", "break"),
        ("PUT /lfs-upload/.*", 503),
        ("POST .*/commit/main", "lost"),
    ],
)
def test_a_single_fault_changes_nothing(
    request_: str, fault: int | str, writable: Hub, exports: dict[str, Path]
):
    writable.faults += [(request_ + "(\\?.*)?", fault)]

    push_export(exports["whole"], URL)

    assert not writable.faults
    assert without_card(tree(writable)) == files_of(exports["whole"])
    assert len(writable.summaries) == 1


def test_a_commit_of_somebody_else_in_between_stays(writable: Hub, exports: dict[str, Path]):
    card = b"---\nlicense: mit\n---\nMine.\n"
    writable.faults += [
        ("POST .*/commit/main", lambda: writable.push(NAME, {"README.md": card, "x": b"y"}))
    ]

    push_export(exports["whole"], URL)

    found = tree(writable)
    assert found["README.md"].startswith(b"---\nlicense: mit\nconfigs:\n")
    assert without_card(found) == {**files_of(exports["whole"]), "x": b"y"}


def test_a_hub_that_keeps_other_bytes_is_found_out(writable: Hub, exports: dict[str, Path]):
    writable.is_altering = True

    with pytest.raises(PushError, match="expected the content that was sent, found other"):
        push_export(exports["whole"], URL)


@pytest.mark.parametrize("change", ["altered", "lost"])
def test_one_small_file_that_is_other_behind_the_commit_is_found_out(
    change: str, writable: Hub, exports: dict[str, Path]
):
    name = "train-00000-of-00001.jsonl"
    other = (exports["jsonl"] / name).read_bytes()[:-1] + b"?" if change == "altered" else None
    looks = [lambda: None, lambda: None, lambda: writable.push(NAME, {name: other})]
    writable.faults += [(r"GET .*/revision/main(\?.*)?", look) for look in looks]

    with pytest.raises(PushError) as raised:
        push_export(exports["jsonl"], URL)

    assert raised.value.where == f"{URL}: {name}"


def test_commits_are_of_bounded_size(
    writable: Hub, exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.push.upload.COMMIT_FILES", 2)
    lines: list[str] = []

    push_export(exports["parquet"], URL, say=lines.append)

    assert [line.partition("(")[2].partition(",")[0] for line in lines] == [
        "1 of 3): 2 files",
        "2 of 3): 2 files",
        "3 of 3): 3 files",
    ]
    assert len(writable.summaries) == 3
    commits = [*writable.commits[NAME].values()]
    assert [("_tokflow/manifest.json" in files, "README.md" in files) for files in commits] == [
        *[(False, False)] * 3,
        (True, True),
    ]


@pytest.mark.parametrize("broken", [["parquet"], ["whole", "parquet"]])
def test_pushes_that_broke_off_between_commits_go_on_and_leave_nothing(
    broken: list[str], writable: Hub, exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.push.upload.COMMIT_FILES", 2)
    for name in broken:
        writable.faults += [(".*/commit/main", lambda: None), (".*/commit/main", 400)]
        with pytest.raises(PushError):
            push_export(exports[name], URL)

    pushed = push_export(exports[broken[0]], URL)

    assert pushed.num_sent == 5
    assert without_card(tree(writable)) == files_of(exports[broken[0]])
    assert len(writable.received) == len({*writable.received})


LISTED = {"mine.txt": b"mine", "rows/mine.txt": b"mine", "rows/other.bin": b"not what is listed"}


def test_a_manifest_of_an_unfinished_push_deletes_below_its_folder_what_has_its_digest(
    writable: Hub, exports: dict[str, Path]
):
    listed = manifest_naming("mine.txt", "other.bin")
    writable.push(NAME, {**LISTED, f"rows/{UNFINISHED}/0.json": listed})

    push_export(exports["whole"], f"{URL}/rows")

    mine = {name: LISTED[name] for name in ("mine.txt", "rows/other.bin")}
    assert without_card(tree(writable)) == files_of(exports["whole"], "rows/") | mine


FORM_FEED = b"---\nlicense: mit\x0c\n---\nMine.\x0c\n"


@pytest.mark.parametrize(
    ("card", "faults", "where"),
    [
        (b"mine", [("GET .*/tree/.*", b'["a"]')], URL),
        (b"mine", [(".*/resolve/.*/README.md", 403)], f"{URL}: README.md"),
        (FORM_FEED, [], f"{URL}: README.md"),
    ],
    ids=["no answer of a hub", "may not be read", "form feed"],
)
def test_what_cannot_be_read_there_is_named_and_stays(
    card: bytes, faults: list[Any], where: str, writable: Hub, exports: dict[str, Path]
):
    writable.push(NAME, {"README.md": card})
    writable.faults += faults

    with pytest.raises((ConfigError, PushError)) as raised:
        push_export(exports["whole"], URL)

    assert raised.value.where == where
    assert tree(writable) == {"README.md": card}


def test_an_export_at_a_url_that_is_larger_than_the_cache_may_be_is_pushed(
    writable: Hub, object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    export = {"format": "jsonl", "shards": 6}
    fields = {"store": f"{object_store.url}/store", "exports": [export]}
    folder = build(declare(tmp_path, TEXTS, **fields)).export("jsonl").output.folder
    expected = files_of(folder)
    monkeypatch.setenv("TOKFLOW_CACHE_BYTES", str(sum(map(len, expected.values())) // 4))
    monkeypatch.setattr("tokflow.raw.remote_version.FIRST_WAIT_SECONDS", 0.01)

    def let_go():
        for path in folder.glob("*.jsonl"):
            path.unlink()

    writable.faults.append(("POST .*/preupload/main", let_go))
    push_export(f"{object_store.url}/store/tiny/exports/jsonl", URL)

    assert not writable.faults
    assert without_card(tree(writable)) == expected
    assert len(writable.summaries) > 2


def test_a_damaged_export_is_refused_before_anything_is_sent(
    writable: Hub, exports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.push.upload.COMMIT_FILES", 1)
    copy = Path(shutil.copytree(exports["whole"], tmp_path / exports["whole"].name))
    file = copy / "val-2-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"?")

    with pytest.raises(CorruptOutputError, match=r"val-2-00000-of-00001\.parquet"):
        push_export(copy, URL)

    assert not any("preupload" in asked for asked in writable.asked)


def test_pickle_is_pushed_only_if_asked(writable: Hub, exports: dict[str, Path]):
    with pytest.raises(ConfigError, match=r"found pickle: .*\.pkl; .*--allow-pickle"):
        push_export(exports["pickle"], URL)
    assert writable.asked == []

    push_export(exports["pickle"], URL, allow_pickle=True)

    assert without_card(tree(writable)) == files_of(exports["pickle"])


def test_a_repository_must_be_as_private_as_asked(writable: Hub, exports: dict[str, Path]):
    writable.push(NAME, {"x": b"y"})

    with pytest.raises(ConfigError, match="expected a private repository, found a public"):
        push_export(exports["whole"], URL, private=True)

    assert tree(writable) == {"x": b"y"}
    assert not push_export(exports["whole"], URL).is_private


def test_a_branch_is_made_and_main_stays(writable: Hub, exports: dict[str, Path]):
    writable.push(NAME, {"x": b"y"})

    pushed = push_export(exports["whole"], f"{URL}@new")

    assert pushed.revision == "new"
    assert tree(writable) == {"x": b"y"}
    assert without_card(tree(writable, "new")) == {**files_of(exports["whole"]), "x": b"y"}


def test_a_pull_request_is_opened_once(writable: Hub, exports: dict[str, Path]):
    writable.push(NAME, {"x": b"y"})
    writable.faults += [("POST .*/commit/refs/pr/1", 400)]
    with pytest.raises(PushError):
        push_export(exports["whole"], URL, pull_request=True)

    pushed = push_export(exports["whole"], URL, pull_request=True)

    assert (pushed.revision, len(writable.pull_requests)) == ("refs/pr/1", 1)
    assert pushed.url == f"{writable.url}/datasets/{NAME}/discussions/1"
    assert tree(writable) == {"x": b"y"}
    expected = {**files_of(exports["whole"]), "x": b"y"}
    assert without_card(tree(writable, "refs/pr/1")) == expected


def test_without_a_token_nothing_is_made(
    hub: Hub, exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ConfigError, match="expected a token that may write to it, found none"):
        push_export(exports["whole"], URL)

    assert hub.commits == {}


def test_a_token_that_may_only_read_is_refused_and_not_shown(
    writable: Hub, exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    writable.push(NAME, {"x": b"y"})
    writable.readers.add("hf_onlyreads")
    monkeypatch.setenv("HF_TOKEN", "hf_onlyreads")

    with pytest.raises(ConfigError, match=r"found one that may not \(HTTP 403\)") as raised:
        push_export(exports["whole"], URL)

    assert "hf_onlyreads" not in repr(raised.value) + json.dumps(raised.value.fields())


@pytest.mark.parametrize("status", [400, 403])
def test_the_signature_of_an_upload_is_not_shown(
    status: int, writable: Hub, exports: dict[str, Path], caplog: pytest.LogCaptureFixture
):
    writable.faults += [("PUT .*", status)]

    with pytest.raises((PushError, ConfigError)) as raised:
        push_export(exports["whole"], URL)

    shown = f"{raised.value!r} {raised.value.__cause__!r} {caplog.text}"
    assert "hidden" not in shown
    assert TOKEN not in shown


def test_offline_nothing_is_asked(
    writable: Hub, exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        push_export(exports["whole"], URL)

    assert writable.asked == []


def test_what_was_pushed_is_read_as_raw_files(
    writable: Hub, exports: dict[str, Path], tmp_path: Path
):
    push_export(exports["parquet"], f"{URL}/packed")

    raw = RawConfig(files=URL, config="packed")
    sources = list_raw(raw, base=tmp_path).sources
    read = read_raw_files(sources.values(), store=tmp_path / "store")

    assert [source.source_split for source in sources.values()] == ["train"] * 3 + ["val_2"]
    expected = files_of(exports["parquet"])
    for key, raw_file in read.items():
        assert raw_file.path.read_bytes() == expected[key.rpartition("/")[2]]


def with_card(folder: Path, **card: Any) -> Path:
    """Return the folder of an export with its card beside it."""
    raw = {"files": "raw/**/*.jsonl"}
    dataset = declare(folder, TEXTS, raw=raw, exports=["bin"], card=card)
    built = build(dataset)
    write_cards(dataset, [of.output for of in built.made])
    return built.export("bin").folder


def test_a_push_takes_the_card_beside_the_export(writable: Hub, tmp_path: Path):
    for license_, languages in (("mit", ["de"]), ("odc-by", [])):
        export = with_card(tmp_path, title="Texts", license=license_, language=languages)

        push_export(export, URL)

        found = tree(writable)
        header = card_of(found["README.md"].decode(), where="card")
        assert (header["license"], header["pretty_name"]) == (license_, "Texts")
        assert header.get("language", []) == languages
        assert f"| Texts |  | {license_} |".encode() in found["README.md"]
        beside = (export / "_tokflow/croissant.json").read_bytes()
        assert found["_tokflow/croissant.json"] == beside
    assert push_export(export, URL).num_sent == 0


def test_a_license_that_somebody_wrote_on_the_hub_stays(writable: Hub, tmp_path: Path):
    export = with_card(tmp_path, license="mit", language=["de"])
    push_export(export, URL)
    writable.push(NAME, {"README.md": b"---\nlicense: cc0-1.0  # ours\n---\n# Mine\n"})

    push_export(export, URL)

    text = tree(writable)["README.md"].decode()
    assert text.startswith("---\nlicense: cc0-1.0  # ours\n")
    assert card_of(text, where="card")["language"] == ["de"]
