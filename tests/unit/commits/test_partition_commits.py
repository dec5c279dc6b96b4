"""PartitionCommits: KIP-X's rules. Its "stable offset 47" is the last committed one: our 48."""

from __future__ import annotations

import pickle

import pytest

from commits import (
    CommitResult,
    IndividualCommitTooOld,
    MaxIndividualCommitsReached,
    OffsetRanges,
    PartitionCommits,
)


def illustration() -> PartitionCommits:
    """KIP-X's picture: all up to 42 committed, and [45-47] and [50] above it."""
    return PartitionCommits(43, [(45, 47), (50, 50)])


def test_a_commit_between_two_ranges_merges_them() -> None:
    """KIP-X: [48-49] between [45-47] and [50] leaves the one range [45-50]."""
    commits = illustration()
    assert commits.commit([(48, 49)]) == CommitResult(43, 2, 0, 1)
    assert list(commits.ranges) == [(45, 50)]


def test_filling_the_head_moves_the_stable_offset() -> None:
    """KIP-X: [43-44] moves the stable offset to 47 (our 48), and [45-47] goes."""
    commits = illustration()
    assert commits.commit([(43, 44)]) == CommitResult(48, 2, 0, 1)
    assert (commits.stable_offset, list(commits.ranges)) == (48, [(50, 50)])


def test_gap_amending() -> None:
    """KIP-X: of [40-50] fetched, what is not in [43-45] and [48-49] is worked, and ends it."""
    commits = PartitionCommits(41, [(43, 45), (48, 49)])
    gaps = commits.uncommitted(40, 50)
    assert list(gaps) == [(41, 42), (46, 47), (50, 50)]
    assert commits.commit(gaps) == CommitResult(51, 5, 0, 0)


def test_committing_again_is_a_harmless_duplicate() -> None:
    """What is committed already counts as duplicates and changes nothing."""
    commits = illustration()
    assert commits.commit([(45, 46)]) == CommitResult(43, 0, 2, 2, "duplicate")
    assert commits.commit([(40, 45)]) == CommitResult(48, 2, 4, 1)
    assert commits.commit([]) == CommitResult(48, 0, 0, 1)


def test_wholly_below_the_stable_offset_is_too_old() -> None:
    """The error has the stable offset, and nothing changed."""
    commits = illustration()
    with pytest.raises(IndividualCommitTooOld) as caught:
        commits.commit([(0, 2), (41, 42)])
    assert (caught.value.stable_offset, caught.value.last) == (43, 42)
    assert pickle.loads(pickle.dumps(caught.value)).stable_offset == 43
    assert commits == illustration()


def test_the_limit_refuses_only_what_raises_the_number_of_ranges() -> None:
    """At or above the limit a commit that adds no range is taken, one that adds some is refused."""
    commits = PartitionCommits(0, [(2, 2), (4, 4), (6, 6)], max_ranges=2)
    with pytest.raises(MaxIndividualCommitsReached) as caught:
        commits.commit([(8, 8)])
    assert (caught.value.range_count, caught.value.max_ranges) == (4, 2)
    assert commits == PartitionCommits(0, [(2, 2), (4, 4), (6, 6)])
    assert commits.commit([(7, 7)]).range_count == 3
    assert commits.commit([(3, 3)]).range_count == 2
    assert commits.commit([(0, 1)]) == CommitResult(5, 2, 0, 1)
    with pytest.raises(MaxIndividualCommitsReached):
        PartitionCommits(max_ranges=0).commit([(1, 1)])


def test_holes_are_never_an_error() -> None:
    """Proven holes count as committed, also below the stable offset and beyond the limit."""
    commits = PartitionCommits(5, [(8, 8)], max_ranges=1)
    assert commits.amend([(0, 3), (10, 10)]) == CommitResult(5, 1, 4, 2)
    assert commits.amend([(5, 7)]).stable_offset == 9


def test_a_log_start_takes_the_stable_offset_along() -> None:
    """A log that begins later moves it, over ranges that follow; another changes nothing."""
    commits = illustration()
    commits.log_start(43)
    assert commits == illustration()
    commits.log_start(46)
    assert (commits.stable_offset, list(commits.ranges)) == (48, [(50, 50)])
    assert list(commits.uncommitted(0, 59)) == [(48, 49), (51, 59)]
    commits.log_start(60)
    assert (commits.stable_offset, list(commits.ranges)) == (60, [])
    commits.log_start(2**63 - 1)
    assert commits.stable_offset == 2**63 - 1


def test_a_truncated_log_forgets_what_lay_beyond() -> None:
    """Ranges are cut, and the stable offset falls only if it lay beyond the end."""
    commits = illustration()
    commits.truncate(47)
    assert (commits.stable_offset, list(commits.ranges)) == (43, [(45, 46)])
    commits.truncate(40)
    assert (commits.stable_offset, list(commits.ranges)) == (40, [])


def test_a_reset_leaves_nothing_above() -> None:
    """An operator's reset sets the stable offset, up or down."""
    commits = illustration()
    commits.reset(44)
    assert (commits.stable_offset, list(commits.ranges)) == (44, [])
    commits.reset(0)
    assert commits == PartitionCommits()


def test_the_last_offset_there_is() -> None:
    """The offset 2**63 - 1 can be committed, exactly."""
    commits = PartitionCommits(2**63 - 3)
    assert commits.commit([(2**63 - 1, 2**63 - 1)]) == CommitResult(2**63 - 3, 1, 0, 1)
    assert commits.commit([(2**63 - 3, 2**63 - 2)]) == CommitResult(2**63, 2, 0, 0)


def test_what_it_is_made_of_is_put_in_order() -> None:
    """Ranges below and at the stable offset are taken in."""
    assert PartitionCommits(10, [(5, 12), (14, 14)]) == PartitionCommits(13, [(14, 14)])
    assert PartitionCommits(10, [(1, 5)]) == PartitionCommits(10)


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda: PartitionCommits(-1),
        lambda: PartitionCommits(2**63 + 1),
        lambda: PartitionCommits(1.5),  # type: ignore[arg-type]
        lambda: PartitionCommits(0, [(3, 2)]),
        lambda: PartitionCommits(max_ranges=-1),
        lambda: PartitionCommits().commit([(-2, 5)]),
        lambda: PartitionCommits().amend([("a", "b")]),  # type: ignore[list-item]
        lambda: PartitionCommits().log_start(-1),
        lambda: PartitionCommits().truncate(-1),
        lambda: PartitionCommits().reset(True),
    ],
)
def test_nonsense_is_a_value_error(nonsense: object) -> None:
    """Offsets and limits that make no sense are refused."""
    with pytest.raises(ValueError):
        nonsense()  # type: ignore[operator]


def test_what_is_given_out_cannot_be_changed_from_outside() -> None:
    """The ranges seen before a commit stay what they were, and a copy goes its own way."""
    commits = illustration()
    before, copy = commits.ranges, commits.copy(max_ranges=None)
    commits.commit([(43, 60)])
    assert list(before) == [(45, 47), (50, 50)]
    assert copy == illustration()
    assert isinstance(before, OffsetRanges)
