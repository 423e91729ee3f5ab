"""What the proofs expect must be right where no peer is needed to see it."""

from pathlib import Path

import numpy as np
import pytest

from tokflow.exports import Export
from tokflow_tests.interop import harness
from tokflow_tests.interop.harness import known_dataset
from tokflow_tests.outputs import stored


@pytest.mark.parametrize("with_eos", [True, False])
@pytest.mark.parametrize("ids", ["bytes", "many"])
def test_the_expected_tokens_and_rows_are_those_of_the_exports(
    ids: str, with_eos: bool, tmp_path: Path
):
    stream = known_dataset(tmp_path / "stream", "bin", ids=ids, with_eos=with_eos)
    rows = known_dataset(tmp_path / "rows", "parquet", ids=ids, with_eos=with_eos)

    for part in ("train", "validation"):
        [tokens] = Export(stored(stream.folder, stream.manifest)).read(part)
        [arrays] = Export(stored(rows.folder, rows.manifest)).read(part)

        assert tokens["token_ids"].tolist() == stream.token_ids(part).tolist()
        assert stream.offsets(part)[-1] == len(tokens["token_ids"])
        for name, expected in rows.rows(part).items():
            np.testing.assert_array_equal(arrays[name], expected)
    if not with_eos:  # there are documents of every kind
        lengths = {len(document) for document in stream.documents("train")}
        assert {0, 1} < lengths
        assert max(lengths) > 8 * stream.sequence_length
        assert (stream.token_ids("train").max() >= 65_536) == (ids == "many")


def test_a_peer_that_is_not_installed_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(harness, "ENVIRONMENTS", tmp_path)
    monkeypatch.delenv("TOKFLOW_PEERS", raising=False)

    with pytest.raises(pytest.fail.Exception, match="run `make test-interop PEERS=megatron`"):
        harness.read_with("megatron", tmp_path, "train")


def test_a_peer_that_is_not_selected_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKFLOW_PEERS", "mds litdata")

    with pytest.raises(pytest.skip.Exception, match="megatron is not among PEERS='mds litdata'"):
        harness.read_with("megatron", tmp_path, "train")
