"""Every format: what is read is what was written. Of one stream and one format of rows: every token
is counted, and leads back to its text."""

import functools
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.audit.verify.export import verify_export
from tokflow.errors import CorruptOutputError, MissingOutputError
from tokflow.exports import FORMATS, Export, FileFacts, Layout, Part
from tokflow.exports.format import Arrays, Portion
from tokflow.exports.formats import bin as bin_
from tokflow.exports.reading import open_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.run import build_dataset
from tokflow.sequences.segments import Sequences
from tokflow.store.listed_files import broken_files
from tokflow.store.manifest import Manifest, read_manifest
from tokflow_tests.chats import chat, chat_dataset, write_chats
from tokflow_tests.exports.exporting import MANY_IDS, export, read
from tokflow_tests.fuzz import readers as plain_readers
from tokflow_tests.outputs import content, index_of, parts, stored
from tokflow_tests.tiny import EOS, build, declare, ids, many_ids
from tokflow_tests.waiting import wait_until

_TRL = {"columns": ["seq_lengths", "labels"], "padding": False}
_COLUMNS = {"columns": ["attention_mask", "position_ids", "labels", "seq_lengths"]}
_FIELDS = {"a": "position_ids", "tokens": "token_ids", "c": "loss_mask", "b": "segment_ids"}

OPTIONS: dict[str, dict[str, Any]] = {
    "archai": {},
    "arrow": {},
    "arrow-batches-of-2": {"padding": "none", "shard_size": 340, "sequences_per_batch": 2},
    "arrow-zstd": {"compression": "zstd"},
    "bin": {},
    "datatrove": {},
    "datatrove-files-of-5": {"shard_size": 10},
    "easydel": {},
    "easydel-in-files": {
        "attention_mask": False,
        "position_ids": False,
        "padding": "longest",
        "shards": 3,
        "sequences_per_group": 1,
    },
    "hf_dataset": {},
    "hf_dataset-of-trl": {**_TRL, "shards": 2},
    "jsonl": {},
    "jsonl-gz-in-files": {**_COLUMNS, "padding": False, "shards": 3, "compression": "gz"},
    "jsonl-zst-without-columns": {"columns": [], "compression": "zst"},
    "lance": {},
    "lance-rows": {"layout": "sequences"},
    "lance-files-of-5": {"shard_size": 40},
    "lance-rows-in-files": {"layout": "sequences", "shards": 3},
    "levanter": {},
    "litdata": {},
    "litdata-chunks-of-6": {"block_size": 3, "shard_size": 16},
    "litdata-zstd": {"block_size": 4, "shards": 3, "compression": "zstd"},
    "llmc": {},
    "llmc-files-of-5": {"shard_size": 10, "prefix": "x"},
    "mds": {},
    "mds-of-all-fields": {"columns": _FIELDS, "shards": 2},
    "mds-small-and-packed": {"shard_size": 400, "compression": "zstd"},
    "megatron": {},
    "megatron-named": {"prefix": "x.1", "key": "content", "loss_mask": True},
    "modalities": {},
    "modalities-files-of-5": {"shard_size": 10},
    "npy": {},
    "npy-eos-first": {"eos": "first", "prefix": "x"},
    "npy-files-of-5": {"shard_size": 10},
    "npy-rows": {"layout": "sequences"},
    "npy-rows-in-files": {"layout": "sequences", "shards": 2},
    "olmo": {},
    "olmo-in-files": {"shards": 3},
    "parquet": {},
    "parquet-in-files": {"shards": 3},
    "parquet-groups-of-1": {
        "padding": "none",
        "columns": ["segment_ids"],
        "sequences_per_group": 1,
    },
    "parquet-of-bridge": {
        "padding": "none",
        "columns": ["next_loss_mask", "seq_start_id"],
        "rename": {"next_loss_mask": "of_next"},
    },
    "pickle": {},
    "pickle-files-of-2": {"shard_size": 30},
    "webdataset": {},
    "webdataset-json-files-of-2": {"shard_size": 2_096, "compression": "none"},
}
EXPORTS = {
    name: {"name": name, "format": name.partition("-")[0], **options}
    for name, options in OPTIONS.items()
}
EVERY_EXPORT = [*EXPORTS.values()]

