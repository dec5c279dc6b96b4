"""The overview of a group: from facts to plain data, text and HTML, without Kafka."""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from rich.cells import cell_len
from rich.console import Console

from assignors import MAX_KEY_HASH, KeyRange
from assignors.wire import Subscription
from commits import AcquireRequest, CommitStore, Pending, Wanted
from commits.model import PARKED_MS
from coopconsume.admin import tables
from coopconsume.admin.html import html, in_time
from coopconsume.admin.offsets.status import PartitionStatus, times_of
from coopconsume.admin.overview import GroupOverview, InDoubtRange, OwnedRange, key_metadata
from coopconsume.admin.overview.build import GroupFacts, build
from coopconsume.admin.overview.tables import (
    assignment_table,
    group_html,
    group_parts,
    progress_table,
)
from coopconsume.admin.overview.verdict import group_verdicts
from coopconsume.admin.tables import KeyRangeMap, OwnedPart, Owner, Table, cell
from coopconsume.admin.text import _fitted, text_lines, write
from coopconsume.kafka.coordinator import KafkaGroup, KafkaMember, read_subscription
from coopconsume.kafka.primary import Primary
from coopconsume.runtime.plan.cursor import deal

HALF = 2**62
P0, P1 = ("orders", 0), ("orders", 1)
LOW, HIGH = (*P0, 0, HALF - 1), (*P0, HALF, MAX_KEY_HASH)


@pytest.fixture
def store(tmp_path: Path) -> CommitStore:
    """An empty commit store."""
    return CommitStore.open(tmp_path / "commits", cluster="c")


def member(store: CommitStore, name: str, slots: int = 1, table: str | None = None) -> KafkaMember:
    """A member of ours as Kafka describes it."""
    subscription = Subscription(
        {"store": table or store.id, "cluster": "c"}, slots, allow_key_share=True
    )
    return KafkaMember(name, None, f"client-{name}", "10.0.0.7", subscription)


def facts(store: CommitStore, *members: KafkaMember, state: str = "Stable", **more) -> GroupFacts:
    """What a store says of the group g, and what Kafka says of its members."""
    return with_statuses(
        store,
        GroupFacts(
            KafkaGroup(state, "key-range-sticky", members), store.assignment("g"),
            store.claims("g"), store.history("g"), acquisitions=store.acquisitions("g"),
        ),
        **more,
    )  # fmt: skip


def with_statuses(
    store: CommitStore, found: GroupFacts, *, ends=None, starts=None, primary=None, **pending
) -> GroupFacts:
    """Facts with the statuses of all partitions of the group."""
    state, primary, times = store.state("g"), primary or {}, times_of(found.history)
    pending = store.pending("g") | pending.get("pending", {})
    return replace(
        found,
        statuses=[
            PartitionStatus.of(
                tp, state.get(tp), pending=pending.get(tp), log_start=(starts or {}).get(tp),
                end_offset=(ends or {}).get(tp), primary=primary.get(tp), times=times.get(tp),
            )
            for tp in sorted({*state, *primary, *found.owned})
        ],
    )  # fmt: skip


def overview(store: CommitStore, found: GroupFacts) -> GroupOverview:
    """The overview of the group g."""
    place = {"servers": "kafka:9092", "table": "/data/commits", "store": store.id}
    return build(replace(found, group="g", cluster="c", **place))


def two_members(store: CommitStore) -> GroupFacts:
    """Two members share one partition; one of them also has the other partition."""
    epoch = store.open_epoch("g", {"b": [LOW], "a": [HIGH, P1]}, previous=None, member="a")
    store.commit("g", epoch, "b", {P0: [(0, 2), (5, 5), (8, 8)]}, pending={P0: [Pending(6)]})
    ours = Primary(2, ours=True, topic_id="")
    ends = {P0: 10, P1: 4}
    return facts(
        store, member(store, "a", 2), member(store, "b"), ends=ends, primary={P0: ours}
    )  # fmt: skip


