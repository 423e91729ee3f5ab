from benchmarks import packing


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
