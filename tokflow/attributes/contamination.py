"""Evaluation texts in the documents of a token shard, by n-grams of tokens."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokflow.attributes.config import OF_EVALUATION, AttributeConfig
from tokflow.attributes.tables import TYPES, Aligned
from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.errors import ConfigError
from tokflow.near_duplicates import ngrams
from tokflow.raw import RawFile
from tokflow.store.tables import to_arrow, to_numpy, to_texts
from tokflow.tokenizers.engines.gate import open_engine
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens import positions_of_runs
from tokflow.tokens.shard import TokenShard

LENGTHS = (13, 8)
"""Tokens of an n-gram: of most texts, and of those that are shorter than SHORT_TOKENS."""

SHORT_TOKENS = 30

LEAST_DISTINCT = 0.6
"""Share of the tokens of an n-gram that differ, for it to count: runs of spaces, rules of tables
and the like are in every corpus."""

LEAST_SHARE = 0.1
"""Share of the n-grams of a text from which a match is told by itself."""

MOST_TEXTS = 8
"""Texts that may share an n-gram; what more of them share is an instruction, and no question."""

FILTER_BITS = 24
"""Bits of a hash that are looked up first: most n-grams end there."""

NAMED = 20
"""Texts that are too short which are named."""

MATCHES = pa.schema(
    [
        *((name, pa.int64()) for name in ("document", "text")),
        ("share", pa.float64()),
        *((name, pa.int64()) for name in ("run", "place", "length")),
    ]
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The n-grams of evaluation texts, of one length."""

    n: int
    hashes: ngrams.Hashes
    """Ascending, each once."""
    edges: ngrams.Numbers
    """(num_hashes + 1,) where the texts of each begin in `texts`."""
    texts: ngrams.Numbers
    """The ordinals of the texts that have each n-gram."""
    sizes: ngrams.Numbers
    """(num_texts,) distinct n-grams of each text; 0 of one of another length."""
    may_have: npt.NDArray[np.bool_]
    """(2**FILTER_BITS,) whether an n-gram's hash begins with these bits."""


@lru_cache(maxsize=2)
def read_evaluation(
    files: tuple[tuple[str, RawFile], ...], text: str, tokenizer: Tokenizer
) -> tuple[list[tuple[str, int]], tuple[Evaluation, ...]]:
    """Return the file and row of each evaluation text, and their n-grams by length.

    Text number i has two spellings, 2 * i and 2 * i + 1: as it is, and behind a space, where many
    tokenizers make another first token. Of equal texts the first counts.

    Raises: ConfigError where there is none; errors of reading and tokenizing them.
    """
    engine = open_engine(tokenizer)
    texts: dict[str, tuple[str, int]] = {}
    for key, file in files:
        source = DocumentSource([Path(file.path)], DocumentsConfig(text=text))
        for batch in source.batches():
            for row, of in zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True):
                texts.setdefault(of, (key, row))
        file.check_unchanged()
    names = [*texts.values()]
    spellings = to_texts([spelling for of in texts for spelling in (of, f" {of}")])
    tokens = engine.encode(spellings).documents()
    if not names:
        raise ConfigError(
            where=", ".join(key for key, _ in files),
            expected="evaluation texts",
            found="none",
            remedy="correct attributes: evaluation",
        )
    of_lengths: dict[int, list[int]] = {n: [] for n in LENGTHS}
    for number, of in enumerate(tokens):
        of_lengths[LENGTHS[len(of) < SHORT_TOKENS]].append(number)
    return names, tuple(_ngrams(n, of, tokens) for n, of in of_lengths.items())


def _ngrams(
    n: int, numbers: list[int], tokens: list[npt.NDArray[np.unsignedinteger]]
) -> Evaluation:
    """Return the n-grams of some texts, without those of few distinct tokens."""
    hashes, texts = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)]
    for number in numbers:
        if len(tokens[number]) >= n:
            windows = np.sort(np.lib.stride_tricks.sliding_window_view(tokens[number], n), axis=1)
            num_distinct = 1 + np.count_nonzero(np.diff(windows, axis=1), axis=1)
            own = ngrams.ngram_hashes(tokens[number], n)
            some = np.unique(own[num_distinct >= LEAST_DISTINCT * n])
            hashes.append(some)
            texts.append(np.full(len(some), number))
    every, of_texts = np.concatenate(hashes), np.concatenate(texts)
    order = np.argsort(every, kind="stable")
    _, place, num = np.unique(every[order], return_inverse=True, return_counts=True)
    order = order[num[place] <= 2 * MOST_TEXTS]  # each has two spellings
    known, starts = np.unique(every[order], return_index=True)
    may_have = np.zeros(2**FILTER_BITS, dtype=bool)
    may_have[known >> np.uint64(64 - FILTER_BITS)] = True
    edges = np.append(starts, len(order))
    sizes = np.bincount(of_texts[order], minlength=len(tokens))
    return Evaluation(n, known, edges, of_texts[order], sizes, may_have)


def find_matches(evaluation: Evaluation, tokens: ngrams.TextSpans) -> pa.Table:
    """Return which documents have n-grams of which evaluation texts: a row for each document and
    text, by these, with share, of the distinct n-grams of the text; run, tokens of the longest run
    that is n-grams of it; place, where the first one begins in the document; length, of an n-gram.
    """
    tables = [MATCHES.empty_table()]
    for some in ngrams.batches(tokens.lengths):
        within = np.arange(some.start, some.stop)
        hashes, num = ngrams.ngrams_within(tokens.read(within), tokens.lengths[some], evaluation.n)
        tables.append(_matches_of(evaluation, hashes, num, some.start))
    return pa.concat_tables(tables)


