"""The hub that HF_ENDPOINT names, and the credentials for it, which no message shows."""

import logging
import os
import re

from tokflow.store.urls import safe_text


def endpoint() -> str:
    """Return the URL of the hub, without a `/` at its end."""
    from huggingface_hub.constants import ENDPOINT

    return (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")


def authorization() -> str | None:
    """Return the header of HF_TOKEN, or of who is logged in on this machine."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    return dict(build_hf_headers()).get("authorization")


def hide_signatures() -> None:
    """Keep the queries of URLs, which may sign them, out of the log lines of huggingface_hub."""
    logging.getLogger("huggingface_hub.utils._http").addFilter(_without_queries)


def _without_queries(record: logging.LogRecord) -> bool:
    record.msg, record.args = re.sub(r"\?[^\s'\"]*", "", record.getMessage()), ()
    return True


def without_token(error: BaseException) -> str:
    """Return type and text of an error, the type alone if the token is in the text."""
    token = (authorization() or "").rpartition(" ")[2]
    text = re.sub(r" For more information check: \S+", "", safe_text(error, "hf://datasets"))
    return type(error).__name__ if token and token in text else text
