"""What the manifest of each export of a dataset says of its tokens."""

from typing import TYPE_CHECKING, Any

from tokflow.split.shuffle import DOCUMENT_ORDER, shuffle_fields

if TYPE_CHECKING:
    from tokflow.pipeline.graph import BuildGraph


def export_details(graph: "BuildGraph") -> dict[str, Any]:
    """Return what the manifest of each export says of its tokens."""
    tokenizer, encoding, dataset = graph.tokenizer, graph.encoding, graph.dataset
    return {
        "dtype": tokenizer.dtype.str,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": encoding.eos_id,
        "bos_id": encoding.bos_id,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "names": dataset.names.fields(),
        **({"commits": commits} if (commits := graph.listing.commits) else {}),
        **shuffle_fields(dataset.shuffle.of_documents, DOCUMENT_ORDER),
        **dataset.shuffle.of_export.document_fields(),
        **_mixture_details(graph),
    }


def _mixture_details(graph: "BuildGraph") -> dict[str, Any]:
    if graph.mixture is None:
        return {}
    splits = {key: graph.split(key) for key in graph.partitions}
    return {"mixture": graph.mixture.realised(splits)}