def _matches_of(
    evaluation: Evaluation, hashes: ngrams.Hashes, num: ngrams.Numbers, first: int
) -> pa.Table:
    """Return the rows of documents that have these n-grams, so many each, from the `first` on."""
    at = np.flatnonzero(evaluation.may_have[hashes >> np.uint64(64 - FILTER_BITS)])
    of = np.searchsorted(evaluation.hashes, hashes[at])
    is_known = of < len(evaluation.hashes)
    is_known[is_known] = evaluation.hashes[of[is_known]] == hashes[at[is_known]]
    at, of = at[is_known], of[is_known]
    ends = np.cumsum(num)
    document = np.searchsorted(ends, at, side="right")
    place = at - (ends - num)[document]
    num_texts = np.diff(evaluation.edges)[of]  # a hit for each text that has the n-gram
    hit = np.repeat(np.arange(len(at)), num_texts)
    text = evaluation.texts[positions_of_runs(evaluation.edges[of], num_texts)]
    document, place, gram = document[hit] + first, place[hit], of[hit]
    order = np.lexsort((place, text, document))
    document, text, place, gram = document[order], text[order], place[order], gram[order]
    is_pair = np.ones(len(order), dtype=bool)
    is_pair[1:] = (document[1:] != document[:-1]) | (text[1:] != text[:-1])
    pair, firsts = np.cumsum(is_pair) - 1, np.flatnonzero(is_pair)
    distinct = np.unique(np.stack([pair, gram]), axis=1)[0]
    is_run = is_pair.copy()
    is_run[1:] |= place[1:] != place[:-1] + 1
    starts = np.flatnonzero(is_run)
    run = np.zeros(len(firsts), dtype=np.int64)
    np.maximum.at(run, pair[starts], np.diff([*starts, len(order)]) + evaluation.n - 1)
    share = np.bincount(distinct, minlength=len(firsts)) / evaluation.sizes[text[firsts]]
    length = np.full(len(firsts), evaluation.n)
    columns = (document[firsts], text[firsts], share, run, place[firsts], length)
    return pa.Table.from_arrays([to_arrow(of) for of in columns], schema=MATCHES)


def compare(
    shard: TokenShard,
    config: AttributeConfig,
    files: Mapping[str, RawFile],
    tokenizer: Tokenizer,
) -> Aligned:
    """Return how much of an evaluation text each document of a shard has, the text of which it has
    the largest share, and the longest run of tokens that both have; 0 and null of none.

    Raises: as `read_evaluation`.
    """
    names, evaluations = read_evaluation(tuple(files.items()), config.text, tokenizer)
    labels = pa.array([f"{key}, row {row}" for key, row in names], pa.string())
    tokens = ngrams.texts_of(shard)
    found = pa.concat_tables(find_matches(of, tokens) for of in evaluations)
    found = found.set_column(1, "text", to_arrow(to_numpy(found["text"]) // 2))
    order = [("document", "ascending"), ("share", "descending"), ("text", "ascending")]
    found = found.sort_by(order)
    codes = to_numpy(found["document"]) * len(names) + to_numpy(found["text"])
    firsts = np.unique(codes, return_index=True)[1]  # the spelling that has more
    found = found.take(to_arrow(np.sort(firsts)))
    best = found.take(to_arrow(np.unique(to_numpy(found["document"]), return_index=True)[1]))
    num = len(tokens.lengths)
    share, run, by = np.zeros(num), np.zeros(num), np.full(num, -1)
    for values, name in ((share, "share"), (run, "run"), (by, "text")):
        values[to_numpy(best["document"])] = to_numpy(best[name])
    contaminated_by = labels.take(pc.if_else(to_arrow(by >= 0), to_arrow(by), None))
    columns = [to_arrow(share), contaminated_by, to_arrow(run)]
    schema = pa.schema({name: TYPES[kind] for name, kind in OF_EVALUATION.items()})
    sizes = np.sum([of.sizes for of in evaluations], axis=0).reshape(-1, 2).sum(axis=1)
    are_short = np.flatnonzero(sizes == 0).tolist()
    num_short = Counter(names[at][0] for at in are_short)
    of_files = Counter(key for key, _ in names)
    nums = {key: {"num_texts": of_files[key], "num_too_short": num_short[key]} for key in files}
    short = [labels[at].as_py() for at in are_short[:NAMED]]
    is_told = pc.greater_equal(found["share"], LEAST_SHARE)
    return Aligned(
        columns=pa.table(columns, schema=schema),
        num_without=0,
        matches=_shown(found.filter(is_told), names, tokens, tokenizer),
        counts={
            "num_evaluation_texts": len(names),
            "num_too_short": len(are_short),
            "num_contaminated": int(np.count_nonzero(share >= 2 * LEAST_SHARE)),
        },
        details={"too_short": short, "evaluation_files": nums},
    )


def _shown(
    found: pa.Table,
    names: Sequence[tuple[str, int]],
    tokens: ngrams.TextSpans,
    tokenizer: Tokenizer,
) -> pa.Table:
    """Return matches as people read them: the evaluation text's file and row, and the first n-gram
    as text."""
    reference = open_reference(tokenizer)

    def ngram(document: int, place: int, length: int) -> str:
        start = int(tokens.starts[document]) + place
        return reference.decode(tokens.tokens.read(start, start + length).tolist())

    texts = found["text"].to_pylist()
    spans = zip(*(found[name].to_pylist() for name in ("document", "place", "length")), strict=True)
    of_text = {
        "evaluation_file": pa.array([names[of][0] for of in texts], pa.string()),
        "evaluation_row": pa.array([names[of][1] for of in texts], pa.int64()),
    }
    shown = pa.array([ngram(*span) for span in spans], pa.string())
    kept = {name: found[name] for name in ("document", "share", "run")}
    return pa.table({**kept, **of_text, "ngram": shown})