ANY = ("npy", "parquet")
"""A stream and rows that keep every field: what depends on no format is checked of them."""

DIVIDED = ("files-of", "in-files", "chunks-of", "-zstd", "-packed", "-named")
EXPORTS_OF_KINDS = {
    name: of for name, of in EXPORTS.items() if not any(mark in name for mark in DIVIDED)
}
"""Every format, and every kind of its content; not as several files or compressed, too."""


CUT_AT = [0, 5, 11]


def cut_into(*names: str) -> dict[str, Any]:
    edges = zip(names, CUT_AT, [*CUT_AT[1:], 1_000], strict=True)
    parts = {name: {"start": start, "characters": stop - start} for name, start, stop in edges}
    return {"boundary": "character", "parts": parts}


@dataclass(frozen=True, kw_only=True)
class Case:
    files: dict[str, list[str]]
    attributes: dict[str, Any] = field(default_factory=dict)
    edges: list[int] = field(default_factory=list)
    """Characters of each file at which a document is cut."""
    encode: Callable[[str], list[int]] = ids
    depends_on_format: bool = True

    @property
    def exports(self) -> list[dict[str, Any]]:
        """Every export but those that need an EOS where documents have none, or other parts; of
        a case of packing those of rows, and of one that depends on no format ANY alone."""
        has_eos = self.attributes.get("tokenizer", {}).get("eos") != "none"
        names = {*self.attributes.get("split", {}).get("parts", ["train"])}
        return [
            export
            for export in EVERY_EXPORT
            if (self.depends_on_format or export["name"] in ANY)
            and (has_eos or not layout_of(export).eos_first)
            and (set(self.attributes) != {"packing"} or is_of_rows(export))
            and names <= {*(FORMATS[export["format"]].part_names or names)}
        ]


def is_of_rows(export: dict[str, Any]) -> bool:
    return layout_of(export).made_of == "sequences"


def layout_of(export: dict[str, Any]) -> Layout:
    options = {name: value for name, value in export.items() if name not in ("format", "name")}
    format_ = FORMATS[export["format"]]
    return format_.layout(format_.options(**options))


def word_ids(text: str) -> list[int]:
    return [*(int(word[1:]) for word in text.split()), 70_000]


def files(*texts: str | None) -> dict[str, list[str]]:
    """Return raw files of texts with | between them; of None without a document."""
    return {
        f"{name}.jsonl": [] if of is None else of.split("|")
        for name, of in zip("abcd", texts, strict=False)
    }


def parted(**parts: dict[str, int]) -> dict[str, Any]:
    return {"split": {"parts": {name.replace("_", "-"): of for name, of in parts.items()}}}


def packed(strategy: str = "concat", sequence_length: int = 4, **fields: Any) -> dict[str, Any]:
    named = {"strategy": strategy, "sequence_length": sequence_length}
    return {"packing": {**named, **fields}}


TWO = parted(train={"documents": 2}, test={"start": 2})
OF_NO_TOKENS = {"kind": "bytes", "eos": "none"}
LEFT = {"overlong": "truncate", "padding_side": "left", "truncation_side": "left"}
SIDE_BY_SIDE = files("ab|cdefg|h|", "ijk", "l|mn")

