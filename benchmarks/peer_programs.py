"""The peers: programs of others, each in an environment of its own (`make bench-peers`)."""

import functools
import os

from benchmarks.programs import GPT2, KINDS, NEEDS_GPT2, ROOT, SHARED, Program

ENVIRONMENTS = ROOT / ".venv-peers"
TIKTOKEN_CACHE = SHARED / "tiktoken-cache"
NEEDS_RANKS = (TIKTOKEN_CACHE, "put tiktoken's cache for gpt2 there")
EOS_IN_TEXT = "takes an EOS spelt in the text for the token"


def make_peer(name, module, *, needs=(), kinds=KINDS, prepares=False, difference=None):
    """Return the program of `benchmarks/peers/<module>.py` (see peers/command.py)."""
    call = functools.partial(call_peer, module)
    return Program(
        name=name,
        command=functools.partial(call, "build"),
        output=f"{module}.tokens",
        needs=(NEEDS_GPT2, *needs, environment_of(module)),
        environment=functools.partial(environment, module),
        prepare=functools.partial(call, "prepare") if prepares else None,
        read=functools.partial(read_peer, module),
        is_peer=True,
        kinds=kinds,
        difference=difference,
    )


def environment_of(module):
    return ENVIRONMENTS / module / "ready", f'make bench-peers PEERS="{module}"'


def python(module):
    return [ENVIRONMENTS / module / "bin/python", "-m", f"benchmarks.peers.{module}"]


def call_peer(module, command, place):
    folder = place.folder / module
    folder.mkdir(exist_ok=True)
    return [*python(module), command, place.file, folder, GPT2, place.jobs or os.cpu_count()]


def read_peer(module, place):
    return [*python(module), "read", place.folder / module, place.folder / f"{module}.tokens"]


def environment(module, place):
    """Keep a peer off the network, and give it empty caches, not those of the run before."""
    caches = place.folder / module / "caches"
    return {
        "TIKTOKEN_CACHE_DIR": TIKTOKEN_CACHE,
        "HF_HOME": caches,
        "XDG_CACHE_HOME": caches,
        "HF_HUB_OFFLINE": 1,
        "DATA_OPTIMIZER_CACHE_FOLDER": caches / "chunks",
        "DATA_OPTIMIZER_DATA_CACHE_FOLDER": caches / "data",
        "WANDB_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": 0,
        "JAX_PLATFORMS": "cpu",
    }


PEERS = (
    make_peer("tiktoken + datasets", "tiktoken_datasets", needs=(NEEDS_RANKS,)),
    make_peer("tokenizers + datasets", "tokenizers_datasets"),
    make_peer("datatrove", "datatrove", difference=EOS_IN_TEXT),
    make_peer("litdata", "litdata", needs=(NEEDS_RANKS,), kinds=("parquet",)),
    make_peer("modalities", "modalities", kinds=("jsonl",), difference=EOS_IN_TEXT),
    make_peer("dolma", "dolma", kinds=("jsonl",), prepares=True, difference="strips documents"),
    make_peer("levanter", "levanter", difference=f"puts a space before each EOS; {EOS_IN_TEXT}"),
    make_peer("easydel", "easydel", difference=EOS_IN_TEXT),
)
