import pytest

from tokflow.errors import ConfigError
from tokflow.push.repository import Target, read_target


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hf://datasets/a/b", Target(name="a/b")),
        ("hf://datasets/a/b/", Target(name="a/b")),
        ("hf://datasets/a/b/c/d/", Target(name="a/b", folder="c/d/")),
        ("hf://datasets/a/b@dev/c", Target(name="a/b", revision="dev", folder="c/")),
        ("hf://datasets/a/b@refs/pr/3", Target(name="a/b", revision="refs/pr/3")),
    ],
)
def test_a_url_names_repository_revision_and_folder(url: str, expected: Target):
    assert read_target(url) == expected
    assert read_target(expected.url) == expected


def test_a_config_is_called_as_its_folder():
    assert read_target("hf://datasets/a/b").config == "default"
    assert read_target("hf://datasets/a/b/c/d").config == "c-d"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("hf://datasets/b", "hf://datasets/b"),
        ("hf://a/b", "hf://a/b"),
        ("s3://a/b", "s3://a/b"),
        ("data/exports", "data/exports"),
        ("hf://datasets/a/b/..", "'..'"),
        ("hf://datasets/a/b/.git/x", "'.git/x'"),
        ("hf://datasets/a/b/a b", "'a b'"),
        (f"hf://datasets/a/b@{'0' * 40}", f"the commit {'0' * 40}"),
    ],
)
def test_any_other_url_is_refused(url: str, found: str):
    with pytest.raises(ConfigError) as raised:
        read_target(url)

    assert raised.value.found == found


def test_two_revisions_are_refused():
    with pytest.raises(ConfigError, match="found 'dev' and 'main'"):
        read_target("hf://datasets/a/b@dev", revision="main")
