"""The three assignors on worked examples, their input, and what members send each other."""

from __future__ import annotations

import pickle
import random
import zlib
from typing import Any

import pytest

from assignors import (
    AssignmentConflict,
    AssignorError,
    InvalidKeyRange,
    InvalidMember,
    InvalidTopic,
    KeyRange,
    KeyRangeAssignor,
    Member,
    ProtocolMismatch,
    RangeKeyRangeAssignor,
    RoundRobinKeyRangeAssignor,
    Share,
    StickyKeyRangeAssignor,
    sticky_cost,
)
from assignors.wire import MAGIC, VERSION, MemberAssignment, Refusal, Subscription, read_answer

ROUND_ROBIN, RANGE, STICKY = (
    RoundRobinKeyRangeAssignor(),
    RangeKeyRangeAssignor(),
    StickyKeyRangeAssignor(),
)
ALL = pytest.mark.parametrize(
    "assignor", [ROUND_ROBIN, RANGE, STICKY], ids=["round robin", "range", "sticky"]
)
HALVES = KeyRange().split(2)


def sharing(names: str, topics: str = "t", slots: int = 1) -> list[Member]:
    """Return members that allow sharing, one for each name."""
    return [
        Member(name, topics.split(), slots=slots, allow_key_share=True) for name in names.split()
    ]


def whole(names: str, topics: str = "t") -> list[Member]:
    """Return members that do not allow sharing."""
    return [Member(name, topics.split()) for name in names.split()]


def table(assignment: dict[str, tuple[Share, ...]]) -> dict[str, str]:
    """Return the owners of each partition, in the order of their ranges, as KIP-X writes it."""
    owners: dict[str, list[tuple[KeyRange, str]]] = {}
    for member, shares in assignment.items():
        for share in shares:
            where = f"{share.topic}p{share.partition}"
            owners.setdefault(where, []).append((share.key_range, member))
    return {
        where: " ".join(name for _, name in sorted(names))
        for where, names in sorted(owners.items())
    }


def part(share: Share) -> float:
    """Return how much of its partition a share is."""
    return share.key_range.size / KeyRange().size


def test_kip_x_round_robin() -> None:
    """KIP-X's table: five members on three partitions, dealt round."""
    assignment = ROUND_ROBIN.assign({"tp": 3}, sharing("M1 M2 M3 M4 M5", "tp"))
    assert table(assignment) == {"tpp0": "M1 M4", "tpp1": "M2 M5", "tpp2": "M3"}
    assert assignment["M1"] == (Share("tp", 0, HALVES[0]),)
    assert assignment["M4"] == (Share("tp", 0, HALVES[1]),)
    assert assignment["M3"] == (Share("tp", 2),)


def test_kip_x_range() -> None:
    """KIP-X's table: five members on topics of two and three partitions, in runs."""
    assignment = RANGE.assign({"t1": 2, "t2": 3}, sharing("c1 c2 c3 c4 c5", "t1 t2"))
    assert table(assignment) == {
        "t1p0": "c1 c2 c3",
        "t1p1": "c4 c5",
        "t2p0": "c1 c2",
        "t2p1": "c3 c4",
        "t2p2": "c5",
    }
    thirds = KeyRange().split(3)
    assert [assignment[c][0].key_range for c in ("c1", "c2", "c3")] == [*thirds]


def test_sticky_balances_where_kip_x_does_not() -> None:
    """Five members on three partitions get three fifths each, with as few cuts as that takes."""
    assignment = STICKY.assign({"t": 3}, sharing("a b c d e"))
    assert all(sum(map(part, mine)) == pytest.approx(3 / 5) for mine in assignment.values())
    assert sticky_cost(sharing("a b c d e"), assignment).members == 3 + 5 - 1


