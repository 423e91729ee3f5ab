import json
import re
import shutil
from pathlib import Path

import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.errors import CorruptOutputError
from tokflow.exports.reading import find_export, open_export
from tokflow.pipeline.run import build_dataset
from tokflow.views import viewer_content as content_module
from tokflow.views import viewer_page as page_module
from tokflow.views.viewer_content import NO_EOS, NO_SPACE, NORMALISED, PartWindows, Window, as_json
from tokflow.views.viewer_page import LIMIT, make_viewer
from tokflow_tests import special
from tokflow_tests.chats import chat_dataset
from tokflow_tests.tiny import copy_of, declare, declare_small
from tokflow_tests.views.pages import data_of, segments_of

STORE = Path("store/small/exports")
FORMATS = ["bin", "parquet", "pickle", "llmc"]
HOSTILE = "</script><script>alert(1)</script><!-- & \u2028 \"'\x00\x1b[31m\u202e"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    split = {"parts": {"train": {"fraction": 0.7}, "validation": {"fraction": 0.3}}}
    assert build_dataset(declare_small(folder, exports=FORMATS, split=split)).failed == ()
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_every_token_is_in_the_page_and_every_segment_leads_to_the_characters_that_trace_names(
    name: str, built: Path
):
    path = built / STORE / name
    page = make_viewer(path)

    export = open_export(path)
    parts = data_of(page)["parts"]
    assert [of["name"] for of in parts] == list(export.parts)
    for number, part in enumerate(export.parts):
        windows = segments_of(page, number)
        tokens = sum(s.num_tokens for window in windows for s in window if s.file is not None)
        assert tokens == export.counts[f"{part}.num_tokens"]
    for place, _, segments, _ in parts[0]["windows"]:
        for num, file, *others in segments:
            if file >= 0 and name != "llmc":  # of which EOS and document are one segment here
                (origin,) = trace_tokens(path, part="train", start=place, stop=place + num)
                row, token, chars, _ = others
                assert (row, token) == (origin.row, origin.token_in_text)
                assert chars == origin.char_start
            place += num


def test_an_eos_that_stands_before_its_document_is_of_one_segment_with_it(built: Path):
    (window, *_) = segments_of(make_viewer(built / STORE / "llmc"))

    assert [segment.text for segment in window[:2]] == ["<eos>one", "<eos>two and a half"]


def test_a_page_is_the_same_bytes_each_time_and_names_no_path(built: Path, tmp_path: Path):
    elsewhere = copy_of(built, tmp_path)

    page = make_viewer(built / STORE / "parquet")

    assert page == make_viewer(elsewhere / STORE / "parquet")
    assert str(built).encode() not in page


def test_a_page_asks_for_nothing_and_runs_its_own_script_alone(built: Path):
    page = make_viewer(built / STORE / "bin").decode()

    shell = page.replace('href="data:,"', "").replace('href="#tokens"', "")
    assert re.findall(r"(?:src=|href|url\(|@import|https?:)", shell) == []
    assert "default-src 'none'" in page
    assert page.count("<script") == 2
    assert len(page) < 60_000


def test_text_that_would_end_the_page_s_data_stands_in_it_as_data(tmp_path: Path):
    raw = {"a.jsonl": [HOSTILE]}
    build_dataset(declare(tmp_path, raw, packing={"sequence_length": 100}, exports=["parquet"]))

    page = make_viewer(tmp_path / "store/tiny/exports/parquet")

    assert segments_of(page)[0][0].text == HOSTILE + "<eos>"
    assert page.count(b"<script") == 2
    assert b"<!--" not in page
    assert "\u2028".encode() not in page


