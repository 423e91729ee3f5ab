"""The check that a training on chats has something to learn."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from tokflow.documents import DocumentsConfig, DocumentSource
from tokflow.documents.batch import ParsedBatch
from tokflow.errors import ConfigError, TokflowError, first_five
from tokflow.shown import counted
from tokflow.stage import Graph
from tokflow.tokenizers.chat.formats import BadChatError, read_chat


def check_supervised(
    graphs: Sequence[Graph], counts: Sequence[Mapping[str, int]], *, name: str
) -> None:
    """Check that some token of a dataset is supervised.

    `graphs`: that of the dataset or, of a mixture, those of its sources; `counts`: those of all
    token shards.

    Raises: ConfigError where they are of chats and none is.
    """
    configs = [of.dataset.of(DocumentsConfig) for of in graphs]
    num_tokens = sum(of["num_tokens"] for of in counts)
    is_chat = all("num_loss_tokens" in of for of in counts)
    if not num_tokens or not is_chat or any(of["num_loss_tokens"] for of in counts):
        return
    if any(config.on_no_loss == "accept" for config in configs):
        return
    is_rendered = configs[0].is_rendered
    found = f"none of {counted(num_tokens, 'token')}"
    remedy = "put what is to be learnt into the completion"
    if is_rendered:
        roles = dict.fromkeys(repr(role) for of in graphs for role in _roles(of))
        found += f", in messages of the roles {first_five([*roles])}"
        remedy = "give the messages that are to be learnt the role 'assistant'"
        if "'assistant'" in roles:
            remedy = "give the assistant words, and no `train: false` or `weight: 0` beside them"
    field = next(of for of in ("messages", "completion", "chat_format") if getattr(configs[0], of))
    raise ConfigError(
        where=f"{name}: documents.{field}",
        expected="tokens that are supervised",
        found=found,
        remedy=f"{remedy}, or set documents.on_no_loss: accept",
    )


def _roles(graph: Graph) -> list[str]:
    """Return the roles in the first batch of chats of a dataset, each once."""
    roles: dict[str, None] = {}
    documents = graph.dataset.of(DocumentsConfig)

    def read(found: ParsedBatch) -> ParsedBatch:
        for text in found.batch.texts.to_pylist():
            with suppress(BadChatError):
                chat = read_chat(text.encode(), documents)
                roles.update(dict.fromkeys(of["role"] for of in chat.messages))
        return found

    with suppress(TokflowError, OSError):
        paths = graph.raw(next(iter(graph.partitions))).paths
        next(DocumentSource(paths, documents).batches(render=read), None)
    return list(roles)