# -- from facts to data ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempts", "error", "said"),
    [
        (3, "<no>", ", failed 3 times: <no>"),
        (1, "no", ", failed 1 time: no"),
        (0, "is down", ", postponed: is down"),
        (0, "", ""),
    ],
)
def test_a_query_shows_the_blocker_of_each_partition(attempts, error, said):
    """As in its progress events; texts are escaped."""
    blocker = {
        "offset": 2_000, "state": "failed", "ageSeconds": 1.5, "attempts": attempts, "error": error,
        "key": "k1",
    }  # fmt: skip
    at = {"stableOffset": 2_000, "endOffset": 9_000, "lag": 7_000, "gapRanges": 1}
    rows = [
        {"topic": "orders", "partition": 0, "blocker": blocker, **at},
        {"topic": "orders", "partition": 1, "blocker": None, **at},
    ]
    page = ET.fromstring(html(["query pay: active", progress_table(rows)]))
    first, second = ([cell.text for cell in row] for row in page.iterfind(".//tbody/tr"))
    assert first == [
        "orders-0", "2,000", "9,000", "7,000", "1",
        "2,000, key k1, failed for 1.5 s" + said,
    ]  # fmt: skip
    assert second == ["orders-1", "2,000", "9,000", "7,000", "1", "-"]


def test_lag_is_what_is_not_done(store: CommitStore) -> None:
    """Gaps count and what is done above them does not; Kafka's offset stands beside it."""
    first, second = overview(store, two_members(store)).partitions
    assert (first.stable_offset, first.end_offset, first.committed_above) == (3, 10, 2)
    assert (first.lag, len(first.open_ranges), len(first.pending)) == (5, 2, 1)
    assert (first.primary_offset, first.primary_is_ours) == (2, True)
    assert (second.stable_offset, second.lag, second.primary_offset) == (None, None, None)
    assert second.blocker is None
    assert first.owners == (
        OwnedRange("b", KeyRange(0, HALF - 1)), OwnedRange("a", KeyRange(HALF, MAX_KEY_HASH)),
    )  # fmt: skip


def test_a_blocker_is_reported_and_drawn(store: CommitStore) -> None:
    """A record that nobody has failed on, and one that failed: with its key, error and age."""
    found = two_members(store)
    blocker = overview(store, found).partitions[0].blocker
    assert (blocker.offset, blocker.state, blocker.done_behind) == (3, "not done", 2)
    commit = [entry for entry in found.history if entry["kind"] == "commit"][-1]
    assert blocker.since == commit["written_at"]
    now = blocker.since + timedelta(minutes=5)
    (row,) = blocker_rows(overview(store, found), now)
    assert row == ["orders-0", "3", "not done", "-", "-", "5 min", "-", "2", "3", "-"]
    failed = Pending(3, key_hash=9, attempts=4, error="<no>")
    known = {"ends": {P0: 10}, "pending": {P0: {3: failed}}}
    shown = overview(store, with_statuses(store, found, **known))
    assert shown.partitions[0].blocker.attempts == 4
    assert shown.to_dict()["partitions"][0]["blocker"]["error"] == "<no>"
    late = replace(failed, due_ms=PARKED_MS - 1)
    known["pending"] = {P0: {3: late}}
    assert overview(store, with_statuses(store, found, **known)).partitions[0].blocker.due
    (row,) = blocker_rows(shown, now)
    assert (row[2:6], row[-1]) == (["failed", "hash 9", "4", "5 min"], "<no>")
    gone = overview(store, with_statuses(store, found, starts={P0: 4}, ends={P0: 10}))
    (row,) = blocker_rows(gone, now)
    assert row[:5] == ["orders-0", "3", "deleted by retention", "-", "-"]
    assert "<td>&lt;no&gt;</td>" in group_html(shown).replace(' style="text-align:left"', "")


def test_members_of_kafka_and_of_the_log_are_one_list(store: CommitStore) -> None:
    """Each with its status, in the order in which they stand on the maps."""
    epoch = store.open_epoch(
        "g",
        {"gone": [LOW], "old": [HIGH], "away": [P1], "done": [], "idle": []},
        previous=None,
    )
    store.release("g", epoch, "away")
    store.release("g", epoch, "done")
    store.take_over("g", epoch, "new", replaces="old")
    names = ["done", "new", "idle", "late"]
    group = overview(store, facts(store, *(member(store, name) for name in names)))
    assert [(m.id, m.status, len(m.shares)) for m in group.members] == [
        ("gone", "gone", 1), ("new", "working", 1), ("done", "it has released its shares", 0),
        ("idle", "working", 0), ("late", "joining", 0),
    ]  # fmt: skip
    assert [m.slots for m in group.members] == [None, 1, 1, 1, 1]
    assert [p.owners for p in group.partitions] == [
        (OwnedRange("gone", KeyRange(*LOW[2:])), OwnedRange("new", KeyRange(*HIGH[2:]))),
    ]  # fmt: skip