CASES = {
    "several files": Case(
        files=files("abc|de|fghijklmnopqrst", "uvwxyzA", "m|n"),
        attributes=parted(train={"documents": 1}, test={"start": 1}),
    ),
    "an empty file and empty documents": Case(files=files(None, "|ab|", "||||||")),
    "documents of no tokens": Case(
        files=files("|abcde||f", ""),
        attributes={"tokenizer": OF_NO_TOKENS, **TWO},
        encode=lambda text: ids(text, eos=False),
    ),
    "no tokens at all": Case(files=files(None)),
    "names that begin alike, and a part without tokens": Case(
        files=files("abcdef|ghi"),
        attributes=parted(
            train={"documents": 1}, train_b={"start": 1, "documents": 1}, none={"start": 9}
        ),
    ),
    "cut documents": Case(
        files=files("ab||😀defghijklmn|opq", "xyzxyzxyzxyz"),
        attributes={"split": cut_into("train", "validation", "test")},
        edges=CUT_AT,
    ),
    "the tail dropped": Case(
        files=files("abcdef", "g|hi"), attributes=packed(tail="drop"), depends_on_format=False
    ),
    "less than a row, dropped": Case(files=files("a"), attributes=packed(tail="drop")),
    "one document in a row": Case(
        files=files("a|bcdef||ghi", "jk|lmnopqr"), attributes=packed("one_document", pad_id=0)
    ),
    "rows that repeat and rows that are too short": Case(
        files=files("a|bcdefghij||klm", "no|pqrstuv"),
        attributes=packed("one_document", label_token=True, overlap=1, min_sample_length=3),
        depends_on_format=False,
    ),
    "empty documents that are not ended": Case(
        files=files("|ab||cdefg", "", "h|", ""),
        attributes={"tokenizer": {"kind": "bytes", "eos_of_empty": False}},
        encode=lambda text: ids(text) if text else [],
        depends_on_format=False,
    ),
    "documents side by side": Case(
        files=SIDE_BY_SIDE, attributes=packed("best_fit"), depends_on_format=False
    ),
    "rows padded on the left, of documents truncated there": Case(
        files=SIDE_BY_SIDE, attributes=packed("greedy", 5, **LEFT)
    ),
    "a stream that overlaps": Case(
        files=SIDE_BY_SIDE,
        attributes=packed(overlap=2, overlong="truncate"),
        depends_on_format=False,
    ),
    "more than 65,536 ids": Case(
        files=files("w65536 w1 w69999|w65535", "w7 w8"),
        attributes={"tokenizer": MANY_IDS},
        encode=word_ids,
    ),
}


WITH_EVERY_OPTION = "several files"


def exports_of(case_name: str) -> list[dict[str, Any]]:
    """Return every export that a case can have, or of each format one, whose options are other
    ones from case to case: so each case meets each format, and all options meet several cases."""
    possible = CASES[case_name].exports
    if case_name == WITH_EVERY_OPTION:
        return possible
    of_formats: dict[str, list[dict[str, Any]]] = {}
    for each in possible:
        of_formats.setdefault(each["format"], []).append(each)
    number = [*CASES].index(case_name)
    chosen = [of_one[number % len(of_one)] for of_one in of_formats.values()]
    return [*chosen, *(of for of in possible if of["name"] in ANY and of not in chosen)]


@pytest.fixture(scope="module")
def built_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Dataset]:
    """Return the dataset of a case, built with its exports."""

    @functools.cache
    def build_case(name: str) -> Dataset:
        case, folder = CASES[name], tmp_path_factory.mktemp("built")
        (folder / "many.json").write_text(many_ids())
        dataset = declare(folder, case.files, exports=exports_of(name), **case.attributes)
        build(dataset)
        return dataset

    return build_case


@pytest.mark.parametrize(
    ("case_name", "name"), [(case, export["name"]) for case in CASES for export in exports_of(case)]
)
def test_every_format_keeps_its_contract(
    case_name: str, name: str, built_of: Callable[[str], Dataset]
):
    built = built_of(case_name)
    folder = (built.folder / "exports" / name / "latest").resolve()

    check_files(folder, of_parts := parts(built, name), EXPORTS[name])

    if case_name == WITH_EVERY_OPTION:
        assert verify_export(stored(folder), [*of_parts.values()]) == []


