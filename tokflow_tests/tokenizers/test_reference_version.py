import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from tokflow import open_export
from tokflow.audit.verify import remade, verify_dataset
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.plan import make_plan
from tokflow.push.contents import card_section
from tokflow.push.repository import read_target
from tokflow.tokenizers.engines import reference
from tokflow.tokenizers.engines.hugging_face import is_version_1
from tokflow.tokenizers.engines.reference import describe_reference, reference_change, unicode_of
from tokflow.views.report_facts import StoreFacts
from tokflow.views.report_page import _made_by
from tokflow_tests.tiny import build, declare, declare_texts, save_tokenizer
from tokflow_tests.wrong_engine import use_wrong_engine

TABLE = "17" if is_version_1() else "16"


def test_a_tokenizer_names_library_version_and_unicode_table_of_its_reference(tmp_path: Path):
    trained = declare_texts(tmp_path / "trained", kind="trained", vocab_size=270)
    saved = save_tokenizer(trained).manifest.details["reference"]

    assert saved == {"library": "tokenizers", "version": version("tokenizers"), "unicode": TABLE}
    assert save_tokenizer(declare_texts(tmp_path / "bytes")).manifest.details["reference"] == {}
    assert [unicode_of(name) for name in ("tiktoken", "sentencepiece")] == ["16", None]


def test_tokens_made_again_by_a_version_that_differs_are_not_those_of_the_saved_reference():
    old = {"library": "tokenizers", "version": "0.23.3", "unicode": "16"}
    new = {"library": "tokenizers", "version": "1.0.0rc3", "unicode": "17"}
    since = {"tokenizers": "1.0"}

    assert describe_reference(old, {}) == "tokenizers 0.23.3 (Unicode 16)"
    assert describe_reference(old, since) == "tokenizers 1.0 or newer"
    assert describe_reference(new, since) == "tokenizers 1.0.0rc3 (Unicode 17)"
    assert describe_reference(new, {}) == "tokenizers before 1.0"


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """200 documents of a trained tokenizer, two of them wrong, with another reference now."""
    texts = ["few words"] * 200
    texts[70], texts[150] = "strange", "strange " * 9
    dataset = declare_texts(tmp_path, texts, kind="trained", vocab_size=258)
    with pytest.MonkeyPatch.context() as patch:
        use_wrong_engine(patch)
        build(dataset)
    newer = version("tokenizers").replace(".", ".9", 1)
    monkeypatch.setattr(reference, "installed_version", lambda library: newer)
    return dataset


def test_plan_says_that_the_reference_has_changed_and_makes_nothing_stale(changed: Dataset):
    plan = make_plan(changed)

    versions = version("tokenizers"), reference.installed_version("tokenizers")
    before, now = (f"tokenizers {of} (Unicode {TABLE})" for of in versions)
    assert plan.library_changes() == [
        f"the reference of its ids was {before} and is {now} now; `tokflow verify tiny "
        "--reference` compares all tokens"
    ]
    assert plan.is_up_to_date


def test_a_tokenizer_that_is_saved_again_has_the_version_of_today_and_keeps_its_tokens(
    changed: Dataset,
):
    shutil.rmtree(changed.folder / "tokenizer")

    built = build(changed)

    assert [of.output.stage for of in built.made if of.is_new] == ["tokenizer"]
    assert make_plan(changed).library_changes() == []


@pytest.mark.parametrize("now", [None, "0.1" if is_version_1() else "1.0"])
def test_a_library_that_is_gone_or_known_to_differ_is_no_change(
    now: str | None, changed: Dataset, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reference, "installed_version", lambda library: now)

    assert reference_change(save_tokenizer(changed).stored) is None


def test_all_documents_are_compared_with_another_reference_which_speaks_not_against_gigatoken(
    changed: Dataset, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remade, "MAX_SAMPLE_CHARS", 30)  # the 150th is compared in chunks
    sampled, whole = (
        [problem for of in verify_dataset(changed, all_documents=each) for problem in of.problems]
        for each in (False, True)
    )

    assert sampled == []
    named = [problem.partition(": ")[0] for problem in whole]
    assert named == ["texts.jsonl:70", "texts.jsonl:150"]
    assert "install the earlier version to keep these tokens" in whole[0]
    assert save_tokenizer(changed).verdict is None


def test_the_card_and_the_report_name_the_reference(tmp_path: Path):
    trained = {"kind": "trained", "vocab_size": 258}
    dataset = declare(tmp_path, {"a.jsonl": ["few words"]}, tokenizer=trained, exports=["bin"])
    build(dataset)
    export = open_export(dataset.folder / "exports/bin/latest")
    said = f"tokenizers {version('tokenizers')} (Unicode {TABLE})"

    card = card_section(export, read_target("hf://datasets/team/texts"))

    assert f"\n* **Ids**: those of {said}\n" in card
    assert ("ids are those of", said) in _made_by(StoreFacts(make_plan(dataset)))