def test_what_is_waited_for_has_an_end(store: CommitStore) -> None:
    """A share that was not handed over is in doubt from the row on that gave it to another."""
    before = store.open_epoch("g", {"a": [LOW], "b": [HIGH]}, previous=None, life_ms=9_000)
    store.release("g", before, "a")
    store.open_epoch("g", {"a": [P0]}, previous=before)
    found = facts(store, member(store, "a"), ends={P0: 0})
    (partition,) = overview(store, found).partitions
    opened = found.history[-1]["written_at"]
    nine = timedelta(seconds=9)
    assert partition.in_doubt == (InDoubtRange(KeyRange(*HIGH[2:]), 9.0, opened + nine),)
    (unknown,) = overview(store, replace(found, history=())).partitions
    assert unknown.in_doubt == (InDoubtRange(KeyRange(*HIGH[2:]), 9.0, None),)


def test_behind_a_snapshot_nobody_is_waited_for_without_an_end(store: CommitStore) -> None:
    """The row that gave it away is gone, and that wait may long be over, as the epoch goes on."""
    first = store.open_epoch("g", {"a": [P0], "b": [P1]}, previous=None, life_ms=9_000)
    second = store.open_epoch("g", {"a": [P0, P1]}, previous=first, life_ms=9_000,
                              continues={"a": 1})  # fmt: skip
    store.commit("g", second, "a", {P0: [(0, 0)]})
    found = facts(store, member(store, "a"), ends={P0: 9, P1: 9})
    found = replace(found, history=found.history[2:])  # of a table that has a later snapshot
    shown = overview(store, found)
    waits = [partition.in_doubt for partition in shown.partitions]
    assert waits == 2 * [(InDoubtRange(KeyRange(0, MAX_KEY_HASH), 9.0, None),)]
    assert group_verdicts(shown, found.history[0]["written_at"])[0].reason == "working"


def test_a_member_that_continues_does_not_wait_for_itself(store: CommitStore) -> None:
    """Its own share is not in doubt; what it waits for since an earlier epoch still is."""
    first = store.open_epoch("g", {"a": [P0], "b": [P1]}, previous=None, life_ms=9_000)
    # b has died: a gets its share, and waits for it.
    second = store.open_epoch("g", {"a": [P0, P1]}, previous=first, life_ms=9_000,
                              continues={"a": 1})  # fmt: skip
    third = store.open_epoch("g", {"a": [P0, P1], "c": []}, previous=second, life_ms=9_000,
                             continues={"a": 2})  # fmt: skip
    found = facts(store, member(store, "a"), ends={P0: 0, P1: 0})
    until = found.history[1]["written_at"] + timedelta(seconds=9)
    waits = [partition.in_doubt for partition in overview(store, found).partitions]
    assert waits == [(), (InDoubtRange(KeyRange(0, MAX_KEY_HASH), 9.0, until),)]
    # What it gives to others without a release is theirs to wait for.
    store.open_epoch("g", {"a": [P1], "c": [P0]}, previous=third, life_ms=9_000,
                     continues={"a": 3, "c": 3})  # fmt: skip
    found = facts(store, member(store, "a"), ends={P0: 0, P1: 0})
    given, of_a = overview(store, found).partitions
    later = found.history[-1]["written_at"] + timedelta(seconds=9)
    assert given.in_doubt == (InDoubtRange(KeyRange(0, MAX_KEY_HASH), 9.0, later),)
    assert of_a.in_doubt == waits[1]


def test_events_say_who_led_and_why_not(store: CommitStore) -> None:
    """Epochs, also those that did not count, take-overs, claims and an operator's reset."""
    first = store.open_epoch("g", {"a": [LOW], "b": [HIGH]}, previous=None, member="a")
    store.take_over("g", first, "c", replaces="b")
    store.claim("g", "hand", [P1])
    with pytest.raises(Exception, match="taken over"):
        store.take_over("g", first, "d", replaces="b")
    store.commit("g", first, "a", {P0: [(0, 1)]})
    store.reset("g", {P0: 0})
    events = overview(store, facts(store)).events
    assert [(e.kind, e.epoch, e.by, e.members, e.replaces, e.counted) for e in events] == [
        ("epoch", 1, "a", 2, None, True), ("takeover", 1, "c", None, "b", True),
        ("claim", 2, "hand", None, None, True), ("takeover", 1, "d", None, "b", False),
        ("reset", None, "", None, None, True),
    ]  # fmt: skip
    assert "taken over by 'c'" in events[3].reason


