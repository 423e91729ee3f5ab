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


def is_unpadded(options: Options) -> bool:
    """Say whether each row ends at its last token."""
    return options.get("padding") in (False, "none")


def some(random: Random, chance: float, **choices: Sequence[Any]) -> Options:
    """Return a value of each of the options that the chance hits."""
    return {
        name: random.choice(values) for name, values in choices.items() if random.random() < chance
    }


Draw = Callable[[Random], Options]


def _options(*draws: Draw, **choices: Sequence[Any]) -> Draw:
    """Return what draws half of the choices, and beside them what others draw."""

    def draw(random: Random) -> Options:
        options = some(random, 0.5, **choices)
        for other in draws:
            options |= other(random)
        return options

    return draw


def _divided(random: Random) -> Options:
    """Return how many files there are, or of which size, or neither."""
    shards, sizes = {"shards": (1, 2, 3, 7, 100)}, {"shard_size": (1, 40, "1kB", 10_000)}
    return some(random, 1, **random.choice((shards, sizes, {})))


def _columns(random: Random) -> Options:
    of_tokens = ["attention_mask", "segment_ids", "position_ids", "loss_mask"]
    names = [*of_tokens, "labels", "next_loss_mask", "seq_lengths", "seq_start_id"]
    options = {**_divided(random), **some(random, 0.5, padding=PADDINGS)}
    if random.random() < 0.7:
        chosen = random.sample(names, random.randrange(len(names) + 1))
        if not is_unpadded(options):
            chosen = [name for name in chosen if not name.startswith("seq_")]
        options["columns"] = chosen
    return options


def _layout_of_npy(random: Random) -> Options:
    return random.choice(({"layout": "sequences"}, some(random, 0.5, eos=("first", "last"))))


def _columns_of_mds(random: Random) -> Options:
    fields = random.sample(["segment_ids", "position_ids", "loss_mask"], random.randrange(4))
    columns = {"tokens": "token_ids", **{f"x_{name}": name for name in fields}}
    return some(random, 0.5, columns=[columns])


SIZES, FLAGS = (1, 2, 3, 10, 100), (True, False)
PADDINGS = (True, False, "none", "longest", "max")
OF_PARQUET = {"sequences_per_group": SIZES, "compression": ("zstd", "snappy", "none")}

FORMATS: dict[str, Draw] = {
    "archai": _options(),
    "arrow": _options(_columns, sequences_per_batch=SIZES, compression=("none", "lz4", "zstd")),
    "bin": _options(names=({"train": "x.bin"}, {"train": "y-1.bin"})),
    "datatrove": _divided,
    "easydel": _options(
        _divided, padding=PADDINGS, attention_mask=FLAGS, position_ids=FLAGS, **OF_PARQUET
    ),
    "hf_dataset": _options(_columns, feature_type=("List", "Sequence")),
    "jsonl": _options(_columns, compression=("none", "gz", "zst")),
    "lance": _options(_divided, layout=("stream", "sequences")),
    "levanter": _options(),
    "litdata": _options(_divided, block_size=(1, 3, 16), compression=("none", "zstd")),
    "llmc": _options(_divided, prefix=("p", "x-1")),
    "mds": _options(
        _columns_of_mds,
        shard_size=(20_000, 2**20),
        compression=("none", "zstd"),
        hashes=([], ["sha1", "xxh64"]),
    ),
    "megatron": _options(prefix=("p",), key=("text", "a-b"), dtype=("auto", "int32")),
    "modalities": _divided,
    "npy": _options(_divided, _layout_of_npy, prefix=("p", "a_b-c.d")),
    "olmo": _divided,
    "parquet": _options(_columns, **OF_PARQUET),
    "pickle": _options(_divided, pad_id=(-100, 0, 7)),
    "webdataset": _options(_divided, compression=("gz", "none")),
}