@pytest.mark.parametrize("case_name", CASES)
def test_every_token_is_counted_and_leads_back_to_its_text(
    case_name: str, built_of: Callable[[str], Dataset]
):
    built = built_of(case_name)
    for name in {*ANY} & {each["name"] for each in exports_of(case_name)}:
        folder = (built.folder / "exports" / name / "latest").resolve()
        manifest, of_parts = read_manifest(folder), parts(built, name)
        for part in of_parts.values():
            tokens = fields_of(part, manifest)["token_ids"].ravel().tolist()
            check_accounting(manifest, part)
            check_index(folder, manifest, part.name, tokens, CASES[case_name])
        assert verify_export(stored(folder, manifest), [*of_parts.values()]) == []


def check_files(folder: Path, of_parts: dict[str, Part], export: dict[str, Any]) -> None:
    """Compare what is in the files of an export with its parts: as our reader has it, and a plain
    one."""
    manifest = read_manifest(folder)
    for part in of_parts.values():
        check_read(folder, manifest, part)
        check_bytes(folder, part, [*of_parts], export, fields_of(part, manifest))
    assert broken_files(folder, manifest) == []
    assert sorted(manifest.files) == sorted(set(content(folder)) - {"_tokflow/manifest.json"})
    assert all(entry.num_bytes > 0 for entry in manifest.files.values())
    if not any(num for name, num in manifest.counts.items() if name.endswith(".num_tokens")):
        assert [*manifest.files] == ["_tokflow/index.parquet"]


def check_bytes(
    folder: Path, part: Part, names: list[str], export: dict[str, Any], fields: Arrays
) -> None:
    """Read a part with the plain reader of the format that the fuzz has; rows may be unpadded."""
    prefix = {"prefix": part.splits[0].manifest.dataset} if export["format"] == "llmc" else {}
    plain = plain_readers.Export(
        folder=folder,
        options={**prefix, **export},
        part=part.name,
        parts=names,
        dtype=part.dtype.str,
    )
    found = plain_readers.read_part(plain)
    if isinstance(found, plain_readers.Stream):
        assert found.tokens == fields["token_ids"].tolist()
        lengths = [length for _, of_file in found.files for length in of_file or []]
        if lengths and "offsets" in fields:
            assert lengths == np.diff(fields["offsets"]).tolist()
        return
    for name, values in fields.items():
        for row, expected in zip(found.fields.get(name, []), values.tolist(), strict=False):
            assert row == expected[: len(row)], name
            assert len(row) == len(expected) or export.get("padding", "max") != "max"
    assert len(found.fields.get("token_ids", [])) == len(fields["token_ids"])
    if "labels" in found.fields:
        labels = np.where(fields["loss_mask"], fields["token_ids"].astype(int), -100).tolist()
        for row, expected in zip(found.fields["labels"], labels, strict=True):
            assert row == expected[: len(row)]


def check_read(folder: Path, manifest: Manifest, part: Part) -> None:
    """Read a part with our own reader and compare every field that the format keeps."""
    if not Export(stored(folder, manifest)).is_read:
        return
    own = read_whole(folder, manifest, part.name)
    if own is None:
        assert part.num_tokens == manifest.counts[f"{part.name}.num_dropped_tokens"]
        return
    expected = fields_of(part, manifest)
    assert tuple(own) == tuple(
        n for n in Export(stored(folder, manifest)).layout.keeps if n in expected
    )
    for name, values in own.items():
        assert values.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


READ = [name for name in EXPORTS if FORMATS[EXPORTS[name]["format"]].is_read]


