import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import DatasetCard

from tokflow.audit.ancestry import Ancestry
from tokflow.errors import CorruptOutputError
from tokflow.exports.reading import find_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import load_datasets
from tokflow.pipeline.gc import find_garbage
from tokflow.record.export_card import card_text, cards_of, read_card, write_cards
from tokflow.record.facts import known_facts
from tokflow.store.listed_files import BESIDE, CARD_NAME, CROISSANT_NAME
from tokflow_tests.cli.commands import run
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import problems_of, touched
from tokflow_tests.tiny import TEXTS, build, declare, declare_small, write_raw, write_yaml

CARD = {
    "title": "Small texts",
    "license": "cc-by-4.0",
    "language": ["en"],
    "published": "2026-01-31",
    "creators": ["Us"],
    "sources": {"sub/*": {"license": "mit", "language": ["de"], "period": "2019/2020"}},
}


def made(folder: Path, **attributes: Any) -> tuple[Dataset, dict[str, Path]]:
    """Return a dataset that is built, with its cards, and the folder of each export."""
    dataset = declare_small(folder, **{"card": CARD, **attributes})
    built = build(dataset)
    write_cards(dataset, [of.output for of in built.made])
    return dataset, {of.name: built.export(of.name).folder for of in dataset.exports}


def again(dataset: Dataset) -> int:
    return write_cards(dataset, [of.output for of in build(dataset).made])


def text_of(folder: Path) -> str:
    return (folder / CARD_NAME).read_text()


def text_of_manifests(dataset: Dataset, folder: Path) -> str:
    """Return the card of an export, of manifests on the disk alone."""
    return card_text(known_facts(find_export(folder), cards_of(dataset), Ancestry()))


def test_hugging_face_reads_the_card_and_its_fields(tmp_path: Path):
    _, exports = made(tmp_path)

    card = DatasetCard.load(exports["parquet"] / CARD_NAME)

    found = card.data.to_dict()
    assert found == {
        "license": "cc-by-4.0",
        "language": ["en"],
        "pretty_name": "Small texts",
        "tags": ["tokflow"],
    }
    assert "# Small texts" in card.text
    assert "| train |" in card.text
    assert "| sub/* |  | mit | de | 2019/2020 |" in card.text
    assert "| Small texts |  | cc-by-4.0 | en |" in card.text


def test_another_licence_is_another_card_and_no_other_file(tmp_path: Path):
    _, exports = made(tmp_path)
    cards = {str(folder / name) for folder in exports.values() for name in BESIDE}
    before = touched(tmp_path / "store")
    dataset = declare_small(tmp_path, card={**CARD, "license": "odc-by"})

    built = build(dataset)
    num_written = write_cards(dataset, [of.output for of in built.made])

    assert (built.num_new, num_written) == (0, 3)
    after = touched(tmp_path / "store")
    changed = {str(tmp_path / "store" / of) for of in after if after[of] != before.get(of)}
    assert {of for of in changed if Path(of).is_file()} == cards
    assert "license: odc-by" in text_of(exports["bin"])
    assert problems_of(dataset) == []


def test_the_same_facts_give_the_same_bytes_in_another_folder(tmp_path: Path):
    _, one = made(tmp_path / "one")
    other, two = made(tmp_path / "a longer name of a folder")

    for name, folder in one.items():
        for file in BESIDE:
            assert (folder / file).read_bytes() == (two[name] / file).read_bytes(), (name, file)
        read = known_facts(find_export(folder), cards_of(other), Ancestry())
        assert text_of(folder).startswith(card_text(read))


@pytest.mark.parametrize("name", BESIDE)
def test_a_changed_byte_of_one_is_found_and_written_again(name: str, tmp_path: Path):
    dataset, exports = made(tmp_path)
    before = touched(exports["bin"])
    assert again(dataset) == 0
    assert touched(exports["bin"]) == before
    path = exports["bin"] / name
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"cc-by-4.0", b"cc-by-3.0", 1))

    [problem] = problems_of(dataset)
    assert problem.startswith(f"{path}: expected the sha256 of its other lines")
    if name == CARD_NAME:  # which a push has to read
        with pytest.raises(CorruptOutputError):
            read_card(find_export(exports["bin"]))

    assert again(dataset) == 1
    assert path.read_bytes() == whole
    assert problems_of(dataset) == []


def test_a_card_that_is_being_written_lies_where_gc_finds_what_killed_processes_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset, exports = made(tmp_path)
    begun: list[Path] = []
    monkeypatch.setattr("tokflow.store.atomic.sync", begun.append)

    dataset.store.write_beside(exports["bin"] / CARD_NAME, b"")

    assert begun[0].parent == exports["bin"].parent
    assert begun[0].name.startswith(f".{exports['bin'].name}.")


