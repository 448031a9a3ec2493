"""Which ids two models share: by the strings, whatever their rows are padded to."""

from __future__ import annotations

from engine.vocabularies import MOST_STRAY, compare

WORDS = {f"w{i}": i for i in range(50)}


def test_the_same_strings_and_rows_are_equal():
    found = compare(WORDS, WORDS, 50, 50)
    assert (found.kind, found.masked, found.num_differing, found.first) == ("equal", (), 0, None)


def test_padding_rows_that_nobody_names_are_masked():
    found = compare(WORDS, WORDS, 60, 56)
    assert found.kind == "padded"
    assert found.num_rows == 56
    assert found.masked == tuple(range(50, 56))
    assert compare(WORDS, WORDS, 56, 60).masked == found.masked


def test_a_renamed_special_token_is_masked_and_named():
    renamed = {**{f"w{i}": i for i in range(49)}, "<think>": 49}
    found = compare(WORDS, renamed, 50, 50)
    assert (found.kind, found.masked) == ("padded", (49,))
    assert (found.num_differing, found.first) == (1, (49, "w49", "<think>"))


def test_what_only_one_side_names_is_masked():
    fewer = {word: i for word, i in WORDS.items() if i < 45}
    assert compare(WORDS, fewer, 50, 50).masked == tuple(range(45, 50))
    assert compare(fewer, WORDS, 50, 50).masked == tuple(range(45, 50))


def test_shifted_ids_are_another_vocabulary():
    shifted = {f"w{i}": i + 1 for i in range(50)}
    found = compare(WORDS, shifted, 51, 51)
    assert found.kind == "different"
    assert found.first == (1, "w1", "w0")
    assert found.num_differing == 49 > MOST_STRAY