def test_a_page_has_as_many_sequences_as_fit_and_says_which(
    built: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = make_viewer(built / STORE / "parquet")
    limit = len(whole) + page_module.NOTES_BYTES - 200
    monkeypatch.setattr(page_module, "LIMIT", limit)

    page = make_viewer(built / STORE / "parquet")

    train = data_of(page)["parts"][0]
    assert 0 < train["stop"] == len(train["windows"]) < train["numSequences"]
    assert len(page) < limit <= LIMIT


def test_a_page_begins_with_the_sequence_that_is_asked_for(built: Path):
    page = make_viewer(built / STORE / "parquet", part="train", first=2, num_sequences=3)

    (train,) = data_of(page)["parts"]
    assert [window[0] // 8 for window in train["windows"]] == [2, 3, 4]
    assert (train["first"], train["stop"]) == (2, 5)


def test_a_sequence_too_long_to_be_drawn_at_once_is_several_windows(tmp_path: Path):
    packing = {"sequence_length": 5_000}
    dataset = declare(tmp_path, {"a.jsonl": ["x" * 9_998]}, packing=packing, exports=["parquet"])
    build_dataset(dataset)

    page = make_viewer(tmp_path / "store/tiny/exports/parquet")

    windows = data_of(page)["parts"][0]["windows"]
    assert [window[0] for window in windows] == [0, 4_096, 5_000, 9_096]
    assert [sum(s[0] for s in window[2]) for window in windows] == [4_096, 904] * 2


@pytest.mark.parametrize(
    ("side", "padding", "shown"),
    [("right", "max", [7]), ("right", "none", []), ("left", "max", [7]), ("left", "none", [])],
)
def test_padding_is_shown_where_it_is_in_the_files(
    side: str, padding: str, shown: list[int], tmp_path: Path
):
    packing = {"sequence_length": 12, "padding_side": side}
    exports = [{"format": "parquet", "padding": padding}]
    build_dataset(declare(tmp_path, {"a.jsonl": ["four"]}, packing=packing, exports=exports))

    page = make_viewer(tmp_path / "store/tiny/exports/parquet")

    (window,) = data_of(page)["parts"][0]["windows"]
    paddings = [segment for segment in window[2] if segment[1] < 0]
    assert [num for num, _, _, is_in_files in paddings if is_in_files] == shown
    assert sum(segment[0] for segment in window[2]) == 12


def test_the_loss_mask_is_told_by_runs_of_tokens(tmp_path: Path):
    exports = ["parquet", "bin"]
    build_dataset(chat_dataset(tmp_path, exports=exports, packing={"sequence_length": 64}))
    (sequences,) = open_export(tmp_path / "store/chats/exports/parquet").read("train")

    kept, lost = (make_viewer(tmp_path / "store/chats/exports" / name) for name in exports)

    data = data_of(kept)
    for window, mask, segment_ids in zip(
        data["parts"][0]["windows"], sequences["loss_mask"], sequences["segment_ids"], strict=True
    ):
        runs = window[3] or [sum(segment_ids != 0)]
        told = [i % 2 == 0 for i, num in enumerate(runs) for _ in range(num)]
        assert told == mask[segment_ids != 0].tolist()
    turns = data["parts"][0]["windows"][0][2][0][7]
    assert [words for _, words in turns][1::2] == ["user: given", "assistant: content, stop token"]
    assert sum(num for num, _ in turns) == data["parts"][0]["windows"][0][2][0][0]
    assert data["notes"] == []
    assert "bin does not keep which labels count" in data_of(lost)["notes"][-1]


def test_of_an_export_without_its_store_ids_and_documents_are_shown(built: Path, tmp_path: Path):
    shutil.copytree(built / STORE / "parquet/latest", tmp_path / "copy")

    page = make_viewer(tmp_path / "copy")

    data = data_of(page)
    assert data["vocabulary"] == {}
    assert "tokens are shown as ids, and characters are not known" in data["notes"][0]
    first = segments_of(page)[0][0]
    assert (first.file, first.row, first.chars, first.num_tokens) == ("a.jsonl", 0, None, 4)


def test_of_a_store_without_its_splits_characters_are_not_known(built: Path, tmp_path: Path):
    folder = copy_of(built, tmp_path) / STORE.parent
    shutil.rmtree(folder / "split")

    first = segments_of(make_viewer(folder / "exports/parquet"))[0][0]

    assert (first.text, first.chars) == ("one<eos>", None)


def test_a_tokenizer_that_is_code_runs_with_consent_alone(tmp_path: Path):
    tokenizer = special.of_transformers(tmp_path)
    dataset = declare(tmp_path, {"a.jsonl": ["ab"]}, tokenizer=tokenizer, exports=["bin"])
    build_dataset(dataset)
    export = tmp_path / "store/tiny/exports/bin"

    alone, trusted = make_viewer(export), make_viewer(export, trust_remote_code=True)

    assert "give --trust-remote-code to run it" in data_of(alone)["notes"][-1]
    assert str(tmp_path).encode() not in alone
    assert data_of(alone)["vocabulary"] == {}
    (window,) = segments_of(trusted)
    assert (window[0].text, window[0].chars) == ("ab</s>", None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exports/parquet/latest/_tokflow/index.parquet", "expected what its format says"),
        ("exports/bin/latest/train.bin", "expected token ids up to 257"),
        ("tokens/a.jsonl/*/tokens.bin", "expected sha256"),
    ],
)
def test_a_damaged_file_is_named(name: str, expected: str, built: Path, tmp_path: Path):
    store = copy_of(built, tmp_path) / STORE.parent
    (path,) = store.glob(name)
    path.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))
    export = path.parent if "exports" in name else store / "exports/parquet"

    with pytest.raises(CorruptOutputError, match=path.name) as raised:
        make_viewer(export)

    assert expected in str(raised.value)


