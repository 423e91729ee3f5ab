import json
from pathlib import Path

import pytest

from tokflow.errors import TokenizerError
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import make_output
from tokflow.store.manifest import read_manifest
from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines.reference import open_reference
from tokflow_tests.hub import Hub
from tokflow_tests.outputs import token_lists
from tokflow_tests.special import letter_ids, write_letters
from tokflow_tests.tiny import declare_texts, save_tokenizer, tokenize
from tokflow_tests.tokenizers import test_stage

TEXTS = ["a <word> b", "", "it</s>"]
IDS = [[*letter_ids("a "), 200, *letter_ids(" b"), 2], [2], [*letter_ids("it</s>"), 2]]
LETTERS = {"kind": "huggingface", "name": "letters", "trust_remote_code": True}


def test_code_that_came_with_a_tokenizer_runs_where_the_config_asks_for_it(tmp_path: Path):
    write_letters(tmp_path / "letters")

    shard = tokenize(declare_texts(tmp_path, TEXTS, **LETTERS))

    assert token_lists(shard) == IDS
    ran = json.loads((shard.folder / "_tokflow/run.json").read_text())
    assert ran["engine"] == "transformers"
    assert ran["engine_reason"] == (
        "gigatoken does not take this tokenizer: only transformers can load it"
    )


def test_code_does_not_run_unless_the_config_asks_for_it(tmp_path: Path):
    folder = write_letters(tmp_path / "letters")
    code = folder / "tokenization_letters.py"
    ran = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
    code.write_text(ran + code.read_text())

    error = test_stage.error_of(tmp_path, **{**LETTERS, "trust_remote_code": False})

    assert error.where == "tokenizer.trust_remote_code: letters"
    assert "tokenization_letters.LettersTokenizer" in error.expected
    assert not (tmp_path / "ran").exists()
    save_tokenizer(declare_texts(tmp_path, **LETTERS))
    assert (tmp_path / "ran").exists()


def test_trust_is_part_of_the_recipe_and_code_of_the_content(tmp_path: Path):
    folder = write_letters(tmp_path / "letters")
    trusting = declare_texts(tmp_path, **LETTERS)
    careful = declare_texts(tmp_path, **{**LETTERS, "trust_remote_code": False})
    outputs = [graph_of(dataset).output("tokenizer").fingerprint for dataset in (trusting, careful)]
    before = save_tokenizer(trusting)

    code = folder / "tokenization_letters.py"
    code.write_text(code.read_text() + "\n# another line\n")
    after = save_tokenizer(trusting)

    assert outputs[0] != outputs[1]
    assert read_manifest(before.folder).recipe.config["trust_remote_code"] is True
    assert before.fingerprint != after.fingerprint


def test_code_of_another_repository_cannot_be_kept_and_is_refused(tmp_path: Path):
    elsewhere = {"AutoTokenizer": ["team/other--tokenization_letters.LettersTokenizer", None]}
    write_letters(tmp_path / "letters", auto_map=elsewhere)

    error = test_stage.error_of(tmp_path, **LETTERS)

    assert error.where == "tokenizer.name: letters"
    assert "another repository, team/other--tokenization_let" in error.found


def test_code_on_the_hub_is_kept_with_its_commit_and_needs_no_network_again(
    hub: Hub, tmp_path: Path
):
    published = write_letters(tmp_path / "published")
    (published / "model.safetensors").write_bytes(b"weights")
    commit = test_stage.publish(hub, published)
    config = {**test_stage.HUB_TOKENIZER, "trust_remote_code": True}

    with test_stage.asking(hub.url, tmp_path / "cache"):
        saved = save_tokenizer(declare_texts(tmp_path, TEXTS, **config))
        assert test_stage.tokens_of(tmp_path, TEXTS, config) == IDS

    with test_stage.asking(None, tmp_path / "none"):
        assert test_stage.tokens_of(tmp_path, TEXTS[::-1], config) == IDS[::-1]
    origin = {"hub_id": "team/tiny", "commit": commit, "class": "LettersTokenizer"}
    assert read_manifest(saved.folder).details["origin"] == {**origin, "runs_own_code": True}
    assert any(f"/resolve/{commit}/tokenization_letters.py" in asked for asked in hub.asked)
    assert not any("model.safetensors" in asked for asked in hub.asked)


def test_code_on_the_hub_is_not_even_fetched_where_it_may_not_run(hub: Hub, tmp_path: Path):
    test_stage.publish(hub, write_letters(tmp_path / "published"))

    with test_stage.asking(hub.url, tmp_path / "cache"):
        error = test_stage.error_of(tmp_path, **test_stage.HUB_TOKENIZER)

    assert error.where == "tokenizer.trust_remote_code: team/tiny"
    assert not any(".py" in asked for asked in hub.asked)


def test_a_class_of_transformers_without_a_fast_backend_needs_no_trust(tmp_path: Path):
    (tmp_path / "own").mkdir()
    config = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 2}
    (tmp_path / "own" / "tokenizer_config.json").write_text(json.dumps(config))
    texts = ["aé", "b</s>", "<extra_id_0>"]

    shard = tokenize(declare_texts(tmp_path, texts, kind="huggingface", name="own"))

    shifted = [[byte + 3 for byte in text.encode()] for text in texts]
    assert token_lists(shard) == [[*ids, 1] for ids in shifted]
    assert shard.manifest.details["vocab_size"] == 261
    assert shard.manifest.counts["num_special_tokens_in_text"] == 2


def test_of_a_model_folder_only_the_tokenizers_files_count(tmp_path: Path):
    folder = test_stage.byte_level_files(tmp_path / "own")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "modeling_own.py").write_text("raise SystemExit")
    dataset = declare_texts(tmp_path, kind="huggingface", name="own")
    before = graph_of(dataset).output("tokenizer")

    (folder / "model.safetensors").write_bytes(b"other weights")
    (folder / "README.md").write_text("about it")
    after = graph_of(dataset).output("tokenizer")

    assert before.fingerprint == after.fingerprint
    make_output(graph_of(dataset), "tokenizer", "tokenizer")
    parents = {"config.json", "merges.txt", "tokenizer_config.json", "vocab.json"}
    assert set(after.manifest().recipe.parents) == parents


def test_what_a_tokenizers_config_says_besides_is_kept_where_it_is_converted(tmp_path: Path):
    folder = test_stage.byte_level_files(tmp_path / "own")
    config = folder / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({**fields, "chat_template": "{{ messages }}"}))

    saved = save_tokenizer(declare_texts(tmp_path, kind="huggingface", name="own"))

    kept = json.loads((saved.folder / "tokenizer_config.json").read_text())
    assert kept["chat_template"] == "{{ messages }}"
    assert kept["eos_token"] == "</s>"
    files = {path.name for path in saved.folder.iterdir()} - {"_tokflow"}
    assert files == {"tokenizer.json", "tokenizer_config.json"}


def test_what_the_code_raises_at_a_text_is_an_error(tmp_path: Path):
    write_letters(tmp_path / "letters", tokenize="list(text) if text != 'bad' else [][0]")
    engine = open_reference(save_tokenizer(declare_texts(tmp_path, **LETTERS)))

    with pytest.raises(TokenizerError, match="IndexError: list index out of range"):
        engine.encode(to_texts(["good", "bad"]))
