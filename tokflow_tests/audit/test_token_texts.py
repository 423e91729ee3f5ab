"""Tokens are drawn by one function for the report, the viewer, `tokflow inspect` and Dagster."""

from pathlib import Path

import pytest

from tokflow.audit.token_texts import TokenTexts, drawn
from tokflow.pipeline.mixture import graph_of
from tokflow_tests.tiny import EOS, declare_small


@pytest.fixture
def texts(built_small: Path) -> TokenTexts:
    return TokenTexts(graph_of(declare_small(built_small)).tokenizer)


def test_a_token_that_stands_alone_shows_its_spaces_and_bytes(texts: TokenTexts):
    shown = [texts.chip(of) for of in (*b" a\n\t", 0xE2, EOS)]

    assert shown == ["·", "a", "⏎", "⇥", "\\xe2", "<eos>"]


def test_tokens_that_have_a_character_together_are_shown_together(texts: TokenTexts):
    pieces = list(texts.pieces([*"a€".encode(), 0xE2, *b"b", EOS]))

    assert pieces == [
        ((0x61,), "a"),
        ((0xE2, 0x82, 0xAC), "€"),
        ((0xE2,), "\N{REPLACEMENT CHARACTER}"),
        ((0x62,), "b"),
        ((EOS,), "<eos>"),
    ]


def test_all_of_a_text_can_be_seen_and_none_of_it_is_obeyed():
    assert drawn("a\n\tb\u202e\x00") == "a⏎\n⇥b\\u202e\\x00"


def test_an_id_that_no_token_has_is_damage(texts: TokenTexts):
    assert texts.decoded([*b"one", EOS]) == "one<eos>"
    assert texts.decoded([9_999]) == "(damaged: an id is not below vocab_size)"
