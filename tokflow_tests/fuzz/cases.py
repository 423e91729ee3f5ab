"""A random case of one integer seed: raw files, the YAML, and what is asked of what it makes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tokflow_tests.fuzz.chats import add_chats, is_chat, may_be_bad
from tokflow_tests.fuzz.exports import is_stream, random_export, some
from tokflow_tests.fuzz.model import Documents, RawFile, documents_of, form_of
from tokflow_tests.fuzz.raw_files import FORMATS, random_file
from tokflow_tests.fuzz.references import NAMES, Reference, open_reference

SEEDS_PER_TOKENIZER = 25
"""Neighbouring seeds have one tokenizer, for its engine takes a second to open."""

STEMS = ("a", "b", "c", "part-0", "part-10", "part-2", "ä ö", "[x]", "q'u\"o,te", "sub/a",
         "sub/z/b", "日本", "x.y", "UPPER", "a b", "100%", "#1")  # fmt: skip

COLUMNS: tuple[tuple[str, ...], ...] = (
    ("text",), ("text",), ("content",), ("meta.body",), ("title", "body"), ("meta.body", "text"),
)  # fmt: skip

PART_NAMES = (
    ("train", "validation"), ("train", "validation"), ("train", "val", "test"), ("train",),
    ("train", "validation", "test"), ("train-b", "train", "a_1"), ("validation", "train", "val"),
)  # fmt: skip


FORMS = ("characters", "characters", "cut", "cut", "documents", "fraction", "hash_fraction",
         "files")  # fmt: skip
"""Of parts; cut is characters with boundary: character."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Everything that one seed decides."""

    seed: int
    tokenizer: str
    attributes: dict[str, Any]
    """The YAML."""
    files: tuple[RawFile, ...]
    later: tuple[RawFile, ...] | None
    """The raw files of a second build in the same store: some gone, new or changed."""
    is_command_line: bool
    """Built by the command, in a process of its own."""


def tokenizer_of(seed: int) -> str:
    """Return the tokenizer of a case."""
    return Random(f"tokenizer {seed // SEEDS_PER_TOKENIZER}").choice(NAMES)


def make_case(seed: int, folder: Path) -> Case:
    """Return the case of a seed; `folder` holds the tokenizers of the session."""
    random = Random(seed)
    reference = open_reference(tokenizer_of(seed), folder)
    documents = _documents(random)
    is_of_bytes = reference.fields["kind"] == "bytes"
    if is_of_bytes and random.random() < 0.3 and "join" not in documents:
        add_chats(random, documents)
    _add_transform(random, documents)
    files = _files(random, documents)
    if all(file.records is not None for file in files) and not is_chat(documents):
        documents |= some(random, 0.2, keep_columns=[[name] for name in documents["columns"]])
    columns = documents.pop("columns")
    read = {file.key: documents_of(file, documents) for file in files}
    split = _split(random, read) if random.random() < 0.85 else None
    if split and is_chat(documents):
        split.pop("boundary", None)
    tokenizer = _tokenizer(random, reference)
    packing = _packing(random)
    parts = list(split["parts"]) if split else ["train"]
    strata = _strata(random, is_total=form_of(split).endswith("fraction"))
    of_strata = [f"{part}.{of}" for part in parts for of in strata]
    exports = _exports(random, tokenizer, of_strata or parts)
    _add_packings(random, packing, exports, [*of_strata, *parts])
    attributes = {
        "name": "fuzz",
        "raw": {"files": "raw/**/*"},
        "documents": documents,
        "tokenizer": tokenizer,
        **_select(random, sorted(read)),
        **({"strata": strata} if strata else {}),
        **({"split": split} if split else {}),
        "packing": packing,
        **_shuffle(random),
        "exports": exports,
    }
    return Case(
        seed=seed,
        tokenizer=tokenizer_of(seed),
        attributes=attributes,
        files=tuple(files),
        later=_later(random, files, {**documents, "columns": columns}, split)
        if random.random() < 0.08
        else None,
        is_command_line=random.random() < 0.01,
    )


def _documents(random: Random) -> dict[str, Any]:
    """Return how documents are read, and under `columns` what the files have."""
    columns = random.choice(COLUMNS)
    config: dict[str, Any] = {"columns": columns, "quoting": "double"}  # of tsv too
    if len(columns) > 1:
        config["text"] = list(columns)
        config |= some(random, 0.5, join=("\n\n", "", " ", "\u2028é"))
    elif columns != ("text",):
        config["text"] = columns[0]
    if random.random() < 0.25:
        config |= {"on_bad_document": "reject", **some(random, 0.1, max_rejects=(0, 1, 3))}
    if random.random() < 0.25:
        config["limit"] = _limit(random)
    config |= some(random, 0.3, document_per=("line", "separator", "file"))
    if config.get("document_per") == "separator":
        config["separator"] = random.choice(("---", "\n\n", "\r\n", "aa", "é", "\n"))
    return config


