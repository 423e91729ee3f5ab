from tokflow.cli.output import described_sequences

NOTHING = dict.fromkeys(
    [
        "train.num_sequences",
        "train.num_tokens",
        "train.num_padding",
        "train.num_cut_documents",
        "train.num_truncated_documents",
        "train.num_dropped_documents",
        "train.num_dropped_tokens",
        "train.num_repeated_tokens",
    ],
    0,
)


def test_full_rows_are_said_to_be_full():
    counts = {**NOTHING, "train.num_sequences": 1_200, "train.num_tokens": 4_800}

    assert described_sequences(counts, "train") == "1,200 sequences (100 % full)"


def test_what_packing_did_is_said_and_the_fill_is_rounded_down():
    counts = {
        "train.num_sequences": 1,
        "train.num_tokens": 9_999,
        "train.num_padding": 1,
        "train.num_cut_documents": 2,
        "train.num_truncated_documents": 1,
        "train.num_dropped_documents": 3,
        "train.num_dropped_tokens": 4,
        "train.num_repeated_tokens": 5,
    }

    assert described_sequences(counts, "train") == (
        "1 sequence (99.9 % full, 1 token of padding, 2 documents cut, 1 document truncated, "
        "3 documents dropped, 4 tokens dropped, 5 tokens repeated)"
    )


def test_no_rows_are_nothing_full():
    assert described_sequences(NOTHING, "train") == "0 sequences"