@pytest.mark.parametrize("name", READ)
def test_a_portion_read_alone_by_any_thread_is_its_stretch_of_the_part(
    name: str, built_of: Callable[[str], Dataset], monkeypatch: pytest.MonkeyPatch
):
    folder = (built_of("several files").folder / "exports" / name / "latest").resolve()
    manifest = read_manifest(folder)
    export, whole = Export(stored(folder, manifest)), read_whole(folder, manifest, "train")
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("tokflow.exports.") and hasattr(module, "TOKENS_AT_ONCE"):
            monkeypatch.setattr(module, "TOKENS_AT_ONCE", 8)

    portions = export.portions("train")
    with ThreadPoolExecutor(4) as threads:
        alone = [*threads.map(Portion.read, reversed(portions))][::-1]

    def is_held() -> bool:
        held = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
        return any(path.is_relative_to(folder) for path in held)

    if any(portion.is_mapped for portion in portions):
        wait_until(lambda: not is_held())  # Arrow's threads close a file a moment after it is read
    assert sum(portion.num for portion in portions) == len(whole["token_ids"])
    for portion, fields in zip(portions, alone, strict=True):
        decoded = [of for of in fields if fields[of].flags.writeable and of != "offsets"]
        assert decoded == [] or not portion.is_mapped
    for kept, values in joined(alone).items():
        np.testing.assert_array_equal(values, whole[kept], err_msg=kept)
    again = read_whole(folder, manifest, "train")
    assert {field: values.tolist() for field, values in again.items()} == {
        field: values.tolist() for field, values in whole.items()
    }


@pytest.mark.parametrize("name", [name for name in READ if name in EXPORTS_OF_KINDS])
def test_an_export_that_is_deleted_is_read_on_or_is_an_error_that_names_it(
    name: str, built_of: Callable[[str], Dataset], tmp_path: Path
):
    whole = (built_of("several files").folder / "exports" / name / "latest").resolve()
    folder = shutil.copytree(whole, tmp_path / "copy")
    portions = open_export(folder).portions("train")
    shutil.rmtree(folder)

    found = []
    for portion in portions:
        try:
            portion.read()
        except (MissingOutputError, CorruptOutputError) as error:
            found.append(error.where)

    assert all(str(folder) in where for where in found)


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
        exports=[*EXPORTS_OF_KINDS.values()],
    )  # fmt: skip
    build(dataset)
    return dataset


@pytest.mark.parametrize("name", EXPORTS_OF_KINDS)
def test_every_format_keeps_the_loss_mask_of_chats_or_says_that_it_lost_it(
    name: str, built_chats: Dataset
):
    folder = (built_chats.folder / "exports" / name / "latest").resolve()
    manifest = read_manifest(folder)

    keeps = "loss_mask" in Export(stored(folder, manifest)).layout.keeps
    for part in (of_parts := parts(built_chats, name)).values():
        num_loss_tokens = sum(int(run.sum()) for run in part.stream_loss_mask())
        if Export(stored(folder, manifest)).layout.made_of == "sequences":
            num_loss_tokens = sum(int(rows.loss_mask.sum()) for rows in part.sequences())
        assert manifest.counts.get(f"{part.name}.num_loss_tokens") == (
            num_loss_tokens if keeps else None
        )
        assert num_loss_tokens > 0
    assert manifest.details.get("lost") == (None if keeps else ["loss_mask"])
    check_files(folder, of_parts, EXPORTS[name])
    assert verify_export(stored(folder, manifest), list(of_parts.values())) == []


def fields_of(part: Part, manifest: Manifest) -> dict[str, np.ndarray]:
    """Return what the files of an export must hold of a part, whole."""
    layout = Export(stored(Path(), manifest)).layout
    if layout.made_of == "sequences":
        rows = list(part.sequences(100))
        empty = np.zeros((0, part.sequence_length), dtype=part.dtype)
        if not rows:
            return {"token_ids": empty}
        joined = Sequences.joined(rows)
        of_chats = ("labels",) if manifest.details["format"] == "easydel" else ()
        columns = {*layout.columns, *(of_chats if part.has_loss_mask else ())}
        if {"labels", "next_loss_mask"} & columns:  # which tell nothing of first tokens
            is_loss = joined.loss_mask & (joined.position_ids != 0)
            joined = replace(joined, loss_mask=is_loss)
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
    arrays = read(folder, manifest, part)
    return joined(arrays) if arrays else None


