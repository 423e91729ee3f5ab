"""The tool that measures must not rot: its parts on texts of a few kB, with real processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import corpus, exact, fixed, jobs, loaders, orders, packing, programs, speed
from benchmarks.compare import compare
from benchmarks.loader_resume import ROW_TOKENS, Outcome, Run, measure_resume

EOS = programs.EOS_ID
TEXTS = ["The tale of it is not long.\n", "def start(self):\n    return 1\n"]

WRITE = "import array, sys; array.array('H', eval(sys.argv[1])).tofile(open(sys.argv[2], 'wb'))"
TWO_PROCESSES = """
import subprocess, sys
child = "held = bytearray(60_000_000); import time; time.sleep(0.8)"
held = bytearray(60_000_000)
subprocess.run([sys.executable, "-c", child], check=True)
"""
MEASURE = """
import sys
from benchmarks.process import measure
one = measure([sys.executable, "-c", sys.argv[1]], folder=".", environment={})
print(one.peak_bytes, one.largest_bytes, round(1000 * one.cpu_seconds))
"""


def writer(name: str, token_ids: list[int], **options) -> programs.Program:
    """A program that makes these token ids, whatever the file."""

    def command(place: programs.Place) -> list[object]:
        return [sys.executable, "-c", WRITE, token_ids, place.folder / name]

    return programs.Program(name=name, command=command, output=name, **options)


def measure_all(folder: Path, *chosen: programs.Program, **options) -> list[speed.Result]:
    file = folder / "corpus.jsonl"
    file.touch()
    defaults = {"repeats": 1, "peer_repeats": 1, "timeout": 60}
    return speed.measure_file(file, chosen, **{**defaults, **options})


def test_the_memory_of_all_processes_counts_and_not_only_the_largest():
    command = [sys.executable, "-c", MEASURE, TWO_PROCESSES]  # a small process, as pytest is not
    printed = subprocess.run(command, cwd=programs.ROOT, capture_output=True, check=True).stdout

    peak_bytes, largest_bytes, _ = map(int, printed.split())

    assert largest_bytes > 60_000_000
    assert peak_bytes > largest_bytes + 50_000_000


def test_a_document_with_other_tokens_is_counted():
    found = compare(np.array([1, 2, EOS, 3, EOS]), np.array([1, EOS, 3, EOS]), eos_id=EOS)

    assert (found["num_more"], found["num_missing"]) == (-1, 1)


def test_no_time_is_printed_where_our_own_programs_differ(tmp_path: Path):
    with pytest.raises(RuntimeError, match="no time is worth printing"):
        measure_all(tmp_path, writer("one", [1, EOS]), writer("other", [2, EOS]))


@pytest.mark.slow
def test_builds_of_many_files_are_the_same_with_any_number_of_jobs(shared: Path, tmp_path: Path):
    pattern = tmp_path / "raw/*.jsonl"
    corpus.write_corpora(pattern, corpus.divide(corpus.grow(TEXTS, 80_000), 80_000, 3))

    found = jobs.measure_jobs(pattern, numbers=[1, 2], folder=tmp_path, repeats=1)

    assert len(list(pattern.parent.iterdir())) == 3
    comparisons = [result.comparison for result in found.values()]
    assert [one.is_same for one in comparisons] == [True, True]
    assert comparisons[0].num_documents == len(list(corpus.grow(TEXTS, 80_000)))
    printed = list(jobs.table(found, text_bytes=8e4))
    assert [line.split()[0] for line in printed[1:3]] == ["1", "2"]
    assert len(printed) == 3
    assert len(list(jobs.judged([("80 kB", found)]))) == 2


@pytest.mark.slow
def test_our_own_programs_make_the_same_tokens(shared: Path, tmp_path: Path):
    file = tmp_path / "corpus.parquet"
    corpus.write_corpus(file, corpus.grow(TEXTS, 80_000))
    chosen = (programs.CORE, programs.RAW_ENGINE)

    results = speed.measure_file(file, chosen, repeats=1, peer_repeats=0, timeout=None)

    assert [one.comparison.is_same for one in results] == [True, True]
    assert results[0].comparison.num_documents == len(list(corpus.grow(TEXTS, 80_000)))
    assert any("core" in line for line in speed.aims([("80 kB", 8e4, results)]))


@pytest.mark.slow
def test_a_build_again_by_any_way_to_build_adds_little_to_the_history(shared: Path):
    costs = fixed.measure_fixed(2)

    assert list(costs) == list(fixed.WAYS)
    assert costs["tokflow run NAME"].history_bytes > 500_000
    assert costs["tokflow run NAME again"].history_bytes == 0
    assert 0 < costs["dagster job execute again"].history_bytes < 300_000


def test_each_strategy_is_measured_on_the_same_lengths():
    lengths = packing.make_lengths(1_000)

    found = packing.measure_packing(lengths, sequence_length=2_048)

    assert tuple(found) == packing.STRATEGIES
    for one in found.values():
        assert one.num_sequences * 2_048 - one.num_padding == lengths.sum()
        assert 0 < one.fill_fraction <= 1
    assert found["greedy"].fill_fraction < found["best_fit"].fill_fraction
    assert found["best_fit"].cut_fraction < found["concat"].cut_fraction
    assert len(list(packing.table(found))) == 1 + len(found)


def test_other_ids_are_counted_and_an_example_of_each_kind_is_named():
    shown = ["'longer'", "'ab'", "U+0080", "'c'"]
    expected = [np.array([1]), np.array([2]), np.array([3]), np.array([4])]
    others = [np.array([9]), np.array([2, 2]), np.array([5]), np.array([4])]
    cells = {
        "tiktoken": exact.compared(("0.14", expected), expected, shown),
        "kitoken": exact.compared(("0.11", others), expected, shown),
        "splintr": exact.compared("ValueError: no", expected, shown),
        "quicktok": exact.compared(None, expected, shown),
    }

    lines = list(exact.table([("GPT-2", "tiktoken", cells)]))

    assert lines[2] == "| GPT-2 | **0** | 2 / 1 | refused |  |"
    assert lines[-2:] == ["GPT-2, kitoken: 'ab', U+0080", "GPT-2, splintr: ValueError: no"]


@pytest.mark.slow
def test_tokflow_gives_the_rows_of_its_exports_and_goes_on_with_other_ranks(tmp_path: Path):
    ids = loaders.make_ids(tmp_path, has_halves=False)
    asked = {"sequence_length": ROW_TOKENS, "windows": 1, "window_seconds": 0}

    speeds = [
        loaders.ask(loaders.own(name="", variant=variant), "speed", ids, **asked)
        for variant in ("bin", "parquet")
    ]
    program = loaders.own(name="", variant="parquet")
    found = measure_resume(program, ids, after={"others": Run(world_size=1, batch_size=48)})

    assert [len(speed["rows_per_second"]) for speed in speeds] == [1, 1]
    assert found["others"] == Outcome(order="same")


EVENS_FIRST = """
import numpy as np
from benchmarks.peers.order_command import run

def evens_first(size, seed):
    return lambda places: np.concatenate([np.arange(seed, size, 2), np.arange(0, size, 2)])[places]

run({"evens first": evens_first})
"""


def test_orders_are_judged_by_their_numbers_whoever_computes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "evens.py").write_text(EVENS_FIRST)
    monkeypatch.setattr(orders, "python", lambda peer: [sys.executable, tmp_path / "evens.py"])
    monkeypatch.setenv("PYTHONPATH", str(programs.ROOT))
    peer = orders.Contender(name="evens", numbers_at=orders.of_peer("evens", "evens first"))

    found = orders.measure_orders((*orders.WHOLE[:2], peer), 2_000, seeds=(1, 1))

    assert abs(found["tokflow"].worst.z) < 5
    assert found["evens"].shown["correlation"].value > 0.9
    [_, ours, numpys, evens] = orders.table(found)
    assert ours.endswith("passes")
    assert numpys.endswith("passes")
    assert not evens.endswith("passes")
