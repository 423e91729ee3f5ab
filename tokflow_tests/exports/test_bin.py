import subprocess
import sys
from pathlib import Path

import numpy as np

from tokflow.exports import Export
from tokflow_tests.exports.exporting import MANY_IDS, export
from tokflow_tests.outputs import content, stored
from tokflow_tests.tiny import build, declare, ids, many_ids


def test_bin_is_the_tokens_and_nothing_else(tmp_path: Path):
    folder, _ = export(declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["bin"]))

    data = (folder / "train.bin").read_bytes()

    assert data == b"a\0b\0\0\1c\0\0\1"
    assert sorted(content(folder)) == [
        "_tokflow/index.parquet",
        "_tokflow/manifest.json",
        "train.bin",
    ]


def test_bin_of_many_ids_has_four_bytes_per_token(tmp_path: Path):
    (tmp_path / "many.json").write_text(many_ids())
    files = {"a.jsonl": ["w65536 w1 w69999", "w65535"]}
    folder, manifest = export(declare(tmp_path, files, exports=["bin"], tokenizer=MANY_IDS))

    tokens = np.memmap(folder / "train.bin", dtype=np.uint32, mode="r")

    assert tokens.tolist() == [65_536, 1, 69_999, 70_000, 65_535, 70_000]
    assert manifest.details["dtype"] == "<u4"


def test_bin_calls_validation_as_nanogpt_does(tmp_path: Path):
    split = {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}}
    dataset = declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["bin"], split=split)
    folder, manifest = export(dataset)

    assert (folder / "val.bin").read_bytes() == b"c\0\0\1"
    assert not (folder / "validation.bin").exists()
    [own] = Export(stored(folder, manifest)).read("validation")
    assert own["token_ids"].tolist() == ids("c")


def test_bin_leaves_the_name_val_to_the_part_that_has_it(tmp_path: Path):
    split = {"parts": {"val": {"documents": 1}, "validation": {"start": 1}}}
    dataset = declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["bin"], split=split)
    folder, _ = export(dataset)

    assert (folder / "val.bin").read_bytes() == b"a\0b\0\0\1"
    assert (folder / "validation.bin").read_bytes() == b"c\0\0\1"


def test_bin_on_a_full_disk_is_an_error_and_not_a_shorter_file(tmp_path: Path):
    dataset = declare(tmp_path, {"a.jsonl": ["x" * 1_800]}, exports=["bin"])
    build(dataset)
    code = f"""
import resource, signal
from pathlib import Path
from tokflow.pipeline.declared import make_dataset
from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow_tests.outputs import parts
from tokflow_tests.tiny import declare

dataset = declare(Path({str(tmp_path)!r}), {{}}, exports=["bin"])
[written] = parts(dataset, "bin").values()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3001, 3001))
FORMATS["bin"].write(written, FORMATS["bin"].options(), Path({str(tmp_path)!r}))
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1] == "OSError: [Errno 27] File too large"
