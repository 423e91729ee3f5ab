from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokflow.exports import part_sequences
from tokflow.exports.options import equal_sizes, even_sizes
from tokflow.exports.token_files import even_sizes_by_documents, sizes_by_documents
from tokflow_tests.outputs import int64


def cut(runs: list[list[int]], sizes: list[int]) -> list[list[list[int]]]:
    arrays = iter([np.array(run, dtype=np.int64) for run in runs])
    return [[run.tolist() for run in taken] for taken in part_sequences.cut(arrays, sizes)]


def test_runs_are_cut_where_a_file_ends():
    assert cut([[1, 2, 3, 4, 5], [6, 7, 8, 9]], [3, 6]) == [[[1, 2, 3]], [[4, 5], [6, 7, 8, 9]]]
    assert cut([[1, 2], [3, 4]], [2, 1, 1]) == [[[1, 2]], [[3]], [[4]]]
    assert cut([[1, 2, 3]], [2, 5]) == [[[1, 2]], [[3]]]


def test_equal_files_are_full_but_for_the_last():
    assert equal_sizes(10, 4) == [4, 4, 2]
    assert equal_sizes(8, 4) == [4, 4]
    assert equal_sizes(0, 4) == []


def test_a_number_of_files_are_as_equal_as_they_can_be():
    assert even_sizes(10, 4) == [3, 3, 2, 2]
    assert even_sizes(8, 4) == [2, 2, 2, 2]
    assert even_sizes(3, 4) == [1, 1, 1]
    assert even_sizes(0, 4) == []


def test_a_number_of_files_end_with_the_documents_nearest_to_equal_shares():
    tokens, documents = even_sizes_by_documents(int64(0, 3, 1, 0, 4, 4, 0), 3)

    assert tokens.tolist() == [4, 4, 4]
    assert documents.tolist() == [4, 1, 2]


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12))
def test_a_number_of_files_hold_every_document_once_and_none_is_empty(
    lengths: list[int], num_files: int
):
    tokens, documents = even_sizes_by_documents(int64(*lengths), num_files)

    assert len(tokens) == min(num_files, sum(length > 0 for length in lengths))
    ends = np.cumsum(documents).tolist()
    assert [sum(lengths[start:end]) for start, end in pairwise([0, *ends])] == tokens.tolist()
    assert (tokens > 0).all()
    assert ends[-1:] == ([len(lengths)] if sum(lengths) else [])


def test_files_of_whole_documents():
    tokens, documents = sizes_by_documents(int64(3, 2, 2, 9, 1, 1), 5)

    assert tokens.tolist() == [5, 2, 9, 2]
    assert documents.tolist() == [2, 1, 1, 2]


def test_documents_of_no_tokens_go_with_the_one_before_them():
    tokens, documents = sizes_by_documents(int64(0, 5, 0, 0, 6, 0), 5)

    assert tokens.tolist() == [5, 6]
    assert documents.tolist() == [4, 2]


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12))
def test_files_hold_every_document_once_and_none_is_larger_than_it_must_be(
    lengths: list[int], tokens_per_file: int
):
    tokens, documents = sizes_by_documents(int64(*lengths), tokens_per_file)

    assert tokens.sum() == sum(lengths)
    assert documents.sum() == (len(lengths) if sum(lengths) else 0)
    assert (tokens > 0).all()
    first = 0
    for size, num in zip(tokens.tolist(), documents.tolist(), strict=True):
        mine = lengths[first : first + num]
        assert sum(mine) == size
        assert size <= tokens_per_file or sum(length > 0 for length in mine) == 1
        first += num
        if first < len(lengths):
            assert size + lengths[first] > tokens_per_file