def test_sticky_moves_only_what_the_newcomer_needs() -> None:
    """When a third member joins two, each gives up a sixth, and the newcomer has one range."""
    before = STICKY.assign({"t": 1}, sharing("a b"))
    members = [
        Member(name, ["t"], allow_key_share=True, owned=before.get(name, ())) for name in "abc"
    ]
    assignment = STICKY.assign({"t": 1}, members)
    assert sticky_cost(members, assignment) == (pytest.approx(1 / 3), 3, pytest.approx(1 / 3))
    assert [share.key_range.intersect(HALVES[0]) for share in assignment["a"]] == [
        share.key_range for share in assignment["a"]
    ]
    assert len(assignment["c"]) == 1


def test_sticky_gives_little_away_when_a_member_leaves() -> None:
    """What a member leaves is divided, and what the others had stays theirs."""
    before = STICKY.assign({"t": 6}, sharing("a b c"))
    left = [Member(n, ["t"], allow_key_share=True, owned=before[n]) for n in "ac"]
    assignment = STICKY.assign({"t": 6}, left)
    assert all(set(before[name]) <= set(assignment[name]) for name in "ac")
    assert [len(assignment[name]) for name in "ac"] == [3, 3]


@ALL
def test_slots_count_as_consumers(assignor: KeyRangeAssignor) -> None:
    """On one partition a member with three slots gets three quarters beside one with one slot."""
    assignment = assignor.assign({"t": 1}, [*sharing("a", slots=3), *sharing("b")])
    assert {name: [*map(part, shares)] for name, shares in assignment.items()} == {
        "a": [0.75],
        "b": [0.25],
    }


@ALL
def test_pieces_that_touch_are_one_share(assignor: KeyRangeAssignor) -> None:
    """Two members with eight slots each stand on one partition with one range each."""
    assignment = assignor.assign({"t": 1}, sharing("a b", slots=8))
    assert assignment == {"a": (Share("t", 0, HALVES[0]),), "b": (Share("t", 0, HALVES[1]),)}


@ALL
def test_members_that_did_not_opt_in_get_whole_partitions(assignor: KeyRangeAssignor) -> None:
    """In a mixed group only the members that allow sharing get parts."""
    members = [*sharing("a b c"), *whole("d e")]
    assignment = assignor.assign({"t": 2}, members)
    assert all(part(share) == 1 for name in "de" for share in assignment[name])
    assert any(part(share) < 1 for name in "abc" for share in assignment[name])


@ALL
def test_a_topic_that_did_not_opt_in_is_not_split(assignor: KeyRangeAssignor) -> None:
    """Of two topics only the shareable one is split, though all members allow it."""
    assignment = assignor.assign({"t": 1, "u": 1}, sharing("a b c", "t u"), shareable_topics={"u"})
    shares = [share for mine in assignment.values() for share in mine]
    assert [part(share) for share in shares if share.topic == "t"] == [1]
    assert all(part(share) < 1 for share in shares if share.topic == "u")


@ALL
def test_one_sharer_has_nobody_to_share_with(assignor: KeyRangeAssignor) -> None:
    """One member that allows sharing among others that do not leaves all partitions whole."""
    assignment = assignor.assign({"t": 3}, [*sharing("a", slots=8), *whole("b")])
    assert all(part(share) == 1 for mine in assignment.values() for share in mine)
    assert sum(map(len, assignment.values())) == 3


@ALL
def test_as_many_partitions_as_members_are_not_split(assignor: KeyRangeAssignor) -> None:
    """With as many partitions as consumers, nothing is cut."""
    assignment = assignor.assign({"t": 4}, sharing("a b c d"))
    assert [len(mine) for mine in assignment.values()] == [1, 1, 1, 1]
    assert all(part(share) == 1 for mine in assignment.values() for share in mine)


@ALL
def test_more_topics_than_members(assignor: KeyRangeAssignor) -> None:
    """Two members divide five topics of one partition."""
    topics = {f"t{i}": 1 for i in range(5)}
    assignment = assignor.assign(topics, whole("a b", " ".join(topics)))
    assert sum(map(len, assignment.values())) == 5
    if assignor is not RANGE:
        assert sorted(map(len, assignment.values())) == [2, 3]


