from tokflow.store.urls import safe_text


def test_an_error_is_shown_without_the_secrets_of_the_url():
    url = "https://user:pass%20word@host/a?token=abc"

    assert safe_text(OSError("refused"), url) == "OSError: refused"
    assert safe_text(OSError(f"cannot read {url}"), url) == "OSError: cannot read https://host/a"
    assert safe_text(OSError("bad token abc"), url) == "OSError"
    assert safe_text(OSError("bad login 'pass word'"), url) == "OSError"
    assert safe_text(OSError("at\nhttps://cdn/a?signature=1"), url) == "OSError: at https://cdn/a"
    assert safe_text(OSError(), url) == "OSError"
