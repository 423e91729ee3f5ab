"""The tool that measures must not rot: its parts on texts of a few kB, with real processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import corpus, fixed, growth, jobs, packing, programs, prose, speed
from benchmarks.compare import compare
from benchmarks.process import Measurement, OverTimeError, measure

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


def measurement(*, seconds: float, peak_bytes: int) -> Measurement:
    return Measurement(
        wall_seconds=seconds, cpu_seconds=seconds, peak_bytes=peak_bytes, largest_bytes=peak_bytes
    )


def result(program: programs.Program, **numbers) -> speed.Result:
    return speed.Result(program=program, runs=[measurement(**numbers)])


def lines(results: list[speed.Result]) -> list[str]:
    return list(speed.table(results, text_bytes=1e6))


def test_text_grows_by_other_letters_and_keeps_its_length():
    texts = list(corpus.grow(TEXTS, 5 * len("".join(TEXTS))))

    assert texts[:2] == TEXTS
    assert [len(text) for text in texts] == [len(text) for text in TEXTS] * 5
    assert len(set(texts)) == 10


def test_a_paragraph_of_sentences_is_prose_in_one_line():
    text = (
        "This is what it does with the text that is given to it:\n  it is read as a whole, and it "
        "is kept\n  for as long as there is a reader of it."
    )

    assert prose.sentences(text) == " ".join(text.split())


def test_the_memory_of_all_processes_counts_and_not_only_the_largest():
    command = [sys.executable, "-c", MEASURE, TWO_PROCESSES]  # a small process, as pytest is not
    printed = subprocess.run(command, cwd=programs.ROOT, capture_output=True, check=True).stdout

    peak_bytes, largest_bytes, _ = map(int, printed.split())

    assert largest_bytes > 60_000_000
    assert peak_bytes > largest_bytes + 50_000_000


def test_a_process_that_takes_too_long_is_ended():
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]

    with pytest.raises(OverTimeError, match="over 1 s"):
        measure(sleep, folder=Path.cwd(), environment={}, timeout=1)


def test_another_order_of_documents_is_no_difference():
    one, other = np.array([1, 2, EOS, 3, EOS]), np.array([3, EOS, 1, 2, EOS])

    found = compare(one, other, eos_id=EOS)

    assert not found["is_same"]
    assert (found["num_more"], found["num_missing"], found["num_documents"]) == (0, 0, 2)


def test_a_document_with_other_tokens_is_counted():
    found = compare(np.array([1, 2, EOS, 3, EOS]), np.array([1, EOS, 3, EOS]), eos_id=EOS)

    assert (found["num_more"], found["num_missing"]) == (-1, 1)


def test_a_peer_with_other_tokens_is_shown_with_the_reason(tmp_path: Path):
    own = writer("own", [1, 2, EOS, 3, EOS])
    peer = writer("peer", [1, EOS, 3, EOS], is_peer=True, difference="strips documents")

    first, second = measure_all(tmp_path, own, peer)

    assert (len(first.runs), len(second.runs)) == (1, 1)
    assert lines([first, second])[1].endswith("  same")
    assert lines([first, second])[2].endswith("differ: -1 in 1 of 2 documents (strips documents)")


def test_no_time_is_printed_where_our_own_programs_differ(tmp_path: Path):
    with pytest.raises(RuntimeError, match="no time is worth printing"):
        measure_all(tmp_path, writer("one", [1, EOS]), writer("other", [2, EOS]))


def test_a_peer_that_fails_stops_nobody_and_is_shown_with_its_last_line(tmp_path: Path):
    peer = writer("peer", [70_000], is_peer=True)  # no uint16

    results = measure_all(tmp_path, peer, writer("own", [1, EOS]))

    assert "OverflowError" in lines(results)[1]
    assert lines(results)[2].endswith("  same")


def test_the_aims_are_judged_by_the_numbers():
    core = result(programs.CORE, seconds=2.0, peak_bytes=800_000_000)
    raw = result(programs.RAW_ENGINE, seconds=2.5, peak_bytes=1)
    peer = result(writer("peer", [], is_peer=True), seconds=30.0, peak_bytes=1)
    slow = result(writer("slow", [], is_peer=True), seconds=90.0, peak_bytes=1)

    judged = [line.split() for line in speed.aims([("300 MB", 300e6, [core, raw, peer, slow])])]

    assert [line[0] for line in judged] == ["met", "met", "MISSED"]
    assert "15.0" in judged[1]


def test_growth_is_judged_by_its_line_and_by_100_mb_of_memory():
    sizes = {
        size: result(programs.CORE, seconds=1 + size / 1e8, peak_bytes=300_000_000 + more)
        for size, more in ((1e8, 0), (2e8, 100_000_000), (4e8, 100_000_001))
    }

    assert growth.time_verdict(sizes).startswith("linear: 1.00 s + 10.00 ms per MB (100 MB/s)")
    assert growth.memory_verdict(sizes).startswith("NOT flat: +100 MB from 100 to 400 MB")
    del sizes[4e8]
    assert growth.memory_verdict(sizes).startswith("flat: +100 MB from 100 to 200 MB")


def test_a_build_of_two_jobs_is_judged_by_its_share_of_two_runs_at_once():
    found = {
        number: result(programs.RUN_CONFIG, seconds=seconds, peak_bytes=1)
        for number, seconds in ((1, 10.0), (2, 7.0))
    }
    found[1].at_once_seconds, found[2].at_once_seconds = [10.0], [12.0]

    [aim, _] = jobs.judged([("80 kB", found)])
    assert aim.split()[0] == "MISSED"
    assert "2 jobs take 1.17 times their share of 2 runs at once" in aim


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


def test_an_aim_of_many_files_that_is_missed_is_said():
    def cost(seconds, history_bytes):
        measured = Measurement(
            wall_seconds=seconds, cpu_seconds=1.0, peak_bytes=1, largest_bytes=1, others_seconds=0
        )
        return fixed.Cost(measured=measured, history_bytes=history_bytes)

    costs = dict.fromkeys(fixed.WAYS, cost(2.0, 900_000))
    costs["tokflow run NAME again"] = cost(4.0, 2_000_000)

    lines = list(fixed.table({1_000: costs}))

    assert [line.strip() for line in lines if "MISSED" in line] == [
        "MISSED  1,000 files, tokflow run NAME again: 4.00 s, aim under 3 s",
        "MISSED  1,000 files, tokflow run NAME again, history: 2,000 kB, aim under 1,000 kB",
    ]


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