@ALL
def test_different_subscriptions(assignor: KeyRangeAssignor) -> None:
    """Members get shares of their own topics, and a topic with one subscriber is all its."""
    members = [*sharing("a", "t u"), *sharing("b", "u"), *sharing("c", "u v")]
    assignment = assignor.assign({"t": 1, "u": 1, "v": 2}, members)
    assert [s for s in assignment["a"] if s.topic == "t"] == [Share("t", 0)]
    assert [s for s in assignment["c"] if s.topic == "v"] == [Share("v", 0), Share("v", 1)]
    assert {s.topic for s in assignment["b"]} <= {"u"}


@ALL
def test_nothing_to_assign(assignor: KeyRangeAssignor) -> None:
    """Members without topics, topics without members, partitions or existence give nothing."""
    members = [Member("idle", []), Member("waits", ["not yet", "empty"])]
    assert assignor.assign({"t": 3, "empty": 0}, members) == {"idle": (), "waits": ()}
    assert assignor.assign({"t": 3}, []) == {}
    assert assignor.assign({}, members, shareable_topics=["t"]) == {"idle": (), "waits": ()}


@ALL
def test_static_members_keep_their_place(assignor: KeyRangeAssignor) -> None:
    """A restart under a new member id changes nothing where the instance id is the same."""
    before = [Member(m, ["t"], instance_id=i) for m, i in (("x-1", "a"), ("y-1", "b"))]
    after = [Member(m, ["t"], instance_id=i) for m, i in (("x-1", "a"), ("a-2", "b"))]
    old, new = (assignor.assign({"t": 3}, members) for members in (before, after))
    assert old["x-1"] == new["x-1"]
    assert old["y-1"] == new["a-2"]


@ALL
def test_a_duplicate_id_is_refused(assignor: KeyRangeAssignor) -> None:
    """Two members of one id are an error that names it."""
    with pytest.raises(InvalidMember, match=r"'a'.*twice"):
        assignor.assign({"t": 1}, whole("a b a"))


@ALL
@pytest.mark.parametrize("count", [-1, 1.5, "1", True])
def test_an_impossible_number_of_partitions_is_refused(
    assignor: KeyRangeAssignor, count: Any
) -> None:
    """An invalid number of partitions is an error that names the topic."""
    with pytest.raises(InvalidTopic, match="'t'"):
        assignor.assign({"t": count}, whole("a"))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"id": ""}, "id"),
        ({"slots": 0}, "slots"),
        ({"slots": 1.0}, "slots"),
        ({"slots": True}, "slots"),
        ({"topics": "t"}, "topics"),
    ],
)
def test_an_impossible_member_is_refused(arguments: dict[str, Any], word: str) -> None:
    """A member without id, with no slot, or with one string for topics is refused."""
    with pytest.raises(InvalidMember, match=word):
        Member(**{"id": "a", "topics": ["t"], **arguments})


def test_slots_weigh_in_the_classic_assignments() -> None:
    """Without sharing, seven partitions go five and two to members of two slots and one."""
    members = [Member("a", ["t"], slots=2), Member("b", ["t"])]
    dealt = ROUND_ROBIN.assign({"t": 7}, members)
    assert [share.partition for share in dealt["a"]] == [0, 2, 3, 5, 6]
    run = RANGE.assign({"t": 7}, members)
    assert [share.partition for share in run["b"]] == [5, 6]


def test_dealing_spreads_the_slots_of_a_member() -> None:
    """Round robin puts the slots of a member on one partition after another."""
    assignment = ROUND_ROBIN.assign({"t": 2}, [*sharing("a", slots=3), *sharing("b", slots=2)])
    assert table(assignment) == {"tp0": "a b", "tp1": "a b"}
    assert [part(share) for share in assignment["a"]] == pytest.approx([2 / 3, 1 / 2])


