import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.audit.verify import verify_export
from tokflow.build.dataset import Dataset
from tokflow.build.pipeline import build_dataset
from tokflow.errors import ConfigError
from tokflow.exports import FORMATS, Export, Layout, Part, bin_
from tokflow.sequences.segments import Sequences
from tokflow.store.manifest import Manifest, broken_files, read_manifest
from tokflow_tests.chats import chat, chat_dataset, write_chats
from tokflow_tests.making import (
    EOS,
    build,
    content,
    declare,
    ids,
    index_of,
    many_ids,
    parts,
)

EXPORTS: dict[str, dict[str, Any]] = {
    "archai": {"format": "archai"},
    "bin": {"format": "bin"},
    "datatrove": {"format": "datatrove"},
    "datatrove-files-of-5": {"format": "datatrove", "tokens_per_file": 5},
    "easydel": {"format": "easydel"},
    "easydel-files-of-2": {
        "format": "easydel",
        "position_ids": False,
        "sequences_per_file": 2,
        "sequences_per_group": 1,
    },
    "lance": {"format": "lance"},
    "lance-rows": {"format": "lance", "layout": "sequences"},
    "lance-files-of-5": {"format": "lance", "max_rows_per_file": 5},
    "lance-rows-files-of-2": {"format": "lance", "layout": "sequences", "max_rows_per_file": 2},
    "levanter": {"format": "levanter"},
    "llmc": {"format": "llmc"},
    "llmc-files-of-5": {"format": "llmc", "tokens_per_file": 5, "prefix": "x"},
    "megatron": {"format": "megatron"},
    "megatron-named": {"format": "megatron", "prefix": "x.1", "key": "content"},
    "npy": {"format": "npy"},
    "npy-eos-first": {"format": "npy", "eos": "first", "prefix": "x"},
    "npy-files-of-5": {"format": "npy", "tokens_per_file": 5},
    "npy-rows": {"format": "npy", "layout": "sequences"},
    "npy-files-of-2": {"format": "npy", "layout": "sequences", "sequences_per_file": 2},
    "arrow": {"format": "arrow"},
    "arrow-batches-of-2": {"format": "arrow", "sequences_per_file": 5, "sequences_per_batch": 2},
    "arrow-zstd": {"format": "arrow", "compression": "zstd"},
    "hf_dataset": {"format": "hf_dataset"},
    "hf_dataset-of-trl": {
        "format": "hf_dataset",
        "columns": ["seq_lengths", "labels"],
        "padding": False,
        "sequences_per_file": 2,
    },
    "jsonl": {"format": "jsonl"},
    "jsonl-gz-files-of-2": {
        "format": "jsonl",
        "columns": ["attention_mask", "position_ids", "labels", "seq_lengths"],
        "padding": False,
        "sequences_per_file": 2,
        "compression": "gz",
    },
    "jsonl-zst-without-columns": {"format": "jsonl", "columns": [], "compression": "zst"},
    "parquet": {"format": "parquet"},
    "pickle": {"format": "pickle"},
    "parquet-files-of-2": {"format": "parquet", "sequences_per_file": 2},
    "parquet-groups-of-1": {"format": "parquet", "sequences_per_group": 1},
    "pickle-files-of-2": {"format": "pickle", "sequences_per_file": 2},
    "litdata": {"format": "litdata"},
    "litdata-chunks-of-6": {"format": "litdata", "block_size": 3, "tokens_per_file": 8},
    "litdata-zstd": {"format": "litdata", "block_size": 4, "chunk_bytes": 8, "compression": "zstd"},
    "mds": {"format": "mds"},
    "mds-of-all-fields": {
        "format": "mds",
        "columns": {
            "a": "position_ids",
            "tokens": "token_ids",
            "c": "loss_mask",
            "b": "segment_ids",
        },
    },
    "mds-small-and-packed": {"format": "mds", "size_limit": 400, "compression": "zstd"},
    "modalities": {"format": "modalities"},
    "modalities-files-of-5": {"format": "modalities", "tokens_per_file": 5},
    "olmo": {"format": "olmo"},
    "olmo-files-of-5": {"format": "olmo", "tokens_per_file": 5},
    "webdataset": {"format": "webdataset"},
    "webdataset-json-files-of-2": {
        "format": "webdataset",
        "sequences_per_file": 2,
        "compression": "none",
    },
}
EVERY_EXPORT = [{"name": name, **export} for name, export in EXPORTS.items()]

