"""Where two sequences part, by enumeration of all short ones."""

from __future__ import annotations

import itertools

from engine.prefix import common_prefix, first_difference, parted

SHORT = [list(ids) for n in range(4) for ids in itertools.product((1, 2), repeat=n)]


def test_the_common_prefix_is_the_longest_shared_beginning():
    for a, b in itertools.product(SHORT, SHORT):
        wanted = max(n for n in range(len(a) + 1) if a[:n] == b[:n])
        assert common_prefix(a, b) == wanted
        assert common_prefix(tuple(a), b) == wanted  # a list never equals a tuple


def test_the_first_difference_may_be_a_missing_end():
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], []) is None
    for a, b in itertools.product(SHORT, SHORT):
        assert (first_difference(a, b) is None) == (a == b)


def test_texts_part_only_where_both_still_go_on():
    assert parted([1, 2], [1, 3])
    assert not parted([1, 2], [1, 2, 3])
    assert not parted([], [1])
