"""Parts that are packed otherwise than others: in every format of rows, and by all that reads."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.inspection import inspect_output
from tokflow.audit.trace import sequence_range, trace_tokens
from tokflow.errors import ConfigError
from tokflow.exports import Export
from tokflow.exports.reading import open_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow_tests.exports.test_contract import EXPORTS_OF_KINDS, is_of_rows
from tokflow_tests.outputs import content, problems_at, problems_of
from tokflow_tests.tiny import build, declare

FILES = {"a.jsonl": ["abcdefgh", "", "ijk"], "b.jsonl": ["lm", "nopqrstuvwxyz", "0123"]}
SPLIT = {
    "boundary": "character",
    "parts": {"train": {"start": 0, "characters": 5}, "validation": {"start": 5, "characters": 99}},
}
OWN: dict[str, Any] = {
    "train": {"sequence_length": 5, "label_token": True},
    "validation": {"strategy": "best_fit", "sequence_length": 3, "pad_id": 7}
    | {"padding_side": "left"},
}
KINDS = [of for of in EXPORTS_OF_KINDS.values() if is_of_rows(of)]
ROWS = [*{of["format"]: of for of in reversed(KINDS)}.values()]
"""One of each format."""
NAMES = [export["name"] for export in ROWS]


def declared(folder: Path, packing: dict[str, Any], *exports: Any) -> Dataset:
    return declare(folder, FILES, split=SPLIT, packing=packing, exports=[*exports])


def folder_of(dataset: Dataset, name: str) -> Path:
    graph = graph_of(dataset)
    return graph.named("export", name).folder


def rows(export: Export, part: str) -> list[list[int]]:
    return [row for some in export.read(part) for row in some["token_ids"].tolist()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Datasets over one store: one whose parts are packed otherwise, and for each part one that
    packs all as that part is packed."""
    folder = tmp_path_factory.mktemp("packing")
    datasets = {"both": declared(folder, {"parts": OWN}, *ROWS)}
    datasets |= {name: declared(folder, of, *ROWS) for name, of in OWN.items()}
    for dataset in datasets.values():
        build(dataset)
    return datasets


@pytest.mark.parametrize("name", NAMES)
def test_the_files_of_a_part_are_those_of_a_dataset_packed_as_it_alone_and_so_it_is_opened(
    name: str, built: dict[str, Dataset]
):
    both = content(folder_of(built["both"], name))
    export = open_export(folder_of(built["both"], name))

    for part, length in {"train": 6, "validation": 3}.items():
        folder = folder_of(built[part], name)
        mine = {path: data for path, data in content(folder).items() if path.startswith(part[:3])}
        assert mine
        assert {path: data for path, data in both.items() if path.startswith(part[:3])} == mine
        alone = open_export(folder)
        assert export.of_part(part).sequence_length == length
        assert export.counts[f"{part}.num_padding"] == alone.counts[f"{part}.num_padding"]
        assert not export.is_read or rows(export, part) == rows(alone, part)
    with pytest.raises(ConfigError, match="found 6 in train, 3 in validation; ask for that of a p"):
        _ = export.sequence_length


def test_all_that_audits_knows_the_length_of_each_part(built: dict[str, Dataset]):
    dataset = built["both"]
    path = folder_of(dataset, "parquet")

    assert problems_of(dataset) == []
    assert problems_at(dataset.folder) == []
    shown = {excerpt.name for excerpt in inspect_output(path, num_sequences=2).excerpts}
    assert {"train: sequence 1", "validation: sequence 1"} <= shown
    for part in OWN:
        for number, row in enumerate(rows(open_export(path), part)):
            start, stop = sequence_range(path, part, number)
            origins = trace_tokens(path, part=part, start=start, stop=stop)
            found = [token for origin in origins for token in origin.token_ids or ()]
            padding = [7 if part == "validation" else 256] * (len(row) - len(found))
            assert row == ([*padding, *found] if part == "validation" else [*found, *padding])
