"""Random options of every export format."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Options = dict[str, Any]


def random_export(random: Random, *, parts: Sequence[str], has_first: bool) -> Options:
    """Return a format that can hold these parts, with random options."""
    while True:
        name = random.choice(list(FORMATS))
        options = {"format": name, **FORMATS[name](random)}
        if has_parts(options, parts) and (has_first or not is_eos_first(options)):
            return options


def has_parts(options: Options, parts: Sequence[str]) -> bool:
    """Say whether a format has a file for each of the parts."""
    if options["format"] == "bin":
        return {*options.get("names", {})} <= {*parts}
    return options["format"] != "archai" or {*parts} <= {"train", "validation", "test"}


def is_stream(options: Options) -> bool:
    """Say whether an export is documents end to end."""
    if options["format"] in ("npy", "lance"):
        return options.get("layout", "stream") == "stream"
    return options["format"] in STREAMS


STREAMS = ("archai", "bin", "datatrove", "levanter", "litdata", "llmc", "megatron", "modalities",
           "olmo")  # fmt: skip

DROPS_EMPTY = ("datatrove", "olmo")
"""Formats without a line for a document of no tokens."""


def is_eos_first(options: Options) -> bool:
    """Say whether EOS is moved before each document."""
    return options["format"] == "llmc" or options.get("eos") == "first"


def _some(random: Random, **choices: Sequence[Any]) -> Options:
    """Return some of the options."""
    return {
        name: random.choice(values) for name, values in choices.items() if random.random() < 0.5
    }


SIZES = (1, 2, 3, 10, 100)


PADDINGS = (True, False, "none", "longest", "max")


def is_unpadded(options: Options) -> bool:
    """Say whether each row ends at its last token."""
    return options.get("padding") in (False, "none")


def _divided(random: Random) -> Options:
    """Return how many files there are, or of which size, or neither."""
    return random.choice(
        (
            {},
            {"shards": random.choice((1, 2, 3, 7, 100))},
            {"shard_size": random.choice((1, 40, "1kB", 10_000))},
        )
    )


def _columns(random: Random) -> Options:
    of_tokens = ["attention_mask", "segment_ids", "position_ids", "loss_mask"]
    names = [*of_tokens, "labels", "next_loss_mask", "seq_lengths", "seq_start_id"]
    options = {**_divided(random), **_some(random, padding=PADDINGS)}
    if random.random() < 0.7:
        chosen = random.sample(names, random.randrange(len(names) + 1))
        if not is_unpadded(options):
            chosen = [name for name in chosen if not name.startswith("seq_")]
        options["columns"] = chosen
    return options


def _npy(random: Random) -> Options:
    if random.random() < 0.5:
        return {"layout": "sequences", **_divided(random), **_some(random, prefix=("p", "a_b-c.d"))}
    return {**_divided(random), **_some(random, eos=("first", "last"), prefix=("p",))}


def _lance(random: Random) -> Options:
    return {**_divided(random), **_some(random, layout=("stream", "sequences"))}


def _litdata(random: Random) -> Options:
    options = _some(random, block_size=(1, 3, 16), compression=("none", "zstd"))
    return {**options, **_divided(random)}


def _mds(random: Random) -> Options:
    options = _some(
        random,
        shard_size=(20_000, 2**20),
        compression=("none", "zstd"),
        hashes=([], ["sha1", "xxh64"]),
    )
    if random.random() < 0.5:
        fields = random.sample(["segment_ids", "position_ids", "loss_mask"], random.randrange(4))
        options["columns"] = {"tokens": "token_ids", **{f"x_{name}": name for name in fields}}
    return options


def _jsonl(random: Random) -> Options:
    return {**_columns(random), **_some(random, compression=("none", "gz", "zst"))}


def _hf_dataset(random: Random) -> Options:
    return {**_columns(random), **_some(random, feature_type=("List", "Sequence"))}


def _parquet(random: Random) -> Options:
    codecs = ("zstd", "snappy", "none")
    options = _some(random, sequences_per_group=SIZES, compression=codecs)
    return {**_columns(random), **options}


def _easydel(random: Random) -> Options:
    flags = (True, False)
    columns = _some(random, padding=PADDINGS, attention_mask=flags, position_ids=flags)
    options = {name: of for name, of in _parquet(random).items() if name != "columns"}
    return {**options, **columns}


def _arrow(random: Random) -> Options:
    codecs = ("none", "lz4", "zstd")
    options = _some(random, sequences_per_batch=SIZES, compression=codecs)
    return {**_columns(random), **options}


FORMATS: dict[str, Callable[[Random], Options]] = {
    "archai": lambda random: {},
    "arrow": _arrow,
    "bin": lambda random: _some(random, names=({"train": "x.bin"}, {"train": "y-1.bin"})),
    "datatrove": _divided,
    "easydel": _easydel,
    "hf_dataset": _hf_dataset,
    "jsonl": _jsonl,
    "lance": _lance,
    "levanter": lambda random: {},
    "litdata": _litdata,
    "llmc": lambda random: {**_divided(random), **_some(random, prefix=("p", "x-1"))},
    "mds": _mds,
    "megatron": lambda random: _some(
        random, prefix=("p",), key=("text", "a-b"), dtype=("auto", "int32")
    ),
    "modalities": _divided,
    "npy": _npy,
    "olmo": _divided,
    "parquet": _parquet,
    "pickle": lambda random: {**_divided(random), **_some(random, pad_id=(-100, 0, 7))},
    "webdataset": lambda random: {**_divided(random), **_some(random, compression=("gz", "none"))},
}
