"""Small data of the shape that each example's original has: made, not fetched, the same each time.

What is 100,000,000 characters there is 500,000 here: `SMALLER` says which numbers of a YAML are
others for it.
"""

import gzip
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokflow_tests.chats import END, byte_level_json
from tokflow_tests.hub import Hub, serve_hub

SMALLER = {
    "lance": {"500_000": "400"},
    "chats": {"Qwen/Qwen3-4B": "./data/raw/tokenizer"},
    "several": {"32_000": "600"},
    "c_code": {"100_000_000": "500_000", "102_000_000": "520_500", "2_000_000": "20_500"},
}
"""By example, what its YAML has in place of what it says."""

WORDS = (
    "a", "and", "are", "as", "at", "be", "but", "by", "can", "dog", "for", "from", "garden",
    "has", "have", "in", "is", "it", "little", "made", "moon", "not", "of", "old", "on",
    "one", "play", "river", "said", "saw", "she", "story", "that", "the", "there", "they",
    "tree", "was", "were", "when", "with", "you",
)  # fmt: skip

SENTENCES = (
    "hide new secretions from the parental units ",
    "contains no wit , only labored gags ",
    "that loves its characters and communicates something rather beautiful about human nature ",
    "remains utterly satisfied to remain the same throughout ",
)
"""The first of SST-2's training sentences, each of which ends in a space."""

C_TYPES = ("int", "char *", "size_t", "static void", "struct node *", "unsigned long")


def write_small(example: str, folder: Path) -> None:
    """Write the raw files of an example where its YAML, in `folder`, looks for them; of those that
    a hub has, nothing."""
    for name, content in FILES.get(example, dict)().items():
        path = folder / "data/raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextmanager
def small_hub() -> Iterator[Hub]:
    """Yield a hub on this machine that has small datasets by the names of the real ones; its `url`
    is for HF_ENDPOINT."""
    with serve_hub() as hub:
        for name, files in HUB.items():
            hub.push(name, files())
        yield hub


def environment_of(hub: Hub) -> dict[str, str]:
    """Return what a process needs to ask this hub, whatever it would ask otherwise."""
    return {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "no_proxy": "127.0.0.1"}


def _c_code() -> dict[str, bytes]:
    rng = random.Random("c_code")
    contents = [c_file(rng) for _ in range(220)]
    columns = {"content": contents, "size": [len(text) for text in contents]}
    return {"c_code/train-00000.parquet": parquet(columns)}


def _several() -> dict[str, bytes]:
    rng = random.Random("several")
    articles = [{"content": story(rng, rng.randrange(1, 400))} for _ in range(120)]
    lines = "".join(
        json.dumps({"url": f"https://{n}", **of}) + "\n" for n, of in enumerate(articles)
    )
    code = [c_file(rng) for _ in range(80)]
    return {
        "several/articles/0.jsonl.gz": gzip.compress(lines.encode(), mtime=0),
        "several/code/0.parquet": parquet({"code": code[:50], "license": ["MIT"] * 50}),
        "several/code/1.parquet": parquet({"code": code[50:], "license": ["BSD"] * 30}),
    }


def _chats() -> dict[str, bytes]:
    """Return questions and answers, some of them by way of a tool; and a tokenizer whose template
    takes tools, in the manner of Qwen's."""
    rng = random.Random("chats")
    lines = []
    for _ in range(300):
        messages = [{"role": "system", "content": words(rng, 6)}]
        for _ in range(rng.randrange(1, 4)):
            messages.append({"role": "user", "content": words(rng, rng.randrange(3, 60))})
            if rng.random() < 0.3:
                messages += _tool_use(rng)
            messages.append({"role": "assistant", "content": story(rng, rng.randrange(1, 4))})
        lines.append(json.dumps({"messages": messages, "tools": TOOLS}) + "\n")
    fields = {"eos_token": END, "chat_template": TEMPLATE}
    return {
        "chats/0.jsonl": "".join(lines).encode(),
        "tokenizer/tokenizer.json": byte_level_json().encode(),
        "tokenizer/tokenizer_config.json": json.dumps(fields).encode(),
    }


def _tool_use(rng: random.Random) -> list[dict]:
    call = {"name": "weather", "arguments": {"place": rng.choice(WORDS), "days": 3}}
    return [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": words(rng, 4)},
    ]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather at a place.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]


TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def _train() -> dict[str, bytes]:
    rng = random.Random("train")
    stories = [{"content": story(rng, rng.randrange(1, 40))} for _ in range(120)]
    lines = "".join(json.dumps(of) + "\n" for of in stories)
    return {
        "train/stories/0.jsonl.gz": gzip.compress(lines.encode(), mtime=0),
        "train/code/0.parquet": parquet({"code": [c_file(rng) for _ in range(40)]}),
    }


