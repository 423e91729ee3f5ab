import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow_tests.exports.exporting import export, read
from tokflow_tests.outputs import parts
from tokflow_tests.tiny import EOS, build, declare, many_ids

ARCHAI = FORMATS["archai"]


def test_the_config_is_as_archai_writes_it(tmp_path: Path):
    exports = [
        {
            "format": "archai",
            "dataset_file_path": "texts",
            "tokenizer_name": "gpt2",
            "mapping_column_name": ["content"],
            "validation_split": 0.1,
            "shuffle": True,
            "seed": 7,
        }
    ]
    folder, _ = export(declare(tmp_path, {"a.jsonl": ["ab"]}, exports=exports))

    assert (folder / "config.json").read_text() == (
        '{"dataset_file_path": "texts", '
        '"tokenizer": {"name_or_path": "gpt2", "model_max_length": null}, '
        '"mapping_column_name": ["content"], "validation_split": 0.1, "shuffle": true, '
        '"seed": 7, "use_eos_token": true}'
    )


@pytest.mark.parametrize(("eos", "uses_eos"), [("last", True), ("none", False)])
def test_the_config_names_what_was_tokenized_without_being_told(
    eos: str, uses_eos: bool, tmp_path: Path
):
    fields = {"documents": {"text": ["title", "body"]}, "exports": ["archai"]}
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text('{"title": "a", "body": "b"}\n')
    folder, manifest = export(declare(tmp_path, tokenizer={"kind": "bytes", "eos": eos}, **fields))

    config, options = (
        json.loads((folder / "config.json").read_text()),
        manifest.recipe.config["options"],
    )
    assert config["dataset_file_path"] == options["dataset_file_path"] == "raw/*.jsonl"
    assert config["tokenizer"]["name_or_path"] == options["tokenizer_name"] == "bytes"
    assert config["mapping_column_name"] == options["mapping_column_name"] == ["title", "body"]
    assert (config["validation_split"], config["shuffle"], config["seed"]) == (0.0, False, 42)
    assert config["use_eos_token"] is uses_eos
    assert set(manifest.details["names"]) == {"source", "columns", "tokenizer"}


@pytest.mark.parametrize("root", ["", "{root}/", "file://{root}/"])
def test_what_the_config_names_is_found_from_the_folder_of_the_project(root: str, tmp_path: Path):
    (project := tmp_path / "a project").mkdir()
    (project / "many.json").write_text(many_ids())
    root = root.format(root=project)
    tokenizer = {"kind": "file", "name": root.removeprefix("file://") + "many.json"}
    tokenizer |= {"engine": "reference", "eos_token": "<eos>"}
    raw = {"files": f"{root}raw/*.jsonl"}

    dataset = declare(
        project, {"a.jsonl": ["w1"]}, exports=["archai"], raw=raw, tokenizer=tokenizer
    )
    build(dataset)

    config = json.loads((dataset.folder / "exports/archai/latest/config.json").read_text())
    assert config["dataset_file_path"] == "raw/*.jsonl"
    assert config["tokenizer"]["name_or_path"] == "many.json"
    assert [*project.glob(config["dataset_file_path"])] == [project / "raw/a.jsonl"]


@pytest.mark.parametrize("files", ["{elsewhere}/a.jsonl", "local://{elsewhere}/a.jsonl"])
def test_the_config_names_no_folder_outside_the_project(files: str, tmp_path: Path):
    raw = {"files": files.format(elsewhere=tmp_path / "elsewhere")}
    tokenizer = {"kind": "file", "name": str(tmp_path / "elsewhere/many.json")}

    [config] = declare(
        tmp_path / "project", exports=["archai"], raw=raw, tokenizer=tokenizer
    ).exports

    assert config.options.dataset_file_path == "a.jsonl"
    assert config.options.tokenizer_name == "many.json"


def test_several_sources_are_named_by_the_first_without_its_secrets(tmp_path: Path):
    raw = {"files": ["https://me:secret@host/a/*.jsonl?token=secret", "b.jsonl"]}

    [config] = declare(tmp_path, {}, exports=["archai"], raw=raw).exports

    assert config.options.dataset_file_path == "https://host/a/*.jsonl and 1 more"


def test_the_config_says_how_documents_were_drawn_without_being_told(tmp_path: Path):
    split = {"parts": {"train": {"fraction": 0.75}, "validation": {"fraction": 0.25}}, "seed": 7}
    dataset = declare(tmp_path, {"a.jsonl": [*"abcd"]}, exports=["archai"], split=split)
    build(dataset)

    config = json.loads((dataset.folder / "exports/archai/latest/config.json").read_text())
    drawn = {name: config[name] for name in ("validation_split", "shuffle", "seed")}
    assert drawn == {"validation_split": 0.25, "shuffle": True, "seed": 7}


@pytest.mark.parametrize(
    ("files", "config", "data_files"),
    [("", "sst2", None), ("", None, None), ("/sst2/*.parquet", None, "sst2/*.parquet")],
)
def test_the_config_names_a_dataset_of_the_hub_as_from_hub_does(
    files: str, config: str | None, data_files: str | None, tmp_path: Path
):
    raw = {"files": f"hf://datasets/nyu-mll/glue@main{files}", "config": config}
    dataset = declare(tmp_path, {}, exports=["archai"], raw=raw)

    built = declare(tmp_path, {"a.jsonl": ["ab"]}, exports=["archai"])
    build(built)
    ARCHAI.finish([*parts(built, "archai").values()], dataset.exports[0].options, tmp_path)

    written = json.loads((tmp_path / "config.json").read_text())
    assert [*written.items()][:4] == [
        ("dataset_name", "nyu-mll/glue"),
        ("dataset_config_name", config),
        ("data_dir", None),
        ("data_files", data_files),
    ]
    assert "dataset_file_path" not in written


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65_535, np.uint16), (65_536, np.int32), (2**31, np.int32)]
)
def test_ids_have_the_dtype_that_archai_chooses(vocab_size: int, dtype: type, tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["ab"]}, exports=["archai"])
    _, manifest = export(dataset)
    [part] = parts(dataset, "archai").values()
    sized = replace(part, vocab_size=vocab_size)

    [*ARCHAI.write(sized, ARCHAI.options(), tmp_path)]

    assert np.load(tmp_path / "train.npy").dtype == dtype
    [fields] = read(tmp_path, manifest)
    assert fields["token_ids"].dtype == np.uint16
    assert fields["token_ids"].tolist() == [*b"ab", EOS]


def test_parts_that_archai_has_no_file_for_are_refused_when_the_dataset_is_declared(tmp_path: Path):
    split = {"parts": {"train": {"documents": 1}, "dev": {"start": 1}, "val": {"documents": 0}}}

    with pytest.raises(ConfigError) as caught:
        declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["archai"], split=split)

    assert (caught.value.where, caught.value.found) == ("test: exports: archai", "dev, val")