EXPORT = Path("store/tiny/exports/parquet")


def flags_of(page: bytes) -> list[list[int]]:
    """Return [row, token in its text, characters before it, flags] of each segment."""
    windows = data_of(page)["parts"][0]["windows"]
    return [segment[2:] for window in windows for segment in window[2] if segment[1] >= 0]


def test_a_space_that_is_put_before_a_text_stands_for_no_character(tmp_path: Path):
    tokenizer = special.of_sentencepiece_without_words(tmp_path)
    packing = {"sequence_length": 3}
    raw = {"a.jsonl": ["zé z"]}
    build_dataset(declare(tmp_path, raw, tokenizer=tokenizer, packing=packing, exports=["parquet"]))

    flags = flags_of(make_viewer(tmp_path / EXPORT))

    # Its tokens: the space, z, c3 | a9, a space, z | EOS, of which the last row is a tail.
    assert flags[:2] == [[0, 0, 0, NO_SPACE], [0, 3, 2, 0]]


def test_a_special_token_that_a_text_spells_stands_for_its_characters(tmp_path: Path):
    tokenizer = {**special.of_tiktoken(tmp_path), "special_tokens_in_text": "control"}
    packing = {"sequence_length": 2}
    raw = {"a.jsonl": ["a</s>", "</s>b"]}
    build_dataset(declare(tmp_path, raw, tokenizer=tokenizer, packing=packing, exports=["parquet"]))

    flags = flags_of(make_viewer(tmp_path / EXPORT))

    # The first text ends with the token itself, the second with one that was put there.
    assert flags == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 2, 5, NO_EOS]]


def test_characters_of_a_text_that_was_normalised_are_found_in_the_raw_file(tmp_path: Path):
    model = special.train_model(normalization_rule_name="nfkc", add_dummy_prefix=False)
    (tmp_path / "own.model").write_bytes(model)
    tokenizer = {"kind": "sentencepiece", "name": str(tmp_path / "own.model")}
    raw = {"a.jsonl": ["ﬁt"]}  # a ligature, which NFKC makes two letters
    packing = {"sequence_length": 4}
    build_dataset(declare(tmp_path, raw, tokenizer=tokenizer, packing=packing, exports=["parquet"]))

    here = flags_of(make_viewer(tmp_path / EXPORT))[0]
    (tmp_path / "raw/a.jsonl").unlink()
    away = flags_of(make_viewer(tmp_path / EXPORT))[0]

    assert here == [0, 0, 0, NO_EOS, [0, 1, 0, 1, 1, 2]]
    assert away == [0, 0, 0, NO_EOS | NORMALISED]


OF_WINDOWS = ["bin", "parquet", "pickle", "mds"]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    options = [{"format": "parquet", "shards": 3}, "bin", "pickle", "mds"]
    assert build_dataset(declare_small(folder, exports=options)).failed == ()
    return folder / "store/small/exports"


def fields(window: Window) -> tuple[object, ...]:
    segments = [(begin, end, entry) for begin, end, entry in window.segments()]
    return window.position, window.token_ids.tolist(), window.loss_mask.tolist(), segments


@pytest.mark.parametrize("name", OF_WINDOWS)
def test_windows_are_the_same_wherever_one_begins_and_however_many_are_read_at_once(
    name: str, exports: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(content_module, "STREAM_WINDOW", 8)
    part = PartWindows(find_export(exports / name), "train")
    whole = [fields(window) for window in part.windows(0, 100)]

    monkeypatch.setattr(content_module, "POSITIONS_AT_ONCE", 24)
    some = [fields(window) for window in part.windows(5, 3)]
    rest = [fields(window) for window in part.windows(3, 100)]

    assert len(whole) == part.num_sequences == 9
    assert some == whole[5:8]
    assert rest == whole[3:]


def test_json_in_a_page_keeps_its_value_and_ends_no_element():
    value = {"a": "</script> <!-- & \u2028\u2029 é \udcff", "b": [1, None]}

    written = as_json(value)

    assert json.loads(written) == value
    assert not {*b"<>&"} & {*written}
    assert "é".encode() in written