def test_sticky_ignores_what_can_no_longer_be_owned() -> None:
    """Shares of lost topics, dropped subscriptions and missing partitions do not matter."""
    owned = (Share("gone", 0), Share("u", 0), Share("t", 7), Share("t", 0, HALVES[1]))
    members = [Member("a", ["t"], allow_key_share=True, owned=owned), *sharing("b", "t u")]
    assignment = STICKY.assign({"t": 1, "u": 1}, members, shareable_topics={"t"})
    assert assignment == {"a": (Share("t", 0),), "b": (Share("u", 0),)}


def test_sticky_settles_contradicting_claims() -> None:
    """Two members that both claim a whole partition end up with a half each."""
    members = [Member(n, ["t"], allow_key_share=True, owned=(Share("t", 0),)) for n in "ab"]
    assert table(STICKY.assign({"t": 1}, members)) == {"tp0": "a b"}


def test_sticky_takes_back_parts_of_what_must_no_longer_be_split() -> None:
    """When sharing of a topic is switched off, what was split becomes whole."""
    before = STICKY.assign({"t": 1}, sharing("a b"))
    members = [Member(n, ["t"], allow_key_share=True, owned=before[n]) for n in "ab"]
    assignment = STICKY.assign({"t": 1}, members, shareable_topics=set())
    assert sorted(map(len, assignment.values())) == [0, 1]


def test_sticky_rebuilds_a_fragmented_assignment() -> None:
    """A partition in a hundred crumbs for two members becomes one range for each."""
    crumbs = [Share("t", 0, piece) for piece in KeyRange().split(100)]
    members = [
        Member(n, ["t"], slots=slots, allow_key_share=True, owned=tuple(crumbs[i::2]))
        for i, (n, slots) in enumerate((("a", 1), ("b", 2)))
    ]
    assert [len(mine) for mine in STICKY.assign({"t": 1}, members).values()] == [1, 1]


def test_sticky_over_many_changes_stays_whole_and_unfragmented() -> None:
    """Through two hundred changes of a group its partitions stay in few ranges."""
    chance = random.Random(7)
    names = iter(f"m{i}" for i in range(1000))
    group = {next(names): 1 for _ in range(3)}
    owned: dict[str, tuple[Share, ...]] = {}
    for _ in range(200):
        if len(group) > 1 and chance.random() < 0.5:
            del group[chance.choice([*group])]
        else:
            group[next(names)] = chance.choice([1, 2, 4, 8])
        members = [
            Member(n, ["t"], slots=s, allow_key_share=True, owned=owned.get(n, ()))
            for n, s in group.items()
        ]
        owned = STICKY.assign({"t": 3}, members)
        cost = sticky_cost(members, owned)
        assert cost.imbalance == pytest.approx(9 / sum(group.values()))
        assert cost.members <= 3 + len(group) - 1
        assert sum(map(len, owned.values())) <= 4 * cost.members


SHARES = (Share("t", 0), Share("t", 3, HALVES[1]), Share("é", 1, HALVES[0]))


def test_the_wire_carries_subscription_and_assignment() -> None:
    """What a member and the leader send each other is read back as it was written."""
    subscription = Subscription(
        {"store": "store", "cluster": "cluster"}, 4, True, SHARES, 12, "nonce", 70_000
    )
    assignment = MemberAssignment("m", SHARES, 13, "nonce", {"t": "id", "é": "id2"})
    assert Subscription.from_bytes(subscription.to_bytes()) == subscription
    assert MemberAssignment.from_bytes(assignment.to_bytes()) == assignment
    assert read_answer(assignment.to_bytes()) == assignment
    refusal = Refusal("another store")
    assert read_answer(refusal.to_bytes()) == refusal
    with pytest.raises(ProtocolMismatch, match="kind 'S'"):
        read_answer(subscription.to_bytes())