CUT_AT = [0, 5, 11]


def cut_into(*names: str) -> dict[str, Any]:
    stops = [*CUT_AT[1:], 1_000]
    ranges = zip(CUT_AT, stops, strict=True)
    found = [{"start": start, "characters": stop - start} for start, stop in ranges]
    return {"boundary": "character", "parts": dict(zip(names, found, strict=True))}


@dataclass(frozen=True, kw_only=True)
class Case:
    files: dict[str, list[str]]
    attributes: dict[str, Any] = field(default_factory=dict)
    edges: list[int] = field(default_factory=list)
    """Characters of each file at which a document is cut."""
    encode: Callable[[str], list[int]] = ids

    @property
    def exports(self) -> list[dict[str, Any]]:
        """Every export but those that need an EOS where documents have none, or other parts."""
        has_eos = self.attributes.get("tokenizer", {}).get("eos") != "none"
        names = {*self.attributes.get("split", {}).get("parts", ["train"])}
        return [
            export
            for export in EVERY_EXPORT
            if (has_eos or not needs_eos(export))
            and names <= {*(FORMATS[export["format"]].part_names or names)}
        ]


def needs_eos(export: dict[str, Any]) -> bool:
    return layout_of_export(export).eos_first


def is_of_rows(export: dict[str, Any]) -> bool:
    return layout_of_export(export).made_of == "sequences"


def layout_of_export(export: dict[str, Any]) -> Layout:
    options = {name: value for name, value in export.items() if name not in ("format", "name")}
    format_ = FORMATS[export["format"]]
    return format_.layout(format_.options(**options))


def word_ids(text: str) -> list[int]:
    return [*(int(word[1:]) for word in text.split()), 70_000]


CASES = {
    "several files": Case(
        files={"a.jsonl": ["abc", "de"], "b.jsonl": ["fghijkl"], "c.jsonl": ["m", "n"]},
        attributes={"split": {"parts": {"train": {"documents": 1}, "test": {"start": 1}}}},
    ),
    "an empty file and empty documents": Case(
        files={"a.jsonl": [], "b.jsonl": ["", "ab", ""], "c.jsonl": [""]}
    ),
    "documents of no tokens": Case(
        files={"a.jsonl": ["", "abcde", "", "f"], "b.jsonl": [""]},
        attributes={
            "tokenizer": {"kind": "bytes", "eos": "none"},
            "split": {"parts": {"train": {"documents": 2}, "test": {"start": 2}}},
        },
        encode=lambda text: ids(text, eos=False),
    ),
    "documents of one token": Case(files={"a.jsonl": [""] * 7}),
    "documents longer than a row": Case(files={"a.jsonl": ["abcdefghijklmnop", "qrstuvwxyz"]}),
    "a part without tokens": Case(
        files={"a.jsonl": ["abcdef"]},
        attributes={"split": {"parts": {"train": {"start": 0}, "train-b": {"characters": 0}}}},
    ),
    "no tokens at all": Case(files={"a.jsonl": []}),
    "names that begin alike": Case(
        files={"a.jsonl": ["abcdef", "ghi"]},
        attributes={"split": {"parts": {"train": {"documents": 1}, "train-b": {"start": 1}}}},
    ),
    "cut documents": Case(
        files={"a.jsonl": ["ab", "", "😀defghijklmn", "opq"], "b.jsonl": ["xyzxyzxyzxyz"]},
        attributes={"split": cut_into("train", "validation", "test")},
        edges=CUT_AT,
    ),
    "the tail dropped": Case(
        files={"a.jsonl": ["abcdef"], "b.jsonl": ["g", "hi"]},
        attributes={"packing": {"sequence_length": 4, "tail": "drop"}},
    ),
    "less than a row, dropped": Case(
        files={"a.jsonl": ["a"]}, attributes={"packing": {"sequence_length": 4, "tail": "drop"}}
    ),
    "one document in a row": Case(
        files={"a.jsonl": ["a", "bcdef", "", "ghi"], "b.jsonl": ["jk", "lmnopqr"]},
        attributes={"packing": {"sequence_length": 4, "strategy": "one_document", "pad_id": 0}},
    ),
    "rows that repeat and rows that are too short": Case(
        files={"a.jsonl": ["a", "bcdefghij", "", "klm"], "b.jsonl": ["no", "pqrstuv"]},
        attributes={
            "packing": {"sequence_length": 4, "label_token": True, "overlap": 1}
            | {"strategy": "one_document", "min_sample_length": 3}
        },
    ),
    "documents side by side": Case(
        files={"a.jsonl": ["ab", "cdefg", "h", ""], "b.jsonl": ["ijk"], "c.jsonl": ["l", "mn"]},
        attributes={"packing": {"sequence_length": 4, "strategy": "best_fit"}},
    ),
    "a stream that overlaps": Case(
        files={"a.jsonl": ["ab", "cdefg", "h"], "b.jsonl": ["ijk"], "c.jsonl": ["l", "mn"]},
        attributes={"packing": {"sequence_length": 4, "overlap": 2, "overlong": "truncate"}},
    ),
    "more than 65,536 ids": Case(
        files={"a.jsonl": ["w65536 w1 w69999", "w65535"], "b.jsonl": ["w7 w8"]},
        attributes={
            "tokenizer": {
                "kind": "file",
                "name": "many.json",
                "eos_token": "<eos>",
                "engine": "reference",
            }
        },
        encode=word_ids,
    ),
}


