"""docs/loaders.md does what it says; the sections with torch and so on are run in `interop`."""

from pathlib import Path

import numpy as np

from tokflow.loaders import Loader, open_rows
from tokflow_tests.loaders.documentation import SECTIONS, WITH_NUMPY, run_sections
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import build, declare

AT_A_URL = "Exports at a URL"
WITH_PEERS = ("torch", "torchtitan", "Grain", "JAX")


def test_the_code_of_the_docs_gives_what_the_docs_say(tmp_path: Path):
    found = run_sections(tmp_path, *WITH_NUMPY)

    assert found["row"]["input_ids"].shape == (16,)
    assert found["rows"][[3, 1, 2]]["index"].tolist() == [3, 1, 2]
    assert found["packed"][0]["segment_ids"].tolist() == [1, 2, 2, 2]
    assert found["stored"].document(3).tolist() == [*b"web 3 " * 3, 256]
    counts = np.bincount(found["mixed"].gather(np.arange(1024))["source"])
    assert counts.tolist() == [717, 307]
    assert found["state"]["samples"] == 8
    expected = found["samples"].gather(np.array([12, 13]))
    assert found["batch"]["index"].tolist() == expected["index"].tolist()


def test_the_code_of_the_docs_reads_an_export_at_a_url(tmp_path: Path, object_store: ObjectStore):
    texts = [f"web {number} " * (number % 7) for number in range(100)]
    declared = {"name": "web", "store": f"{object_store.url}/store", "exports": ["npy"]}
    build(declare(tmp_path, {"a.jsonl": texts}, **declared))
    found = {"open_rows": open_rows, "Loader": Loader}

    for block in SECTIONS[AT_A_URL]:
        exec(block.replace("s3://bucket", object_store.url), found)

    assert found["batch"]["input_ids"].shape == (8, 16)


def test_every_block_of_the_docs_is_run():
    run = {*WITH_NUMPY, *WITH_PEERS, AT_A_URL}
    assert {name for name, blocks in SECTIONS.items() if blocks} == run
