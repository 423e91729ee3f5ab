"""Values that a function of the user has of the texts of a token shard."""

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import pyarrow as pa

from tokflow.attributes.config import AttributeConfig
from tokflow.attributes.tables import Aligned, as_declared, empty_table
from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.documents.user_function import UserFunction, described, printing_on_stderr
from tokflow.errors import ConfigError
from tokflow.raw import RawPartition
from tokflow.store.tables import to_arrow, to_numpy
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import TokenShard, places_of, with_tokens_of


def compute(
    shard: TokenShard,
    config: AttributeConfig,
    function: UserFunction,
    raw: RawPartition,
    documents: DocumentsConfig,
    tokenizer: Tokenizer,
) -> Aligned:
    """Return the columns of a function for each document of a shard, whose raw files are read
    again.

    Raises: ConfigError where the function raises, or returns something else than the config says;
    RawFileError.
    """
    table = shard.documents(["row", "num_tokens"])
    render = open_renderer(documents, tokenizer) if documents.is_rendered else None
    source = DocumentSource(raw.paths, documents)
    batches = source.batches(on_reject=lambda *_: None, render=render, encode=with_tokens_of(table))
    rows, found = to_numpy(table["row"]), [empty_table(config)]
    for batch in batches:
        _, is_there = places_of(batch.rows, rows)
        texts = batch.texts.filter(to_arrow(is_there)).to_pylist()
        for first in range(0, len(texts), config.batch):
            some = texts[first : first + config.batch]
            place = f"{function.where}: {raw.key}, rows {batch.rows[0]:,} to {batch.rows[-1]:,}"
            called = _called(function, some, config, place)
            found.append(as_declared(called, tuple(config.columns.items()), place))
    raw.check_unchanged()
    columns = pa.concat_tables(found)
    if len(columns) != len(table):
        raise ConfigError(
            where=f"{function.where}: {raw.key}",
            expected=f"the {len(table):,} documents that were tokenized",
            found=f"{len(columns):,} when they were read again",
            remedy="make documents.transform pure, or build the tokens again",
        )
    without = np.ones(len(columns), dtype=bool)
    for name in config.columns:
        without &= columns[name].is_null().to_numpy()
    return Aligned(columns, int(np.count_nonzero(without)))


def _called(
    function: UserFunction, texts: list[str], config: AttributeConfig, place: str
) -> pa.Table:
    """Return what the function says of some texts."""

    def refused(expected: str, found: str) -> ConfigError:
        return ConfigError(
            where=place, expected=expected, found=found, remedy="correct the function"
        )

    try:
        with printing_on_stderr():
            result: Any = function.load()(texts)
    except ConfigError:
        raise
    except Exception as error:
        found = described(error, function.path)
        raise refused("values of each text", found) from error
    if not isinstance(result, Mapping) or not config.columns.keys() <= result.keys():
        shown = (
            ", ".join(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
        )
        raise refused(f"a mapping with {', '.join(config.columns)}", shown)
    for name in config.columns:
        values = result[name]
        if isinstance(values, str) or not isinstance(values, Sized):
            raise refused(f"a list of values of {name}", type(values).__name__)
        if len(values) != len(texts):
            raise refused(f"{len(texts):,} values of {name}", f"{len(values):,}")
    try:
        return pa.table({name: pa.array(result[name]) for name in config.columns})
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise refused("numbers, texts or truth values", str(error).splitlines()[0]) from error