FILES: Mapping[str, Callable[[], dict[str, bytes]]] = {
    "c_code": _c_code,
    "chats": _chats,
    "several": _several,
    "train": _train,
}
"""By example, the raw files that lie beside it."""


def _tinystories() -> dict[str, bytes]:
    rng = random.Random("tinystories")
    card = _card(default={split: f"data/{split}-*" for split in ("train", "validation")})
    return {
        "README.md": card,
        **{
            f"data/train-{number:05d}-of-00002-2d5a1467fff1081b.parquet": parquet(
                {"text": [story(rng, rng.randrange(3, 20)) for _ in range(300)]}
            )
            for number in range(2)
        },
        "data/validation-00000-of-00001-869c898b519ad725.parquet": parquet(
            {"text": [story(rng, rng.randrange(3, 20)) for _ in range(60)]}
        ),
    }


def _wikitext() -> dict[str, bytes]:
    """Return two configs of paragraphs, of which a third is empty."""
    rng = random.Random("wikitext")
    files = {}
    for config in ("wikitext-103-raw-v1", "wikitext-2-raw-v1"):
        for split, number in (("test", 60), ("train", 900), ("validation", 60)):
            texts = [
                rng.choice(
                    ("", f" {words(rng, rng.randrange(9, 90))} \n", f" = {words(rng, 2)} = \n")
                )
                for _ in range(number)
            ]
            num_files = 4 if split == "train" else 1
            for shard in range(num_files):
                name = f"{config}/{split}-{shard:05d}-of-{num_files:05d}.parquet"
                files[name] = parquet({"text": texts[shard::num_files]})
    splits = ("test", "train", "validation")
    configs = {
        config: {split: f"{config}/{split}-*" for split in splits}
        for config in ("wikitext-103-raw-v1", "wikitext-2-raw-v1")
    }
    return {"README.md": _card(**configs), **files}


def _glue() -> dict[str, bytes]:
    """Return SST-2, and another config beside it."""
    rng = random.Random("glue")
    sentences = {
        "train": [*SENTENCES, *(f"{words(rng, rng.randrange(1, 30))} " for _ in range(2_000))],
        "validation": [words(rng, rng.randrange(1, 30)) for _ in range(100)],
        "test": [words(rng, rng.randrange(1, 30)) for _ in range(100)],
    }
    files = {
        "README.md": _card(cola={"train": "cola/*"}, sst2={of: f"sst2/{of}-*" for of in sentences})
    }
    for split, some in sentences.items():
        labels = [-1 if split == "test" else rng.randrange(2) for _ in some]
        columns = {"sentence": some, "label": labels, "idx": range(len(some))}
        files[f"sst2/{split}-00000-of-00001.parquet"] = parquet(columns)
    return {**files, "cola/train-00000-of-00001.parquet": parquet({"sentence": ["another"]})}


HUB: Mapping[str, Callable[[], dict[str, bytes]]] = {
    "nyu-mll/glue": _glue,
    "roneneldan/TinyStories": _tinystories,
    "Salesforce/wikitext": _wikitext,
}
"""By name, the files of each dataset that a hub has."""


def _card(**configs: Mapping[str, str]) -> bytes:
    """Return a dataset's README.md, which says where the files of each split are."""
    listed = [
        {
            "config_name": name,
            "data_files": [{"split": split, "path": path} for split, path in files.items()],
        }
        for name, files in configs.items()
    ]
    return f"---\nconfigs: {json.dumps(listed)}\n---\n".encode()


def parquet(columns: Mapping[str, Sequence]) -> bytes:
    """Return a parquet file."""
    file = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), file)
    return file.getvalue()


def words(rng: random.Random, number: int) -> str:
    """Return so many words."""
    return " ".join(rng.choices(WORDS, k=number))


def story(rng: random.Random, sentences: int) -> str:
    """Return sentences in paragraphs, as a story has them."""
    said = (words(rng, rng.randrange(4, 15)).capitalize() + "." for _ in range(sentences))
    return "".join(sentence + rng.choice((" ", " ", "\n\n")) for sentence in said).strip()


def c_file(rng: random.Random) -> str:
    """Return what looks like a file of C, of some thousand characters."""
    lines = ["/*", f" * {words(rng, 6)}", " */", "#include <stdio.h>", ""]
    for number in range(rng.randrange(4, 24)):
        name = f"{rng.choice(WORDS)}_{rng.choice(WORDS)}_{number}"
        lines += [f"{rng.choice(C_TYPES)} {name}(int n)", "{", f"\t/* {words(rng, 5)} */"]
        lines += [
            f"\tif (n > {rng.randrange(100)})\n\t\treturn {name}(n - {rng.randrange(1, 9)});"
            for _ in range(rng.randrange(1, 6))
        ]
        lines += [f'\tprintf("{words(rng, 3)}: %d\\n", n);', "\treturn 0;", "}", ""]
    return "\n".join(lines)