def test_gc_removes_the_card_with_its_export(tmp_path: Path):
    dataset, exports = made(tmp_path)
    other = declare_small(tmp_path, card=CARD, packing={"sequence_length": 4})
    build(other)

    garbage = find_garbage(other, keep=0)

    assert exports["parquet"] in garbage
    num_bytes = sum(of.stat().st_size for of in exports["parquet"].rglob("*") if of.is_file())
    assert garbage[exports["parquet"]] == num_bytes
    assert again(dataset) == 0


def test_a_store_at_a_url_has_them_and_verify_takes_them(object_store: ObjectStore, tmp_path: Path):
    dataset = declare_small(tmp_path, card=CARD, store=object_store.url)
    built = build(dataset)
    write_cards(dataset, [of.output for of in built.made])

    keys = [key for key in object_store.contents() if key.endswith(tuple(BESIDE))]
    assert len(keys) == 6
    assert problems_of(dataset) == []
    assert again(dataset) == 0
    for key in keys:
        object_store.put(key, b"{}")
    assert len(problems_of(dataset)) == 6
    assert again(dataset) == 3
    assert problems_of(dataset) == []


def test_croissant_names_every_file_with_its_digest_and_the_raw_files(tmp_path: Path):
    dataset, exports = made(tmp_path)

    fields = json.loads((exports["bin"] / CROISSANT_NAME).read_bytes())

    manifest = build(dataset).export("bin").manifest
    files = {of["@id"]: of["sha256"] for of in fields["distribution"]}
    assert {name: files[name] for name in manifest.files} == {
        name: entry.sha256 for name, entry in manifest.files.items()
    }
    raw = [file["prov:label"] for of in fields["prov:wasDerivedFrom"] for file in of["hasPart"]]
    assert sorted(raw) == ["a.jsonl", "b.jsonl", "sub/c.jsonl"]
    assert fields["conformsTo"] == "http://mlcommons.org/croissant/1.1"


def test_a_mixture_has_the_cards_of_its_sources_and_what_was_planned_of_them(tmp_path: Path):
    write_raw(tmp_path, TEXTS)
    each = {"tokenizer": "bytes", "store": "store"}
    sources = {
        name: {**each, "raw": {"files": f"raw/{name}.jsonl"}, "card": {"license": license_}}
        for name, license_ in (("a", "mit"), ("b", "odc-by"))
    }
    weights = {"a": {"weight": 1}, "b": {"weight": 2, "max_epochs": 4}}
    mix = {"mixture": {"sources": weights}, "store": "store", "exports": ["bin"]}
    path = tmp_path / "mixture.yaml"
    path.write_text(json.dumps({"datasets": {**sources, "mix": mix}}))
    mixture = load_datasets(path)[-1]

    again(mixture)

    folder = build(mixture).export("bin").folder
    text = text_of(folder)
    assert text.startswith(text_of_manifests(mixture, folder))
    assert "| a |  | mit |  |  |  | 1 | 4 | 25 | 29 | `" in text
    assert "| b |  | odc-by |  |  |  | 1 | 4 | 19 | 23 | `" in text
    [headings] = [line for line in text.splitlines() if line.startswith("| source | part |")]
    assert headings.startswith("| source | part | planned tokens | tokens | share |")
    assert "| a | train | 29 | 29 |" in text
    assert "| b | train | 58 | 58 |" in text
    sources["b"]["card"]["license"] = "cc0-1.0"
    path.write_text(json.dumps({"datasets": {**sources, "mix": mix}}))
    assert again(load_datasets(path)[-1]) == 1


def test_the_card_says_what_filters_left_out(tmp_path: Path):
    texts = {"a.jsonl": ["one", "two and a half"]}
    exports = [{"format": "bin"}]
    select = "num_tokens >= 5 and not near_duplicate"
    near = {"threshold": 0.7}
    how = {"exports": exports, "near_duplicates": near}
    dataset = declare(tmp_path, texts, select=select, **how)
    again(dataset)

    folder = build(dataset).export("bin").folder
    text = text_of(folder)
    assert text.startswith(text_of_manifests(dataset, folder))
    assert "| selection: not selected | 1 |" in text
    assert "| num_tokens >= 5 | 1 | 1 | 0 |" in text


def test_a_run_writes_them_and_says_so_where_nothing_else_is_new(tmp_path: Path):
    write_raw(tmp_path, TEXTS)
    first = run("run", "--config", write_yaml(tmp_path, card=CARD))
    assert first.exit_code == 0, first.output
    readme = tmp_path / "store/small/exports/bin/latest" / CARD_NAME
    assert "license: cc-by-4.0" in readme.read_text()

    again = run("run", "--config", write_yaml(tmp_path, card={**CARD, "license": "mit"}))

    said, nothing = again.stdout.splitlines()
    assert said == "small: cards of 3 exports written"
    assert nothing.startswith("small: nothing to do: 13 outputs")
    assert "license: mit" in readme.read_text()