Exported = tuple[Dataset, Path, Manifest]


def export(dataset: Dataset) -> Exported:
    [config] = dataset.exports
    made = build(dataset).export(config.name)
    return dataset, made.output.folder, made.manifest


def read_as_nanogpt(folder: Path, manifest: Manifest, part: str) -> list[int]:
    path = folder / ("val.bin" if part == "validation" else f"{part}.bin")
    if not path.exists():
        return []
    return np.memmap(path, dtype=np.dtype(manifest.details["dtype"]), mode="r").tolist()


def read_as_pyarrow(folder: Path, manifest: Manifest, part: str) -> list[list[int]]:
    paths = sorted(folder.glob(f"{part}-[0-9]*-of-*.parquet"))
    return [row for path in paths for row in pq.read_table(path)["input_ids"].to_pylist()]


def read_as_pickled_trainer(folder: Path, manifest: Manifest, part: str) -> list[list[int]]:
    dumps = sorted((folder / part).glob("*.pkl"), key=lambda path: int(path.stem.split("-")[1]))
    if not dumps:
        assert not (folder / part).exists()
        return []
    [meta] = (folder / part).glob("*.json")
    assert meta.name == "dump-meta_data.json"
    described = json.loads(meta.read_text())
    assert list(described) == [path.name for path in dumps]
    rows = []
    for path in dumps:
        samples = pickle.loads(path.read_bytes())
        num_tokens = sum(map(len, samples))
        assert described[path.name] == {"num_samples": len(samples), "num_tokens": num_tokens}
        rows += samples
    return rows