def _limit(random: Random) -> dict[str, Any]:
    """Return where the reading ends, of each file or of all; empty documents may not count."""
    of_tokens = {"tokens": (1, 20, 100, 1_000)}
    choices = {"documents": (1, 2, 5), "characters": (1, 20, 100), **of_tokens}
    names = random.sample([*choices], random.choice((1, 1, 2, 3)))
    limit = some(random, 1, **{name: choices[name] for name in names})
    limit |= some(random, 0.3, scope=("dataset",))
    return limit | (some(random, 0.3, count_empty=(False,)) if "documents" in limit else {})


def _add_transform(random: Random, config: dict[str, Any]) -> None:
    """Let a function make the documents."""
    if "join" in config or random.random() < 0.8 or is_chat(config):
        return
    name = random.choice(("some", "words")) if config.get("on_bad_document") else "some"
    if isinstance(config.get("text"), list) or random.random() < 0.2:
        config["text"], name = list(config["columns"]), "joined"
    config["transform"] = f"tokflow_tests.fuzz.functions:{name}"
    config |= some(random, 0.2, transform_version=(1, "b"))


def _files(random: Random, config: Mapping[str, Any]) -> list[RawFile]:
    is_rejecting = config.get("on_bad_document") == "reject"
    is_of_records = "transform" in config and isinstance(config.get("text"), list)
    has_columns = "join" in config or is_of_records or is_chat(config)
    formats = [f for f in FORMATS if f != "txt" or not has_columns]
    files = []
    for stem in random.sample(STEMS, random.choice((1, 1, 2, 2, 3, 5))):
        has_bad = random.random() < (0.6 if is_rejecting else 0.02) and not is_of_records
        has_bad = has_bad and (not is_chat(config) or may_be_bad(config))
        file_format = random.choice(formats)
        files.append(random_file(random, stem, file_format, config, has_bad=has_bad))
    return files


def _later(
    random: Random,
    files: Sequence[RawFile],
    config: Mapping[str, Any],
    split: dict[str, Any] | None,
) -> tuple[RawFile, ...]:
    """Return the files of a second build: some gone, one new; those that a part names stay."""
    stems = [stem for stem in STEMS if not any(file.key.startswith(stem) for file in files)]
    new = random_file(random, random.choice(stems), "jsonl", config, has_bad=False)
    kept = [file for file in files if random.random() < 0.7 or form_of(split) == "files"]
    return (*kept, new)


def _tokenizer(random: Random, reference: Reference) -> dict[str, Any]:
    config = {**reference.fields, **some(random, 0.2, eos=("none",), eos_of_empty=(False,))}
    config |= some(random, 0.1, engine=("reference",))
    if reference.bos_id is not None:
        config |= some(random, 0.3, bos=("first",))
    if reference.special_tokens:
        config |= some(random, 0.3, special_tokens_in_text=("control",))
    if config["kind"] == "file":
        config |= some(random, 0.1, bos_token=(config["eos_token"],))
    return config


def _rules(random: Random, *more: str) -> list[str]:
    """Return one to three expressions about a document."""
    rules = [f"num_chars >= {random.randrange(12)}", f"num_tokens <= {random.randrange(3, 40)}",
             "num_bytes == num_chars", *more]  # fmt: skip
    return random.sample(rules, random.choice((1, 1, 2, 3)))


def _select(random: Random, keys: Sequence[str]) -> dict[str, str]:
    """Return what of one case in five is selected."""
    rules = _rules(random, f"file != {random.choice(keys)!r}")
    return some(random, 0.2, select=[f" {joint} ".join(rules) for joint in ("and", "or")])


def _strata(random: Random, *, is_total: bool) -> dict[str, str]:
    """Return the strata of one case in six; with `is_total` every document is in one."""
    if random.random() < 5 / 6:
        return {}
    chosen = [*_rules(random)[:2], *["True"] * (is_total or random.random() < 0.5)]
    return dict(zip(("a", "b-1", "rest"), chosen, strict=False))


def _split(random: Random, read: Mapping[str, Documents]) -> dict[str, Any]:
    names = random.choice(PART_NAMES)
    form = random.choice(FORMS)
    split = some(random, 0.5, scope=("file", "dataset"))
    if form in ("fraction", "hash_fraction"):
        shares = [random.random() for _ in names]
        total = sum(shares) * random.choice((1, 1, 1.3))
        parts = {name: {form: round(s / total, 3)} for name, s in zip(names, shares, strict=True)}
        if sum(part[form] for part in parts.values()) > 1:
            parts[names[0]][form] = max(0.0, round(parts[names[0]][form] - 0.01, 3))
        split["seed"] = random.randrange(5)
    elif form == "files":
        parts = _parts_by_files(random, names, sorted(read))
    else:
        if form == "cut":
            split["boundary"] = "character"
        parts = _ranges(random, names, "documents" if form == "documents" else "characters",
                        _edges(read, form, split.get("scope", "file")))  # fmt: skip
    return {**split, "parts": parts}