def test_notes_say_what_to_look_at(store: CommitStore) -> None:
    """Foreign members and tables, lost topics, offsets that somebody else wrote."""
    store.open_epoch("g", {"a": [P0]}, previous=None)
    stranger = KafkaMember("x", None, "c", "h", None)
    theirs = Primary(7, ours=False, topic_id="")
    other = member(store, "a", table="other")
    found = facts(store, other, stranger, primary={P0: theirs})
    assert overview(store, found).notes == (
        f"a uses another commit table: its store id is other, that of /data/commits is {store.id}",
        "x is not a coopconsume member",
        "topic orders or a partition of it does not exist, or this user may not see it",
        "Kafka's offset 7 of orders-0 was written by another client: see onExternalReset",
    )  # fmt: skip
    noted = replace(found, known_primary={P0: 7})
    assert not any("another client" in note for note in overview(store, noted).notes)
    (unknown,) = overview(store, facts(store, state="Dead", ends={P0: 0})).notes
    assert "Kafka does not know the group" in unknown
    (unheard,) = overview(store, GroupFacts(KafkaGroup("Empty"))).notes
    assert "has no rows of the group" in unheard
    assert not GroupFacts().is_in_log


def test_the_document_is_plain(store: CommitStore) -> None:
    """JSON takes all of it as it is; the lag of all partitions is in it."""
    document = json.loads(json.dumps(overview(store, two_members(store)).to_dict()))
    assert document["lag"] == document["partitions"][0]["lag"] == 5
    assert document["members"][1]["shares"][0] == {
        "topic": "orders", "partition": 0, "key_range": {"first": HALF, "last": MAX_KEY_HASH},
    }  # fmt: skip
    assert datetime.fromisoformat(document["events"][0]["at"]).tzinfo is not None


def test_only_members_of_ours_have_a_subscription() -> None:
    """What others joined with, damaged data and none at all are no errors."""
    subscription = Subscription({"store": "s", "cluster": "c"}, 3)
    metadata = ConsumerProtocolSubscription(0, ["t"], subscription.to_bytes()).encode()
    assert read_subscription(metadata) == subscription
    plain = ConsumerProtocolSubscription(0, ["t"], None).encode()
    for foreign in (plain, metadata[:-3], b"", b"\0", b"garbage of some length"):
        assert read_subscription(foreign) is None


# -- as text -----------------------------------------------------------------------------------


def group_lines(group: GroupOverview, now: datetime | None = None, history: int = 10) -> list[str]:
    """Returns what `coopconsume groups describe` writes."""
    return list(text_lines(group_parts(group, now or datetime.now(UTC), history=history)))


def blocker_rows(group: GroupOverview, now: datetime) -> list[list[str]]:
    """Returns the rows of the table of blockers."""
    (table,) = (
        part
        for part in group_parts(group, now)
        if isinstance(part, Table) and "blocker" in part.titles
    )
    return [[*map(cell, row)] for row in table.rows]


def test_a_map_cell_shows_the_member_with_the_largest_part() -> None:
    """Halves, an uneven cut within one place, and what nobody has."""
    low, high = KeyRange().split(2)
    assert hash_map((low, 0), (high, 1)) == "A" * 16 + "B" * 16
    cut = KeyRange().split(32)[3]
    third = cut.first + cut.size // 3
    parts = (KeyRange(0, third), 0), (KeyRange(third + 1, cut.last), 1)
    assert hash_map(*parts) == "AAAB" + "." * 28
    assert hash_map((high, None)) == "." * 16 + "#" * 16


def hash_map(*parts: tuple[KeyRange, int | None]) -> str:
    """Returns the map of key ranges and the numbers of their owners."""
    return str(KeyRangeMap(tuple(OwnedPart(one, Owner(number), "") for one, number in parts)))


def test_members_beyond_the_alphabet_share_a_sign(store: CommitStore) -> None:
    """62 members have a letter or figure of their own."""
    store.open_epoch("g", {f"m{n:03}": [] for n in range(70)}, previous=None)
    members = next(
        part
        for part in group_parts(overview(store, facts(store)), datetime.now(UTC))
        if isinstance(part, Table)
    )
    letters = {str(name): str(owner) for owner, name, *_ in members.rows}
    assert letters["m000"] == "A"
    assert letters["m061"] == "9"
    assert {letters[f"m{n:03}"] for n in range(62, 70)} == {"#"}
    assert len(set(letters.values())) == 63