def joined(arrays: list[Arrays]) -> Arrays:
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
        padding = manifest.recipe.config["options"].get("padding", True)
        num_padding = slots - counts[f"{name}.num_tokens"] if padding is True else 0
        assert counts[f"{name}.num_padding"] == num_padding or padding == "longest"
        assert Export(stored(Path(), manifest)).num_positions(name) == slots


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


def test_bytes_do_not_depend_on_how_much_is_done_at_once(
    built_of: Callable[[str], Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usual, case = built_of("cut documents"), CASES["cut documents"]
    small = declare(tmp_path, case.files, exports=exports_of("cut documents"), **case.attributes)
    for name, module in list(sys.modules.items()):
        if name.startswith("tokflow.exports.") and hasattr(module, "TOKENS_AT_ONCE"):
            monkeypatch.setattr(module, "TOKENS_AT_ONCE", 8)

    build(small)

    assert content(small.store.root) == content(usual.store.root)


def test_the_manifest_names_what_a_reader_needs(tmp_path: Path):
    _, manifest = export(declare(tmp_path, {"a.jsonl": ["abc"]}, exports=["parquet"]))

    details = dict(manifest.details)

    assert [*details.pop("shards")] == ["train"]
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
        "names": {"source": "raw/*.jsonl", "columns": ["text"], "tokenizer": "bytes"},
    }
    assert list(manifest.recipe.parents) == ["a.jsonl"]
    assert (manifest.dataset, manifest.partition) == ("tiny", None)


def test_a_pad_id_that_no_token_can_have_is_refused(tmp_path: Path):
    packing = {"sequence_length": 4, "pad_id": 65_536}
    dataset = declare(tmp_path, {"a.jsonl": ["abc"]}, packing=packing, exports=["parquet"])

    [failed] = build_dataset(dataset).failed

    assert (failed.error.where, failed.error.found) == ("packing.pad_id", "65,536")


def test_the_largest_pad_id_is_written_by_every_format_of_rows(tmp_path: Path):
    pad_id = 2**31 - 1
    (tmp_path / "many.json").write_text(many_ids())
    packing = {"sequence_length": 4, "pad_id": pad_id}
    exports = [each for each in EVERY_EXPORT if is_of_rows(each) and each["format"] != "pickle"]
    files = {"a.jsonl": ["w69999"]}

    built = build(declare(tmp_path, files, tokenizer=MANY_IDS, packing=packing, exports=exports))

    for each in exports:
        made = built.export(each["name"])
        [rows] = read(made.output.folder, made.manifest)
        assert rows["token_ids"].tolist() == [[69_999, 70_000, pad_id, pad_id]], each["name"]
    assert len(exports) > 9


def test_there_is_one_padded_row_in_the_whole_dataset(tmp_path: Path):
    files = {f"{number}.jsonl": ["abcde"] for number in range(9)}

    _, manifest = export(declare(tmp_path, files, exports=["parquet"]))

    counts = {name.removeprefix("train."): num for name, num in manifest.counts.items() if num}
    assert counts == {
        "num_sequences": 14,
        "num_tokens": 54,
        "num_padding": 2,
        "num_cut_documents": 9,
    }


def test_an_export_that_lost_tokens_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(part: Part, options: object, folder: Path) -> list[FileFacts]:
        """Write nothing."""
        return [{}]

    monkeypatch.setattr(bin_, "FORMAT", replace(bin_.FORMAT, write=write))
    dataset = declare(tmp_path, {"a.jsonl": ["ab"]}, exports=["bin"])

    [failed] = build_dataset(dataset).failed

    assert failed.error.where == "export bin: train"
    assert failed.error.found == "0 written and 0 dropped"