PEER_READERS = {
    "bin": read_as_nanogpt,
    "parquet": read_as_pyarrow,
    "pickle": read_as_pickled_trainer,
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def built(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a dataset with every export, built."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "many.json").write_text(many_ids())
    dataset = declare(folder, case.files, exports=case.exports, **case.attributes)
    build(dataset)
    return dataset


@pytest.mark.parametrize("name", EXPORTS)
def test_every_format_keeps_its_contract(name: str, case: Case, built: Dataset):
    if name not in [export["name"] for export in case.exports]:
        pytest.skip("the format needs an EOS, or other parts")
    folder = (built.folder / "exports" / name / "latest").resolve()
    manifest = read_manifest(folder)

    for part in parts(built, name).values():
        expected = fields_of(part, manifest)
        check_accounting(manifest, part)
        check_index(folder, manifest, part.name, expected["token_ids"].tolist(), case)
        check_read(folder, manifest, part)
        if (peer := PEER_READERS.get(manifest.details["format"])) is not None:
            assert peer(folder, manifest, part.name) == expected["token_ids"].tolist()
    check_files(folder, manifest)
    assert verify_export(folder, manifest, list(parts(built, name).values())) == []


def check_read(folder: Path, manifest: Manifest, part: Part) -> None:
    """Read a part with our own reader and compare every field that the format keeps."""
    if not Export(folder, manifest).is_read:
        return
    own = read_whole(folder, manifest, part.name)
    if own is None:
        assert part.num_tokens == manifest.counts[f"{part.name}.num_dropped_tokens"]
        return
    expected = fields_of(part, manifest)
    assert tuple(own) == tuple(n for n in Export(folder, manifest).layout.keeps if n in expected)
    for name, values in own.items():
        assert values.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


ENDING = (
    "{% for message in messages %}{{ message['role'] + ': ' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] + ' ' }}{% endif %}{% endfor %}"
)
"""A template whose chats end with EOS, if the assistant has the last word."""


@pytest.fixture(scope="module")
def built_chats(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("chats")
    chats = [chat("Hello there", "General Kenobi"), chat("a", "b " * 9), chat("c", "", "d", "e")]
    for name, num in (("a", 3), ("b", 1), ("c", 2)):
        write_chats(folder / "raw" / f"{name}.jsonl", chats[:num])
    ranges = {"train": {"documents": 2}, "validation": {"start": 2, "documents": 9}}
    packing = {"sequence_length": 7, "strategy": "greedy", "label_token": True}
    dataset = chat_dataset(
        folder, None, template=ENDING, split={"parts": ranges}, packing=packing,
        exports=EVERY_EXPORT,
    )  # fmt: skip
    build(dataset)
    return dataset


@pytest.mark.parametrize("name", EXPORTS)
def test_every_format_keeps_the_loss_mask_of_chats_or_says_that_it_lost_it(
    name: str, built_chats: Dataset
):
    folder = (built_chats.folder / "exports" / name / "latest").resolve()
    manifest = read_manifest(folder)

    keeps = "loss_mask" in Export(folder, manifest).layout.keeps
    of_parts = parts(built_chats, name)
    for part in of_parts.values():
        check_accounting(manifest, part)
        check_read(folder, manifest, part)
        num_loss_tokens = sum(int(run.sum()) for run in part.stream_loss_mask())
        if Export(folder, manifest).layout.made_of == "sequences":
            num_loss_tokens = sum(int(rows.loss_mask.sum()) for rows in part.sequences())
        assert manifest.counts.get(f"{part.name}.num_loss_tokens") == (
            num_loss_tokens if keeps else None
        )
        assert num_loss_tokens > 0
    assert manifest.details.get("lost") == (None if keeps else ["loss_mask"])
    check_files(folder, manifest)
    assert verify_export(folder, manifest, list(of_parts.values())) == []


def fields_of(part: Part, manifest: Manifest) -> dict[str, np.ndarray]:
    """Return what the files of an export must hold of a part, whole."""
    layout = Export(Path(), manifest).layout
    if layout.made_of == "sequences":
        rows = list(part.sequences(100))
        empty = np.zeros((0, part.sequence_length), dtype=part.dtype)
        if not rows:
            return {"token_ids": empty}
        joined = Sequences.joined(rows)
        return {name: getattr(joined, name) for name in layout.keeps}
    runs = [np.zeros(0, dtype=part.dtype), *part.stream(eos_first=layout.eos_first)]
    fields = {"token_ids": np.concatenate(runs)}
    if "offsets" in layout.keeps:
        lengths = np.concatenate([of_file.num_tokens for of_file in part.documents()])
        lengths = lengths[lengths > 0] if layout.leaves_out_empty else lengths
        fields["offsets"] = np.concatenate([np.zeros(1, dtype=np.int64), lengths]).cumsum()
    if "loss_mask" in layout.keeps and part.has_loss_mask:
        fields["loss_mask"] = np.concatenate(list(part.stream_loss_mask())).astype(bool)
    return fields


def read_whole(folder: Path, manifest: Manifest, part: str) -> dict[str, np.ndarray] | None:
    """Return all that our own reader yields of a part, joined; None where it yields nothing."""
    arrays = list(Export(folder, manifest).read(part))
    if not arrays:
        return None
    whole = {}
    for name in arrays[0]:
        values = [fields[name] for fields in arrays]
        if name == "offsets":
            lengths = [np.diff(offsets) for offsets in values]
            whole[name] = np.concatenate([np.zeros(1, dtype=np.int64), *lengths]).cumsum()
        else:
            whole[name] = np.concatenate(values)
    return whole


def check_accounting(manifest: Manifest, part: Part) -> None:
    counts, name = manifest.counts, part.name
    repeated = counts.get(f"{name}.num_repeated_tokens", 0)
    once = counts[f"{name}.num_tokens"] - repeated
    assert once + counts[f"{name}.num_dropped_tokens"] == part.num_tokens
    if "sequence_length" in manifest.details:
        slots = counts[f"{name}.num_sequences"] * manifest.details["sequence_length"]
        assert counts[f"{name}.num_tokens"] + counts[f"{name}.num_padding"] == slots


def check_index(folder: Path, manifest: Manifest, name: str, read: list, case: Case) -> None:
    """Encode each run's text again and compare; each token must be in one run, or repeated."""
    tokens = [token for row in read for token in (row if isinstance(row, list) else [row])]
    num_covered, end = 0, 0
    covered: set[tuple[str, int, int, int]] = set()
    for run in index_of(folder, name):
        texts = case.files[run["raw_file"]]
        before = sum(map(len, texts[: run["row"]])) + run["char_start"]
        text = texts[run["row"]][run["char_start"] :]
        size = min((edge - before for edge in case.edges if edge > before), default=len(text))
        first, start = run["token_in_piece"], run["position"]
        found = tokens[start : start + run["num_tokens"]]
        assert found == case.encode(text[:size])[first : first + run["num_tokens"]]
        assert run["num_tokens"] > 0
        assert start >= end
        end = start + run["num_tokens"]
        num_covered += run["num_tokens"]
        of_piece = (run["raw_file"], run["row"], run["char_start"])
        covered |= {(*of_piece, first + token) for token in range(run["num_tokens"])}
    assert num_covered == manifest.counts[f"{name}.num_tokens"]
    repeated = manifest.counts.get(f"{name}.num_repeated_tokens", 0)
    assert len(covered) == num_covered - repeated


def check_files(folder: Path, manifest: Manifest) -> None:
    assert broken_files(folder, manifest) == []
    assert sorted(manifest.files) == sorted(set(content(folder)) - {"manifest.json"})
    for name, entry in manifest.files.items():
        assert entry.num_bytes > 0
        if name.endswith(".parquet") and name != "index.parquet":
            assert pq.read_metadata(folder / name).num_rows > 0


def test_bytes_do_not_depend_on_how_much_is_done_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    case = CASES["cut documents"]
    attributes = {"exports": EVERY_EXPORT, **case.attributes}
    usual = declare(tmp_path / "usual", case.files, **attributes)
    build(usual)
    small = declare(tmp_path / "small", case.files, **attributes)
    for name, module in list(sys.modules.items()):
        if name.startswith("tokflow.exports.") and hasattr(module, "TOKENS_AT_ONCE"):
            monkeypatch.setattr(module, "TOKENS_AT_ONCE", 8)

    build(small)

    assert content(small.store) == content(usual.store)


def test_bin_is_the_tokens_and_nothing_else(tmp_path: Path):
    _, folder, _ = export(declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["bin"]))

    data = (folder / "train.bin").read_bytes()

    assert data == b"a\0b\0\0\1c\0\0\1"
    assert sorted(content(folder)) == ["index.parquet", "manifest.json", "train.bin"]


def test_bin_of_many_ids_has_four_bytes_per_token(tmp_path: Path):
    (tmp_path / "many.json").write_text(many_ids())
    case = CASES["more than 65,536 ids"]
    _, folder, manifest = export(declare(tmp_path, case.files, exports=["bin"], **case.attributes))

    tokens = np.memmap(folder / "train.bin", dtype=np.uint32, mode="r")

    assert tokens.tolist() == [65_536, 1, 69_999, 70_000, 65_535, 70_000, 7, 8, 70_000]
    assert manifest.details["dtype"] == "<u4"


def test_bin_calls_validation_as_nanogpt_does(tmp_path: Path):
    split = {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}}
    dataset = declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["bin"], split=split)
    _, folder, manifest = export(dataset)

    assert (folder / "val.bin").read_bytes() == b"c\0\0\1"
    assert not (folder / "validation.bin").exists()
    [own] = Export(folder, manifest).read("validation")
    assert own["token_ids"].tolist() == ids("c")