def test_tables_have_numbers_to_the_right() -> None:
    """Also where some are missing; a table without rows is its head."""
    table = Table(("name", "n"), [("a", 1_000), ("long", None)])
    assert list(text_lines([table])) == ["NAME      N", "a     1,000", "long      -"]
    assert list(text_lines([Table(("name", "n"), [])])) == ["NAME  N"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1_000, "1,000"),
        (True, "yes"),
        ("Zürich\\", "Zürich\\"),
        ("\x1b[2J\nnext\x9b", r"\x1b[2J\nnext\x9b"),
        (datetime(2026, 3, 1, 9, 5, tzinfo=UTC), "2026-03-01 09:05:00 UTC"),
        (
            datetime(2026, 3, 1, 9, 5, tzinfo=timezone(timedelta(hours=2))),
            "2026-03-01 09:05:00 UTC+02:00",
        ),
    ],
)
def test_values_in_tables(value: object, text: str) -> None:
    """Times have their zone, and what a record brings cannot command a terminal."""
    assert cell(value) == text
    assert list(text_lines([Table(("value",), [(value,)])]))[1].strip() == text


def test_a_key_cannot_command_a_terminal(store: CommitStore) -> None:
    """Its control characters are shown, in text and in HTML, as are those of an error."""
    found = two_members(store)
    failed = Pending(3, key_hash=9, attempts=4, error="broken \x1b]0;title\x07")
    known = {"ends": {P0: 10}, "pending": {P0: {3: failed}}}
    group = overview(store, with_statuses(store, found, **known))
    for shown in ("\n".join(group_lines(group)), group_html(group)):
        assert r"broken \x1b]0;title\x07" in shown
        assert "\x1b" not in shown


def test_a_group_was_active_until_its_member_left(store: CommitStore) -> None:
    """By its release, else by what it wrote last: an operator and a fenced member do not count."""
    found = two_members(store)
    assert overview(store, found).last_active == found.history[1]["written_at"]
    epoch = store.current_epoch("g")
    assert epoch is not None
    assert store.release("g", epoch, "b", running=[])
    store.reset("g", {P0: 3})
    written = store.history("g")
    assert [entry["kind"] for entry in written] == ["epoch", "commit", "release", "reset"]
    late = written[1] | {"counted": False, "written_at": datetime.now(UTC)}
    later = replace(found, history=[*written, late])
    left = overview(store, later)
    assert left.last_active == later.history[2]["written_at"]
    assert left.last_commit == later.history[1]["written_at"]
    assert overview(store, replace(found, history=())).last_active is None


def test_a_group_as_text(store: CommitStore) -> None:
    """The whole overview of two members on two partitions, line by line."""
    found = two_members(store)
    at = found.history[0]["written_at"]
    assert overview(store, found).last_commit == found.history[1]["written_at"]
    assert overview(store, replace(found, history=found.history[:1])).last_commit is None
    assert group_lines(overview(store, found), at) == [
        "Working: 5 records not done",
        "group g: Stable, 2 members, 5 records not done",
        "commit table /data/commits",
        "Kafka kafka:9092, cluster c",
        "epoch 1, generation -1, key-range-sticky",
        "",
        "   MEMBER  HOST      CLIENT    INSTANCE  SLOTS  HAS   STATUS",
        "A  b       10.0.0.7  client-b  -             1  0.50  working",
        "B  a       10.0.0.7  client-a  -             2  1.50  working",
        "",
        (
            "PARTITION  KEY HASHES                        STABLE  END  DONE ABOVE  GAPS  PENDING"
            "  LAG  KAFKA'S"
        ),
        (
            "orders-0   AAAAAAAAAAAAAAAABBBBBBBBBBBBBBBB       3   10           2     2        1"
            "    5        2"
        ),
        (
            "orders-1   BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB       -    4           0     0        0"
            "    -        -"
        ),
        "",
        (
            "PARTITION  BLOCKER  STATE     KEY  ATTEMPTS  BLOCKS FOR  DUE IN  DONE ABOVE"
            "  OPEN ABOVE  ERROR"
        ),
        (
            "orders-0         3  not done  -    -         0 s         -                2"
            "           3  -"
        ),
        "",
        "EPOCH  WHEN                     WHAT       BY  COUNTED",
        f"    1  {at:%Y-%m-%d %H:%M:%S} UTC  2 members  B   yes",
    ]


