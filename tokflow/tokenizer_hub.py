"""Tokenizers that are published: fetched from the hub, or converted by transformers."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokflow.errors import TokenizerError, four_parts

HUB_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""What is taken from a hub id or a folder; all that a tokenizer needs."""


def download_tokenizer(name: str, revision: str | None, folder: Path) -> str:
    """Copy the tokenizer's files from the hub; return the commit they are of."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    try:
        commit = str(huggingface_hub.HfApi().model_info(name, revision=revision).sha)
        for file in HUB_FILES:
            try:
                path = huggingface_hub.hf_hub_download(name, file, revision=commit)
            except EntryNotFoundError:
                continue
            (folder / file).write_bytes(Path(path).read_bytes())
    except Exception as error:
        raise TokenizerError(
            four_parts(
                where=f"tokenizer.name: {name}",
                expected="a hub id that can be reached, or an existing local folder",
                found=shown(error),
                remedy="correct the name or the revision, log in with `hf auth login` for a "
                "private one, or name a folder that holds its files",
            )
        ) from error
    return commit


def convert_with_transformers(name: str, revision: str | None, folder: Path) -> None:
    """Let transformers build the tokenizer.json of a tokenizer that was published without."""
    with without_advice():
        from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(
            name, **({"revision": revision} if revision else {}), trust_remote_code=False
        )
        backend = loaded.backend_tokenizer
    except Exception as error:
        raise TokenizerError(
            four_parts(
                where=f"tokenizer.name: {name}",
                expected="a tokenizer.json, or files that transformers makes one of",
                found=shown(error),
                remedy="name a tokenizer that has a fast version",
            )
        ) from error
    backend.save(str(folder / "tokenizer.json"))
    kept = ("eos_token", "bos_token", "chat_template")
    names = {role: value for role in kept if isinstance(value := getattr(loaded, role), str)}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")


@contextmanager
def without_advice() -> Iterator[None]:
    """Keep transformers from saying that there is no PyTorch, of which no tokenizer has need."""

    def is_other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("PyTorch was not found")

    logger = logging.getLogger("transformers")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def shown(error: Exception) -> str:
    """Return the type and the first line of an error of another library."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"
