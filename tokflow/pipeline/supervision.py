"""The check that a training on chats has something to learn."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.documents.batch import ParsedBatch
from tokflow.errors import ConfigError, TokflowError, first_five
from tokflow.shown import counted
from tokflow.stage import Graph
from tokflow.tokenizers.chat import BadChatError, read_chat


def check_supervised(graph: Graph, shards: Sequence[Mapping[str, int]]) -> None:
    """Check that some token of a dataset of chats is supervised; `shards`: counts of the tokens.

    Raises: ConfigError.
    """
    documents = graph.dataset.of(DocumentsConfig)
    num_tokens = sum(of["num_tokens"] for of in shards)
    is_supervised = any(of.get("num_loss_tokens", 1) for of in shards)
    if is_supervised or not num_tokens or documents.on_no_loss == "accept":
        return
    found = f"none of {counted(num_tokens, 'token')}"
    remedy = "put what is to be learnt into the completion"
    if documents.is_rendered:
        roles: dict[str, None] = {}

        def read(parsed: ParsedBatch) -> ParsedBatch:
            for text in parsed.batch.texts.to_pylist():
                with suppress(BadChatError):
                    messages = read_chat(text.encode(), documents).messages
                    roles.update(dict.fromkeys(repr(of["role"]) for of in messages))
            return parsed

        with suppress(TokflowError, OSError):
            paths = graph.raw(next(iter(graph.partitions))).paths
            next(DocumentSource(paths, documents).batches(render=read), None)
        found += f", in messages of the roles {first_five([*roles])}"
        remedy = "give what is to be learnt to messages of the role 'assistant' that have words and"
        remedy += " no `train: false` or `weight: 0`"
    field = next(of for of in ("messages", "completion", "chat_format") if getattr(documents, of))
    raise ConfigError(
        where=f"{graph.dataset.name}: documents.{field}",
        expected="tokens that are supervised",
        found=found,
        remedy=f"{remedy}, or set documents.on_no_loss: accept",
    )