def test_bin_leaves_the_name_val_to_the_part_that_has_it(tmp_path: Path):
    split = {"parts": {"val": {"documents": 1}, "validation": {"start": 1}}}
    dataset = declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["bin"], split=split)
    _, folder, _ = export(dataset)

    assert (folder / "val.bin").read_bytes() == b"a\0b\0\0\1"
    assert (folder / "validation.bin").read_bytes() == b"c\0\0\1"


def test_bin_on_a_full_disk_is_an_error_and_not_a_shorter_file(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["x" * 1_800]}, exports=["bin"])
    build(dataset)
    code = f"""
import resource, signal
from pathlib import Path
from tokflow.build.dataset import make_dataset
from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow_tests.making import declare, parts

dataset = declare(Path({str(tmp_path)!r}), {{}}, exports=["bin"])
[written] = parts(dataset, "bin").values()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3001, 3001))
FORMATS["bin"].write(written, FORMATS["bin"].options(), Path({str(tmp_path)!r}))
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1] == "OSError: [Errno 27] File too large"


def test_pickle_is_lists_of_lists_of_python_numbers(tmp_path: Path):
    _, folder, _ = export(declare(tmp_path, {"a.jsonl": ["abcde"]}, exports=["pickle"]))

    samples = pickle.loads((folder / "train" / "dump-0.pkl").read_bytes())

    assert samples == [[*b"abcd"], [*b"e", EOS, EOS, EOS]]
    assert {type(token) for row in samples for token in row} == {int}
    assert sorted(path.name for path in (folder / "train").iterdir()) == [
        "dump-0.pkl",
        "dump-meta_data.json",
    ]


def test_pickle_says_how_much_is_in_each_dump_and_nothing_else(tmp_path: Path):
    exports = [{"format": "pickle", "sequences_per_file": 2}]
    _, folder, _ = export(declare(tmp_path, {"a.jsonl": ["abcdefghijkl"]}, exports=exports))

    text = (folder / "train" / "dump-meta_data.json").read_text()

    assert json.loads(text) == {
        "dump-0.pkl": {"num_samples": 2, "num_tokens": 8},
        "dump-1.pkl": {"num_samples": 2, "num_tokens": 8},
    }


def test_pickle_pads_with_its_own_id_where_it_has_one(tmp_path: Path):
    exports = [{"format": "pickle", "pad_id": 32_014}]
    _, folder, manifest = export(declare(tmp_path, {"a.jsonl": ["ab"]}, exports=exports))

    samples = read_as_pickled_trainer(folder, manifest, "train")

    assert samples == [[*b"ab", EOS, 32_014]]


def test_rows_that_are_too_short_are_counted_and_the_index_skips_them(tmp_path: Path):
    packing = {"sequence_length": 4, "strategy": "one_document", "min_sample_length": 2}
    _, folder, manifest = export(
        declare(tmp_path, {"a.jsonl": ["", "abc", "defgh"]}, packing=packing, exports=["pickle"])
    )

    samples = read_as_pickled_trainer(folder, manifest, "train")

    assert samples == [[*b"abc", EOS], [*b"defg"], [*b"h", EOS, EOS, EOS]]
    assert manifest.counts == {
        "train.num_sequences": 3,
        "train.num_tokens": 10,
        "train.num_padding": 2,
        "train.num_repeated_tokens": 0,
        "train.num_cut_documents": 1,
        "train.num_truncated_documents": 0,
        "train.num_dropped_documents": 1,
        "train.num_dropped_tokens": 1,
    }
    runs = [
        (run["position"], run["row"], run["token_in_piece"]) for run in index_of(folder, "train")
    ]
    assert runs == [(0, 1, 0), (4, 2, 0), (8, 2, 4)]


def test_parquet_has_the_columns_that_trainers_read(tmp_path: Path):
    _, folder, _ = export(declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["parquet"]))

    table = pq.read_table(folder / "train-00000-of-00001.parquet")

    assert table.schema.field("input_ids").type == pa.list_(pa.int32())
    assert table.schema.field("attention_mask").type == pa.list_(pa.int8())
    assert table.to_pydict() == {
        "input_ids": [[*b"ab", EOS, *b"c"], [EOS, EOS, EOS, EOS]],
        "attention_mask": [[1, 1, 1, 1], [1, 0, 0, 0]],
        "segment_ids": [[1, 1, 1, 2], [1, 0, 0, 0]],
        "position_ids": [[0, 1, 2, 0], [0, 0, 0, 0]],
    }


def test_parquet_shards_and_row_groups_are_as_long_as_asked_for(tmp_path: Path):
    exports = [{"format": "parquet", "sequences_per_file": 5, "sequences_per_group": 2}]
    _, folder, _ = export(declare(tmp_path, {"a.jsonl": ["x" * 27]}, exports=exports))

    shards = {path.name: pq.read_metadata(path) for path in sorted(folder.glob("train*"))}

    assert {name: meta.num_rows for name, meta in shards.items()} == {
        "train-00000-of-00002.parquet": 5,
        "train-00001-of-00002.parquet": 2,
    }
    for meta in shards.values():
        assert all(meta.row_group(group).num_rows <= 2 for group in range(meta.num_row_groups))


def test_a_megabyte_of_parquet_is_counted_as_four_bytes_per_token(tmp_path: Path):
    dataset = declare(
        tmp_path,
        {"a.jsonl": ["x" * 259_999]},
        packing={"sequence_length": 1},
        exports=[{"format": "parquet", "megabytes_per_file": 1, "sequences_per_group": 1_000}],
    )
    _, folder, _ = export(dataset)

    num_rows = [pq.read_metadata(path).num_rows for path in sorted(folder.glob("train-*"))]

    assert num_rows == [250_000, 10_000]


@pytest.mark.parametrize(
    ("compression", "codec"), [("zstd", "ZSTD"), ("snappy", "SNAPPY"), ("none", "UNCOMPRESSED")]
)
def test_parquet_is_compressed_as_asked_for(compression: str, codec: str, tmp_path: Path):
    exports = [{"format": "parquet", "compression": compression}]
    _, folder, _ = export(declare(tmp_path, {"a.jsonl": ["abc"]}, exports=exports))

    group = pq.read_metadata(folder / "train-00000-of-00001.parquet").row_group(0)

    assert {group.column(column).compression for column in range(4)} == {codec}


def test_the_manifest_names_what_a_reader_needs(tmp_path: Path):
    dataset, _, manifest = export(declare(tmp_path, {"a.jsonl": ["abc"]}, exports=["parquet"]))

    details = dict(manifest.details)

    assert len(details.pop("tokenizer_fingerprint")) == 64
    assert details == {
        "format": "parquet",
        "parts": ["train"],
        "dtype": "<u2",
        "vocab_size": 258,
        "eos_id": EOS,
        "bos_id": None,
        "sequence_length": 4,
        "pad_id": EOS,
        "keeps": ["token_ids", "segment_ids", "position_ids", "loss_mask"],
        "names": {"source": "*.jsonl", "columns": ["text"], "tokenizer": "bytes"},
    }
    assert list(manifest.parents) == ["a.jsonl"]
    assert (manifest.dataset, manifest.partition) == (dataset.name, None)


def test_a_pad_id_that_no_token_can_have_is_refused(tmp_path: Path):
    packing = {"sequence_length": 4, "pad_id": 65_536}
    dataset = declare(tmp_path, {"a.jsonl": ["abc"]}, packing=packing, exports=["parquet"])

    [failed] = build_dataset(dataset).failed

    assert str(failed.error) == (
        "packing.pad_id: expected an id from 0 to 65,535, for tokens are uint16, found 65,536; "
        "name an id that the model knows or ignores"
    )


@pytest.mark.parametrize("pad_id", [2**31, -(2**31) - 1])
def test_a_pickle_may_not_pad_with_an_id_that_int32_does_not_hold(pad_id: int, tmp_path: Path):
    with pytest.raises(ConfigError) as raised:
        declare(tmp_path, {"a.jsonl": []}, exports=[{"format": "pickle", "pad_id": pad_id}])

    assert str(raised.value).startswith(
        "test: exports[0].pad_id: expected -2,147,483,648 to 2,147,483,647, an id that the model "
        f"knows or ignores, such as -100, written as int32, found {pad_id}; "
    )


def test_the_largest_pad_id_is_written_by_every_format_of_rows(tmp_path: Path):
    pad_id = 2**31 - 1
    (tmp_path / "many.json").write_text(many_ids())
    tokenizer = CASES["more than 65,536 ids"].attributes["tokenizer"]
    packing = {"sequence_length": 4, "pad_id": pad_id}
    exports = [each for each in EVERY_EXPORT if is_of_rows(each) and each["format"] != "pickle"]
    files = {"a.jsonl": ["w69999"]}

    built = build(declare(tmp_path, files, tokenizer=tokenizer, packing=packing, exports=exports))

    for each in exports:
        made = built.export(each["name"])
        [rows] = Export(made.output.folder, made.manifest).read("train")
        assert rows["token_ids"].tolist() == [[69_999, 70_000, pad_id, pad_id]], each["name"]
    assert len(exports) > 9


def test_there_is_one_padded_row_in_the_whole_dataset(tmp_path: Path):
    files = {f"{number}.jsonl": ["abcde"] for number in range(9)}

    _, _, manifest = export(declare(tmp_path, files, exports=["parquet"]))

    assert manifest.counts == {
        "train.num_sequences": 14,
        "train.num_tokens": 54,
        "train.num_padding": 2,
        "train.num_repeated_tokens": 0,
        "train.num_cut_documents": 9,
        "train.num_truncated_documents": 0,
        "train.num_dropped_documents": 0,
        "train.num_dropped_tokens": 0,
    }


def test_a_pickle_may_pad_with_an_id_that_labels_ignore(tmp_path: Path):
    pickled = {"format": "pickle", "pad_id": -100}
    dataset = declare(tmp_path, {"a.jsonl": ["ab"]}, exports=[pickled])

    folder = build(dataset).export("pickle").output.folder

    rows = pickle.loads((folder / "train/dump-0.pkl").read_bytes())
    assert rows == [[97, 98, 256, -100]]


def test_a_dump_is_as_long_as_asked_for_whatever_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.pickle_.TOKENS_AT_ONCE", 8)
    pickled = {"format": "pickle", "sequences_per_file": 3}
    dataset = declare(tmp_path, {"a.jsonl": ["abcdefghijklmnopqrs"]}, exports=[pickled])

    folder = build(dataset).export("pickle").output.folder

    dumps = [pickle.loads((folder / f"train/dump-{i}.pkl").read_bytes()) for i in range(2)]
    assert [len(dump) for dump in dumps] == [3, 2]
    assert [token for dump in dumps for row in dump for token in row] == ids("abcdefghijklmnopqrs")


def test_a_row_group_holds_fewer_rows_where_they_are_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.parquet_.TOKENS_PER_BATCH", 8)
    dataset = declare(tmp_path, {"a.jsonl": ["abcdefghijklmnopqrs"]}, exports=["parquet"])

    folder = build(dataset).export("parquet").output.folder

    metadata = pq.read_metadata(folder / "train-00000-of-00001.parquet")
    assert [metadata.row_group(i).num_rows for i in range(3)] == [2, 2, 1]


def test_an_export_that_lost_tokens_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(part: Part, options: object, folder: Path) -> None:
        """Write nothing."""

    monkeypatch.setattr(bin_, "FORMAT", replace(bin_.FORMAT, write=write))
    dataset = declare(tmp_path, {"a.jsonl": ["ab"]}, exports=["bin"])

    [failed] = build_dataset(dataset).failed

    assert str(failed.explained) == (
        "export bin: train: expected 3 tokens, as in the split, found 0 written and 0 dropped; "
        "run `tokflow verify` on the dataset, and delete what is damaged"
    )
