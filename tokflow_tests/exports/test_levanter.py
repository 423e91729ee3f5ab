import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorstore
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.audit.verify.export import verify_export
from tokflow.exports.formats import levanter
from tokflow_tests.chats import chat, chat_dataset
from tokflow_tests.exports.exporting import export
from tokflow_tests.outputs import content, parts, stored
from tokflow_tests.tiny import EOS, declare

TEXTS = ["abc", "", "defghi"]


def values_of(folder: Path, stop: int) -> list[int]:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    return tensorstore.open(spec, open=True).result()[:stop].read().result().tolist()


def test_a_cache_has_tokens_and_where_documents_end_and_nothing_is_left_to_be_done(tmp_path: Path):
    folder, manifest = export(declare(tmp_path, {"a.jsonl": TEXTS}, exports=["levanter"]))
    cache = folder / "train" / "input_ids"

    assert values_of(cache / "data", 13) == [*b"abc", EOS, EOS, *b"defghi", EOS, 0]
    assert values_of(cache / "offsets", 5) == [3, 4, 5, 12, 0]
    assert json.loads((folder / "train" / "shard_ledger.json").read_text()) == {
        "total_num_rows": 3,
        "shard_rows": {"": 3},
        "is_finished": True,
        "finished_shards": [""],
        "field_counts": {},
        "metadata": {"preprocessor_metadata": None},
    }
    assert manifest.counts["train.num_documents"] == 3
    codec = {"name": "blosc", "configuration": {"clevel": 5}}
    sharding = {"chunk_shape": [256 * 1024], "codecs": [codec]}
    metadata = {  # what levanter asks of an array that it opens
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [512 * 256 * 1024]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    for name, dtype in (("data", "int32"), ("offsets", "int64")):
        store = {"driver": "file", "path": str(cache / name)}
        spec = {"driver": "zarr3", "kvstore": store, "metadata": metadata}
        tensorstore.open(spec, open=True, dtype=dtype, shape=[2**54]).result()


RUNS = st.lists(st.one_of(st.lists(st.integers(0, 9), max_size=50), st.just([0] * 45)), max_size=4)


@settings(max_examples=40, deadline=None)
@given(RUNS.filter(any))
def test_the_bytes_are_those_that_tensorstore_writes(runs: list[list[int]]):
    arrays = [np.array(run, dtype=np.int32) for run in runs]
    whole = np.concatenate(arrays)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as temporary:
        for name, size in (("CHUNK", 4), ("CHUNKS_PER_SHARD", 5), ("CHUNKS_AT_ONCE", 2)):
            patch.setattr(levanter, name, size)
        ours, theirs = Path(temporary) / "ours", Path(temporary) / "theirs"

        levanter._write_array(ours, iter(arrays), len(whole), whole.dtype)
        spec = levanter._spec({"driver": "file", "path": str(theirs)}, whole.dtype)
        array = tensorstore.open(spec, create=True).result()
        array[: len(whole)].write(whole).result()

        assert content(ours) == content(theirs)


def test_a_mask_of_zeros_alone_has_no_file_and_is_read(tmp_path: Path):
    accept = {"on_no_loss": "accept"}
    unanswered = [chat("never answered")]
    dataset = chat_dataset(tmp_path, unanswered, documents=accept, exports=["levanter"])
    folder, manifest = export(dataset)

    names = [name for name in content(folder / "train" / "assistant_masks") if "data" in name]

    assert names == ["data/zarr.json"]
    assert manifest.counts["train.num_loss_tokens"] == 0
    assert verify_export(stored(folder, manifest), list(parts(dataset, "levanter").values())) == []
