"""Names in a text that can become control tokens, and a special id that proves nothing."""

import msgspec

from tokflow.tokenizers.engines.sentencepiece_ import MODEL_NAME, load_processor
from tokflow.tokenizers.tokenizer import Tokenizer, scan_tokenizer_json
from tokflow.tokenizers.vocabulary import names_of_roles


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return name to id of what an engine that takes control tokens finds in a text.

    The special tokens, and EOS and BOS where they were added to the vocabulary without being
    called special. An EOS that is a word of the vocabulary, such as a full stop, is none: a text
    that has the word is plain in every way to encode it.
    """
    added_tokens = scan_tokenizer_json(tokenizer.folder).get("added_tokens") or []
    added: set[str] = {token["content"] for token in added_tokens}
    ends = {tokenizer.eos_token: tokenizer.eos_id, tokenizer.bos_token: tokenizer.bos_id}
    found = {token: id_ for token, id_ in ends.items() if token in added and id_ is not None}
    found |= tokenizer.special_tokens
    return {token: token_id for token, token_id in found.items() if token}


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of what the vocabulary has no token for: a text need not spell it to get it.

    None where there is none, or where it is EOS or BOS.
    """
    found = id_of_unknown(tokenizer)
    return None if found in (tokenizer.eos_id, tokenizer.bos_id) else found


def id_of_unknown(tokenizer: Tokenizer) -> int | None:
    """Return the id of what the vocabulary has no token for, also where it is EOS or BOS."""
    if tokenizer.kind == "sentencepiece":
        return int(load_processor((tokenizer.folder / MODEL_NAME).read_bytes()).unk_id())
    model = scan_tokenizer_json(tokenizer.folder).get("model")
    if model is None:
        named = names_of_roles(tokenizer.folder, ["unk_token"]).get("unk_token", "")
        return tokenizer.special_tokens.get(named)
    if isinstance(index := model.get("unk_id"), int):  # Unigram
        return index
    name = str(model.get("unk_token"))
    if name in tokenizer.special_tokens or "vocab" not in model:
        return tokenizer.special_tokens.get(name)
    vocab = msgspec.json.decode(model["vocab"])
    return vocab.get(name) if isinstance(vocab, dict) else None