def _parts_by_files(random: Random, names: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """Return parts that name single files, or one part of all; each has a file."""
    if len(names) == 1 or len(keys) < len(names):
        return {names[0]: {"files": "*"}}
    chosen = random.sample(keys, len(names))
    patterns = ["".join(f"[{c}]" if c in "*?[" else c for c in key) for key in chosen]
    return {name: {"files": pattern} for name, pattern in zip(names, patterns, strict=True)}


def _edges(read: Mapping[str, Documents], form: str, scope: str) -> list[int]:
    """Return positions where a cut is interesting: at the edges of documents and beside them."""
    edges, position = {0}, 0
    for key in sorted(read):
        position = 0 if scope == "file" else position
        for _, text in read[key].accepted:
            position += 1 if form == "documents" else len(text)
            edges.add(position)
    return sorted(edges)


def _ranges(random: Random, names: Sequence[str], unit: str, edges: list[int]) -> dict[str, Any]:
    """Return parts that do not overlap, of which some touch, are empty or run to the end."""
    starts = []
    for _ in range(2 * len(names)):
        at = random.choice(edges) + random.choice((0, 0, -1, 1, random.randrange(20)))
        starts.append(max(0, random.choice((at, random.randrange(edges[-1] + 2)))))
    starts.sort()
    parts: dict[str, Any] = {}
    order = random.sample(names, len(names))
    for number, name in enumerate(order):
        start = starts[2 * number] if number else random.choice((0, starts[0]))
        stop = starts[2 * number + 1]
        if random.random() < 0.5 and number + 1 < len(names):
            stop = starts[2 * number + 2]  # touches the next
        parts[name] = {"start": start, unit: stop - start}
        if number + 1 == len(names) and random.random() < 0.5:
            del parts[name][unit]
    if unit == "documents" and not any(unit in part for part in parts.values()):
        parts[order[-1]][unit] = 10**6
    return {name: parts[name] for name in names}


def _packing(random: Random) -> dict[str, Any]:
    length = random.choice((1, 2, 3, 4, 7, 8, 16, 16, 33, 64, 64, 200))
    config = {
        "strategy": random.choice(STRATEGIES),
        "sequence_length": length,
        **some(random, 0.25, label_token=(True,), overlong=("truncate", "drop"), tail=("drop",)),
        **some(random, 0.25, truncation_side=SIDES, padding_side=SIDES, overlap=range(length)),
        **some(random, 0.25, min_sample_length=range(1, length + 1)),
        **some(random, 0.3, pad_id=(0, 1, 255, 256, 65_535)),
    }
    if "overlong" in config and config["strategy"] != "concat":
        config.pop("overlap", None)
    if config["strategy"] == "pool":
        config["pool_size"] = random.choice((1, 2, 5, 10_000))
    return config


STRATEGIES = ("concat", "concat", "greedy", "first_fit", "best_fit", "pool", "one_document")
SIDES = ("left", "right")

OF_ANY_PACKING = {"label_token": False, "overlong": "split", "overlap": 0, "tail": "pad",
                  "min_sample_length": 1, "pad_id": None, "pool_size": 10_000,
                  "padding_side": "right", "truncation_side": "right"}  # fmt: skip


def _add_packings(
    random: Random, packing: dict[str, Any], exports: list[dict[str, Any]], parts: Sequence[str]
) -> None:
    """Let some parts and exports have fields of packing of their own: few, or all."""

    def changes() -> dict[str, Any]:
        if random.random() < 0.3:
            return {"tail": random.choice(("pad", "drop")), "pad_id": random.choice((None, 0, 9))}
        return {**OF_ANY_PACKING, **_packing(random)}

    def of_parts() -> dict[str, Any]:
        chosen = random.sample(parts, random.randint(1, len(parts)))
        return {"parts": {part: changes() for part in chosen}}

    if random.random() < 0.2:
        packing |= of_parts()
    for export in exports:
        if not is_stream(export) and random.random() < 0.25:
            export["packing"] = random.choice((changes(), of_parts(), {**changes(), **of_parts()}))


def _shuffle(random: Random) -> dict[str, Any]:
    """Return the section of a shuffle, which two of five cases have."""
    orders = some(random, 0.25, documents=("file", "dataset"), sequences=(True,))
    return {"shuffle": {"seed": random.randrange(3), **orders}} if orders else {}


def _exports(
    random: Random, tokenizer: Mapping[str, Any], parts: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one to three exports, of formats that put EOS before documents where they have one."""
    has_first = tokenizer.get("eos") != "none" or tokenizer.get("bos") == "first"
    drawn = [
        random_export(random, parts=parts, has_first=has_first)
        for _ in range(random.choice((1, 2, 2, 3)))
    ]
    return [{**entry, "name": f"{entry['format']}-{n}"} for n, entry in enumerate(drawn)]