def test_the_wire_is_small() -> None:
    """A thousand whole partitions take about two bytes each, a part less than twenty."""
    whole_ones = MemberAssignment("m", tuple(Share("orders", i) for i in range(1000)), 1, "n")
    parts = MemberAssignment(
        "m", tuple(Share("t", i, p) for i, p in enumerate(KeyRange().split(999))), 1, "n"
    )
    assert len(whole_ones.to_bytes()) < 2_500
    assert len(parts.to_bytes()) < 20 * 999


def packed(kind: str, body: bytes, version: int = VERSION) -> bytes:
    """Return user data with a body of our choice."""
    return bytes((MAGIC, ord(kind), version)) + zlib.compress(body)


GOOD = Subscription({"store": "store", "cluster": "cluster"}).to_bytes()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes.*A consumer of another kind"),
        (b"\x00\x01\x00\x00", "00010.*A consumer of another kind"),
        (MemberAssignment("m", (), 1, "n").to_bytes(), "kind 'A'"),
        (packed("S", b"{}", VERSION + 1), rf"version {VERSION + 1} .*same version"),
        (packed("S", b"{}", 0), "version 0"),
        (GOOD[:-1], "damaged"),
        (GOOD[:20] + bytes([GOOD[20] ^ 1]) + GOOD[21:], "damaged"),
        (GOOD + b"x", "damaged"),
        (packed("S", b"[" * 100_000), "damaged"),
        (packed("S", b"\xff"), "damaged"),
        (packed("S", b"[]"), "damaged"),
        (packed("S", b"{}"), "'store'"),
    ],
)
def test_the_wire_refuses_foreign_damaged_and_newer_data(data: bytes, words: str) -> None:
    """What is not ours, not whole or too new is an error that says so."""
    with pytest.raises(ProtocolMismatch, match=words):
        Subscription.from_bytes(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shares", "[]"),
        ("shares", '{"t": 1}'),
        ("shares", '{"t": [-1]}'),
        ("shares", '{"t": [true]}'),
        ("shares", '{"t": [[]]}'),
        ("shares", '{"t": [[0, 5, 4]]}'),
        ("shares", '{"t": [[0, 1, 2, 3]]}'),
        ("epoch", "0"),
        ("epoch", "1.5"),
        ("nonce", "null"),
        ("topic_ids", '{"t": 1}'),
    ],
)
def test_the_wire_refuses_fields_of_another_type(field: str, value: str) -> None:
    """A field that is not what it should be is named."""
    fields = {
        "member": '"m"', "shares": "{}", "epoch": "1", "nonce": '"n"', "topic_ids": "{}",
        field: value,
    }  # fmt: skip
    body = ",".join(f'"{name}": {text}' for name, text in fields.items())
    with pytest.raises(ProtocolMismatch, match=f"'{field}'"):
        MemberAssignment.from_bytes(packed("A", f"{{{body}}}".encode()))


def test_the_wire_passes_over_fields_it_does_not_know() -> None:
    """A field that a later library added does not disturb."""
    body = b'{"member": "m", "shares": {}, "epoch": 1, "nonce": "n", "topic_ids": {}, "later": 1}'
    assert MemberAssignment.from_bytes(packed("A", body)) == MemberAssignment("m", (), 1, "n")


@pytest.mark.parametrize(
    "error",
    [
        InvalidKeyRange(5, 4, "reason"),
        InvalidMember("a", "reason"),
        InvalidTopic("t", "reason"),
        AssignmentConflict("t", 0, (HALVES[0],), (HALVES[1],)),
        ProtocolMismatch("subscription", "found", "expected", "remedy"),
    ],
)
def test_errors_pickle_with_their_data(error: AssignorError) -> None:
    """An error that crosses a process keeps its data, its message and its word on retrying."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
    assert copy.retriable is isinstance(error, AssignmentConflict)


def test_a_conflict_names_its_holes_and_overlaps() -> None:
    """The message of a conflict says where, what nobody owns and what several own."""
    error = AssignmentConflict("t", 3, (KeyRange(0, 4),), (KeyRange(7, 9),))
    assert "t-3" in str(error)
    assert "nobody owns [0, 4]; several own [7, 9]" in str(error)
