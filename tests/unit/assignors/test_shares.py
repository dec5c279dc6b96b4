"""Sets of shares, beside sets of hashes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors import KeyRange, Share
from assignors.shares import by_partition, common, inside, outside, shares_of, without
from commits.model import as_share, share_from_plain, share_to_plain

# Few different ends and partitions, so that shares meet, touch and overlap often.
RANGES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda ends: KeyRange(*sorted(ends)))
SHARES = st.lists(st.builds(Share, st.sampled_from("tu"), st.integers(0, 1), RANGES), max_size=5)
LABELLED = SHARES.map(lambda shares: list(zip(shares, range(len(shares)), strict=True)))

Hashes = set[tuple[str, int, int]]


def hashes(*shares: Share) -> Hashes:
    """The hashes of some shares, each with its partition."""
    return {
        (topic, partition, key_hash)
        for topic, partition, (first, last) in shares
        for key_hash in range(first, last + 1)
    }


def test_shares_are_values() -> None:
    """Shares are equal, hashed, ordered and pickled by their parts."""
    share = Share("t", 1, KeyRange(5, 9))
    assert pickle.loads(pickle.dumps(share)) == share
    assert len({share, Share("t", 1, KeyRange(5, 9))}) == 1
    assert Share("t", 1, KeyRange(4)) < share < Share("u", 0)
    assert Share("t", 0).key_range.is_full


@given(SHARES, SHARES)
def test_sets_of_shares(shares: list[Share], others: list[Share]) -> None:
    """What is common, and what is not, is as for sets of hashes; the result is merged."""
    mine, theirs = hashes(*shares), hashes(*others)
    assert hashes(*common(shares, others)) == mine & theirs
    assert hashes(*without(shares, others)) == mine - theirs
    for found in (common(shares, others), without(shares, others)):
        assert found == shares_of(by_partition(found))


@given(LABELLED, SHARES)
def test_parts_keep_their_labels(labelled: list[tuple[Share, int]], others: list[Share]) -> None:
    """Each share is divided on its own, even if two of them overlap."""
    theirs = hashes(*others)
    within, rest = inside(labelled, others), outside(labelled, others)
    for share, label in labelled:
        mine = hashes(share)
        assert hashes(*(part for part, of in within if of == label)) == mine & theirs
        assert hashes(*(part for part, of in rest if of == label)) == mine - theirs


def test_a_share_of_the_log_is_flat() -> None:
    """It is stored as topic, partition, first and last hash."""
    share = Share("t", 1, KeyRange(5, 9))
    assert share_to_plain(share) == ("t", 1, 5, 9)
    assert share_from_plain(["t", 1, 5, 9]) == as_share(("t", 1, 5, 9)) == as_share(share) == share
    assert as_share(("t", 1)) == Share("t", 1)
    for wrong in (("t", True), ("t", 1, 5), ("t", 1, (5, 9)), ("", 1), ("t", 1, 5, True), None):
        with pytest.raises(ValueError, match=r"share|key range"):
            as_share(wrong)