def test_text_shows_who_holds_chunks_and_for_how_long(store: CommitStore) -> None:
    """In a cooperative epoch all members have all key hashes; a line for each one's chunks."""
    epoch = store.open_epoch("g", {"a": [P0], "b": [P0]}, previous=None, sharing="cooperative")
    store.start("g", epoch, "a", {P0: 0})
    for name, owner in (("a-1", "a"), ("b-1", "b"), ("a-2", "a")):
        store.acquire("g", epoch, owner, AcquireRequest(name, {P0: Wanted(5, 99)}))
    store.commit("g", epoch, "a", {P0: [(0, 1)]})
    group = overview(store, facts(store))
    assert group.sharing == "cooperative"
    (partition,) = group.partitions
    since = partition.chunks[0].since
    assert since is not None
    lines = [line.split() for line in group_lines(group, since + timedelta(seconds=42))]
    assert ["orders-0", "all,", "cooperative"] in [line[:3] for line in lines]
    at = lines.index(["PARTITION", "HELD", "BY", "CHUNKS", "OFFSETS", "FIRST", "LAST", "SECONDS"])
    assert lines[at + 1] == ["orders-0", "A", "2", "8", "2", "14", "42"]
    assert lines[at + 2][:-1] == ["orders-0", "B", "1", "5", "5", "9"]
    chunk = json.loads(json.dumps(group.to_dict()))["partitions"][0]["chunks"][0]
    assert chunk["member"] == "a"
    assert chunk["offsets"] == 3


def test_a_filter_is_shown_where_there_is_one(store: CommitStore) -> None:
    """That of the epoch, and those of claims, in the words of the options."""
    store.open_epoch("g", {"a": [P0]}, previous=None, record_filter="denyKeys=<k>")
    store.claim("g", "hand", [P1], record_filter="where=value is not null")
    found = facts(store, member(store, "a"), ends={P0: 0, P1: 0})
    group = overview(store, found)
    lines = group_lines(group, found.history[-1]["written_at"])
    assert "filter denyKeys=<k>" in lines
    assert "filter of B: where=value is not null" in lines
    assert group.to_dict()["record_filter"] == "denyKeys=<k>"
    assert group.to_dict()["claims"][0]["record_filter"] == "where=value is not null"
    assert "filter denyKeys=&lt;k&gt;" in group._repr_html_()


def test_one_member_is_one_member(store: CommitStore) -> None:
    """In its representation, as HTML and as text."""
    store.open_epoch("g", {"a": [P0]}, previous=None, member="a")
    group = overview(store, facts(store, member(store, "a"), ends={P0: 0}))
    shown = (repr(group), group._repr_html_(), "\n".join(group_lines(group)))
    assert all("1 member" in text and "1 members" not in text for text in shown)


def test_text_shows_claims_ranges_in_doubt_and_the_last_events(store: CommitStore) -> None:
    """What is waited for is shown while it lasts, and as many events as requested."""
    before = store.open_epoch("g", {"a": [LOW], "b": [HIGH]}, previous=None, life_ms=9_000)
    store.release("g", before, "a")
    store.open_epoch("g", {"a": [P0]}, previous=before, member="a")
    store.claim("g", "hand", [P1])
    found = facts(store, member(store, "a"), ends={P0: 0, P1: 0})
    opened = found.history[-2]["written_at"]
    group = overview(store, found)
    lines = [line.split() for line in group_lines(group, opened + timedelta(seconds=5), history=1)]
    assert ["B", "hand", "3", "1.00"] in lines
    assert ["orders-0", "50.0", "to", "100.0", "%", "4"] in lines
    assert lines[-2:] == [
        ["EPOCH", "WHEN", "WHAT", "BY", "COUNTED"],
        ["3", *f"{group.events[-1].at:%Y-%m-%d %H:%M:%S} UTC standalone claim B yes".split()],
    ]
    late = [line.split() for line in group_lines(group, opened + timedelta(seconds=10), history=0)]
    waits = next(at for at, words in enumerate(lines) if words[:2] == ["WAITS", "FOR"])
    assert (lines[0][:5], late[0]) == (["Waiting", "for", "a", "lost", "member"], ["All", "done"])
    assert late[1:] == lines[1 : waits - 1]


# -- in a terminal -----------------------------------------------------------------------------


