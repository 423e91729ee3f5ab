"""Names in a text that can become control tokens, and a special id that proves nothing."""

from tokflow.tokenizers.engines.sentencepiece_ import MODEL_NAME, load_processor
from tokflow.tokenizers.tokenizer import Tokenizer, read_tokenizer_json, scan_tokenizer_json


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

    None where there is none, or where it is EOS or BOS, and where only transformers can tell.
    """
    found = _unknown_id(tokenizer)
    return None if found in (tokenizer.eos_id, tokenizer.bos_id) else found


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    if tokenizer.kind == "sentencepiece":
        return int(load_processor((tokenizer.folder / MODEL_NAME).read_bytes()).unk_id())
    model = read_tokenizer_json(tokenizer.folder).get("model") or {}
    if isinstance(index := model.get("unk_id"), int):  # Unigram
        return index
    name = str(model.get("unk_token"))
    found = tokenizer.special_tokens.get(name)
    if found is None and isinstance(vocab := model.get("vocab"), dict):
        found = vocab.get(name)
    return None if found is None else int(found)