class Terminal(io.StringIO):
    """What a terminal gets."""

    def isatty(self) -> bool:
        """Returns true."""
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 60 columns."""
    shown = Terminal()
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "60", "LINES": "25"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    return shown


def test_tables_fit_a_terminal(terminal: Terminal) -> None:
    """Texts are folded and nothing of them is cut; numbers stay whole; commands stay texts."""
    long = "a-name-without-spaces-that-no-narrow-terminal-has-space-for-[bold]-:smile:"
    write(
        ["of one group", Table(("name", "lag", "error"), [(long, 1_234_567, "no \x1b[2J" * 9)])],
        terminal,
    )
    lines = unstyled(terminal).splitlines()
    assert lines[0] == "of one group"
    assert max(map(len, lines)) <= 60
    assert "1,234,567" in unstyled(terminal)
    assert "".join(line.split("  ")[0].strip() for line in lines[2:]) == long
    assert r"\x1b[2J" in "".join(line[24:].strip() for line in lines[2:]).replace(" ", "")


def test_owners_have_colours_in_a_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter has the same one in each place; with NO_COLOR it has no colour."""
    low, high = KeyRange().split(2)
    parts = OwnedPart(low, Owner(0), ""), OwnedPart(high, Owner(1), "")
    table = Table(("", "key hashes"), [(Owner(1), KeyRangeMap(parts))])
    write([table], terminal)
    (colour,) = set(re.findall(r"\x1b\[([0-9;]+)mB", terminal.getvalue()))
    assert f"\x1b[{colour}mA" not in terminal.getvalue()
    terminal.truncate(0)
    monkeypatch.setenv("NO_COLOR", "1")
    write([table], terminal)
    assert re.search(r"\x1b\[[34]8;", terminal.getvalue()) is None
    assert "A" * 16 + "B" * 16 in unstyled(terminal)


def test_a_narrow_terminal_has_smaller_maps(terminal: Terminal) -> None:
    """Where not even these fit, nothing is left out: the terminal breaks the lines."""
    low, high = KeyRange().split(2)
    parts = KeyRangeMap((OwnedPart(low, Owner(0), ""), OwnedPart(high, Owner(1), "")))
    numbers = (1_000_000,) * 4
    write([Table(("a", "b", "c", "d", "keys"), [(*numbers, parts)])], terminal)
    assert unstyled(terminal).split() == [*"ABCD", "KEYS", *["1,000,000"] * 4, "A" * 8 + "B" * 8]
    assert max(map(len, unstyled(terminal).splitlines())) <= 60
    terminal.truncate(0)
    write([Table([*"abcdef", "keys"], [(*numbers, *numbers[:2], parts)])], terminal)
    assert terminal.getvalue().split()[-1] == "A" * 16 + "B" * 16


def test_very_long_tables_are_not_fitted(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row takes half a millisecond to fit; beyond some thousand they are plain lines.

    Each value is looked at once, so that twice as many rows take twice the time.
    """
    looks = []
    monkeypatch.setattr(tables, "_is_number", looks.append)
    write([Table(("name",), [("x" * 99,)] * 2_500)], terminal)
    assert terminal.getvalue().splitlines()[1] == "x" * 99
    assert len(looks) == 2_500


_WORDS = st.text("abcdefgh -_", max_size=60)
_ROWS = st.integers(1, 6).flatmap(
    lambda columns: st.lists(
        st.tuples(*[st.one_of(_WORDS, st.integers(0, 10**15), st.none())] * columns),
        min_size=1, max_size=4,
    )
)  # fmt: skip


@given(_ROWS, st.integers(20, 140), st.randoms(use_true_random=False))
def test_nothing_of_a_table_is_cut_by_any_terminal(
    rows: list[tuple[object, ...]], width: int, random: Random
) -> None:
    """Numbers and words of titles stay whole, and the pieces of a text are all of it."""
    titles = tuple(random.choice(["a", "done above", "kafka's", "partition", ""]) for _ in rows[0])
    table = Table(titles, rows)
    fitted = _fitted(table, width)
    if fitted is None:
        return
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(fitted)
    lines = out.getvalue().split("\n")
    assert max(map(len, lines)) <= width
    ends = list(itertools.accumulate(column.width + 2 for column in fitted.columns))
    for at, (title, end) in enumerate(zip(titles, ends, strict=True)):
        shown = "".join(line[end - fitted.columns[at].width - 2 : end - 2] for line in lines)
        wanted = "".join([title.upper(), *(cell(row[at]) for row in rows)])
        assert shown.replace(" ", "") == wanted.replace(" ", "")
        assert all(word in shown for word in title.upper().split())
        assert all(cell(row[at]) in shown for row in rows if isinstance(row[at], int))


def test_wide_characters_take_two_columns(terminal: Terminal) -> None:
    """As a terminal shows them; numbers beside them stay whole."""
    write([Table(("key", "lag"), [("日本語キー" * 6, 1_234_567)] * 2)], terminal)
    lines = unstyled(terminal).splitlines()
    assert max(map(cell_len, lines)) <= 60
    assert sum("1,234,567" in line for line in lines) == 2


def unstyled(terminal: Terminal) -> str:
    """Returns what a terminal shows, without its styles."""
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())


# -- as HTML -----------------------------------------------------------------------------------


def test_a_group_as_html_is_well_formed(store: CommitStore) -> None:
    """Names are escaped, ours is marked, and each range has its place on the map."""
    epoch = store.open_epoch("g", {"<b>&": [LOW], "me": [HIGH]}, previous=None, member="me")
    store.commit("g", epoch, "me", {P0: [(0, 2)]})
    store.claim("g", "hand", [P1])
    group = overview(store, facts(store, member(store, "me"), ends={P0: 3}))
    page = ET.fromstring(group_html(group, "me"))
    assert "".join(page.itertext()).count("(this one)") == 1
    rows = {"".join(row[0].itertext()): row for row in page.iter("tr") if len(row) == 9}
    shares = rows["orders-0"].findall(".//svg/rect[title]")
    assert [(rect.get("x"), rect.get("width")) for rect in shares] == [
        ("0.00", "160.00"), ("160.00", "160.00"),
    ]  # fmt: skip
    assert shares[0].findtext("title") == f"<b>& {KeyRange(*LOW[2:])}"
    assert len({rect.get("fill") for rect in shares}) == 2
    # Other tables name owners by the letters beside their colours.
    letters = {"".join(row[1].itertext()): row[0] for row in page.iter("tr") if len(row) > 1}
    assert "".join(letters["me (this one)"].itertext()).endswith(" B")
    assert group._repr_html_() == group_html(group)
    assert repr(group) == "<GroupOverview 'g': Stable, 2 members, 0 records not done>"


def test_an_assignment_as_html_is_well_formed() -> None:
    """A map for each partition with our ranges on it."""
    low, _, high = KeyRange().split(3)
    page = ET.fromstring(
        html([assignment_table({("t<", 1): [low, high], ("t<", 0): [KeyRange()]})])
    )
    maps = page.findall(".//svg")
    assert [len(found.findall("rect[title]")) for found in maps] == [1, 2]
    assert "t<-0" in "".join(page.itertext())


def test_what_fails_or_takes_long_is_not_drawn() -> None:
    """The text is shown then, and nothing is raised."""
    never = threading.Event()

    def fails() -> str:
        raise RuntimeError("no broker")

    assert in_time(120, lambda: "drawn") == "drawn"
    assert in_time(120, fails) is None
    assert in_time(0.01, never.wait) is None
    never.set()


def test_times_are_those_of_the_log(store: CommitStore) -> None:
    """They have a time zone and are near now."""
    store.open_epoch("g", {"a": [P0]}, previous=None)
    (event,) = overview(store, facts(store)).events
    assert abs(datetime.now(UTC) - event.at) < timedelta(minutes=15)


def test_the_owner_of_a_key_is_named_with_its_slot(store: CommitStore) -> None:
    """As the owner deals its key ranges to its slots; members without slots are named, too."""
    group = overview(store, two_members(store))
    quarter = HALF // 2
    own = key_metadata(group, *P0, HALF + quarter + 1)
    assert own is not None
    assert (own.member, own.client_id, own.host) == ("a", "client-a", "10.0.0.7")
    assert (own.slot, own.key_range) == (1, KeyRange(HALF + quarter, MAX_KEY_HASH))
    dealt = dict(deal((KeyRange(HALF, MAX_KEY_HASH),), 2, 0, "key"))
    assert dealt[1] == (own.key_range,)
    other = key_metadata(group, *P0, 0)
    assert other is not None
    assert (other.member, other.slot, other.key_range) == ("b", 0, KeyRange(0, HALF - 1))
    assert key_metadata(group, "orders", 7, 0) is None
    members = tuple(replace(one, slots=None) for one in group.members)
    joining = key_metadata(replace(group, members=members), *P0, MAX_KEY_HASH)
    assert joining is not None
    assert (joining.slot, joining.key_range) == (None, KeyRange(HALF, MAX_KEY_HASH))
