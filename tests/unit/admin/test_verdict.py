"""The verdict on a described group: what its overview says, as text, HTML and JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from assignors import KeyRange
from commits import OffsetRanges, Pending
from commits.model import PARKED_MS
from coopconsume.admin.html import html
from coopconsume.admin.overview import (
    ClaimOverview,
    GroupEvent,
    GroupOverview,
    InDoubtRange,
    MemberOverview,
    OwnedRange,
    PartitionOverview,
)
from coopconsume.admin.overview.collect import _open_offsets, _parked_keys
from coopconsume.admin.overview.data import GONE, JOINING, WORKING, DecisionOverview
from coopconsume.admin.overview.tables import group_parts, lag_parts
from coopconsume.admin.overview.verdict import condition_of, group_verdicts
from coopconsume.admin.tables import Headline
from coopconsume.admin.text import text_lines, write
from coopconsume.kafka.blocker_records import BlockerRecord
from coopconsume.kafka.parked_keys import BehindParked, ParkedKeys
from coopconsume.kafka.retention import ExpiringOffsets
from coopconsume.monitoring.verdict import LEVELS, Pace, RecordPlace

NOW = datetime(2026, 11, 30, 4, 30, tzinfo=UTC)
IN_DOUBT = InDoubtRange(KeyRange(), 9.0, NOW + timedelta(seconds=9))
OWNED = (OwnedRange("m", KeyRange()),)


def partition(number: int = 0, **more: Any) -> PartitionOverview:
    """Returns a partition of ten offsets, with a member."""
    known = {"stable_offset": 10, "log_start": 0, "end_offset": 10, "owners": OWNED}
    return PartitionOverview("t", number, **(known | more))


def parked(offset: int, key_hash: int | None = 7, key: str | None = None) -> Pending:
    """Returns a parked record."""
    return Pending(offset, key_hash, 3, PARKED_MS, "no", key=key)


def group(*partitions: PartitionOverview, status: str = WORKING, **more: Any) -> GroupOverview:
    """Returns the group g of one member."""
    member = MemberOverview("m", "h", "c", None, 1, status, ())
    return replace(
        GroupOverview("g", "Stable", "", "", "", "", 1, 1, (member,), (), partitions, (), ()),
        **more,
    )


def test_a_record_with_an_open_decision_waits_for_a_job() -> None:
    """Nobody has to decide once more, but somebody to apply it, if nobody works on the group."""
    parked_one = partition(stable_offset=9, pending={9: parked(9)})
    made = DecisionOverview("t", 0, 9, "replay", NOW, "ada", "", "open")
    for members, reason in (((), "nobody"), (None, "working")):
        more = {} if members is None else {"members": members}
        undecided, decided = (group(parked_one, decisions=d, **more) for d in ((), (made,)))
        assert first(undecided) == ("action", "decision")
        assert first(decided)[1] == reason


def first(found: GroupOverview) -> tuple[str, str]:
    """Returns the level and the reason of a group's verdict."""
    verdict = group_verdicts(found, NOW)[0]
    return verdict.level, verdict.reason


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (group(), ("ok", "done")),
        (group(partition()), ("ok", "done")),
        (group(partition(stable_offset=4)), ("working", "working")),
        # Kafka's "Stable" is a state of the membership only.
        (group(partition(stable_offset=4), status=GONE), ("action", "nobody")),
        (group(partition(stable_offset=4), status="fenced"), ("action", "nobody")),
        (group(partition(stable_offset=4), status=JOINING), ("working", "working")),
        (group(partition(stable_offset=4), members=()), ("action", "nobody")),
        (
            group(partition(stable_offset=4), members=(), claims=(ClaimOverview(1, "c", ()),)),
            ("working", "working"),
        ),
        (group(partition(), members=()), ("ok", "done")),
        (
            group(partition(stable_offset=4), state="PreparingRebalance"),
            ("waiting", "rebalancing"),
        ),
        (
            group(partition(stable_offset=4), state="PreparingRebalance", members=()),
            ("action", "nobody"),
        ),
        # A partition of a topic that no member subscribes to.
        (group(partition(), partition(1, stable_offset=4, owners=())), ("action", "nobody")),
        (group(partition(stable_offset=4, owners=())), ("working", "working")),
        (group(partition(), partition(1, owners=())), ("ok", "done")),
        (group(partition(), state="PreparingRebalance", members=()), ("ok", "done")),
        (group(partition(stable_offset=None)), ("waiting", "unknown")),
        (group(partition(end_offset=None)), ("waiting", "unknown")),
        (group(partition(stable_offset=None, log_start=10)), ("ok", "done")),
        (
            group(partition(stable_offset=4, pending={4: Pending(4, 7, 2, 9, "no")})),
            ("waiting", "failed"),
        ),
        (
            group(partition(stable_offset=4), expiring=ExpiringOffsets(6, 60.0, (("t", 0),))),
            ("danger", "retention"),
        ),
        # No call of it has counted, as while a service is down.
        (
            group(partition(stable_offset=4, pending={4: Pending(4, 7, 0, 9, "is down")})),
            ("waiting", "failed"),
        ),
        # It holds its own key, not the stable offset.
        (
            group(partition(stable_offset=4, pending={5: Pending(5, 7, 2, 9, "no")})),
            ("working", "working"),
        ),
        # An owner has noted that it has read the record.
        (group(partition(stable_offset=4, pending={4: Pending(4, 7)})), ("working", "working")),
        (group(partition(stable_offset=4, pending={4: parked(4)})), ("action", "decision")),
        (
            group(partition(stable_offset=4, in_doubt=(IN_DOUBT,))),
            ("waiting", "lostMember"),
        ),
        (
            # The rows of its epoch are not kept, and nothing has been written since.
            group(partition(stable_offset=4, in_doubt=(InDoubtRange(KeyRange(), 9.0, None),))),
            ("working", "working"),
        ),
        (
            group(partition(stable_offset=4, in_doubt=(InDoubtRange(KeyRange(), 9.0, NOW),))),
            ("working", "working"),
        ),
        (group(partition(stable_offset=4, log_start=6)), ("danger", "deleted")),
        (
            group(partition(stable_offset=4, log_start=6, done=OffsetRanges([(4, 5)]))),
            ("working", "working"),
        ),
    ],
)  # fmt: skip
def test_the_state_of_a_group_decides(found: GroupOverview, verdict: tuple[str, str]) -> None:
    """What its members, claims, partitions and pending records say."""
    assert first(found) == verdict


def test_keys_are_counted_once_and_named() -> None:
    """Parked records of one key and partition are one key; each record without a key is one."""
    records = [parked(4, 7, "bob"), parked(5, 7), parked(6, None), parked(7, None)]
    found = group(
        partition(
            stable_offset=4, pending={one.offset: one for one in records},
            behind_parked=BehindParked(1),
        ),
        partition(1, stable_offset=4, pending={4: parked(4)}, behind_parked=BehindParked(2)),
    )  # fmt: skip
    condition = condition_of(found, NOW)
    assert (condition.parked_count, condition.parked_keys) == (5, 4)
    assert condition.behind == BehindParked(3)
    assert condition.to_do == 12 - 5 - 3
    assert condition.parked[0] == RecordPlace("t", 0, 4, "bob")
    assert condition.parked[1] == RecordPlace("t", 0, 5, None)
    shared = replace(found, sharing="cooperative")
    assert "5 records wait for your decision" in group_verdicts(shared, NOW)[0].sentence


def test_records_behind_parked_ones_are_counted_in_all_partitions_or_not_at_all() -> None:
    """One that was not read makes the number unknown; one that was read in part, a bound."""
    known = {"stable_offset": 4, "pending": {4: parked(4)}}
    one = partition(behind_parked=BehindParked(1), **known)
    part = partition(1, behind_parked=BehindParked(2, is_all=False), **known)
    assert condition_of(group(one, part), NOW).behind == BehindParked(3, is_all=False)
    assert condition_of(group(one, partition(1, **known)), NOW).behind is None
    assert condition_of(group(one, partition(1)), NOW).behind == BehindParked(1)


def test_what_is_looked_for_in_kafkas_log_is_what_is_not_done() -> None:
    """The lowest parked record of each key, and open offsets that the log may have."""
    records = [parked(6, 9), parked(4, 7), parked(5, 7), parked(7, None)]
    one = partition(
        stable_offset=4, pending={each.offset: each for each in records} | {8: Pending(8, 1)},
        done=OffsetRanges([(9, 9)]),
    )  # fmt: skip
    found = _parked_keys([one, partition(1)])
    assert found == {("t", 0): ParkedKeys({7: 4, 9: 6}, one.done, 0, 10)}
    assert found["t", 0].start == 5
    keyed = replace(one, has_ordering_keys=True)
    unseen = replace(one, end_offset=None)
    assert _parked_keys([keyed, unseen]) == {}
    cut = replace(one, log_start=6)
    known = _open_offsets([cut, partition(1), replace(one, partition=2), unseen])
    assert {tp: open_.first for tp, open_ in known.items()} == {("t", 0): 6, ("t", 2): 4}
    assert [known["t", 2].below(offset) for offset in (3, 5, 10, 99)] == [0, 1, 5, 5]


def test_the_last_lost_member_counts() -> None:
    """Until the last of its ranges is free, with the names of all their partitions."""
    soon, late = NOW + timedelta(seconds=5), NOW + timedelta(seconds=9)
    doubts = [(InDoubtRange(KeyRange(), 9.0, until),) for until in (late, soon)]
    found = group(*(partition(n, in_doubt=doubt) for n, doubt in enumerate(doubts)))
    lost = condition_of(found, NOW).lost_member
    assert lost is not None
    assert (lost.seconds, lost.until, [*lost.partitions]) == (9.0, late, ["t-0", "t-1"])
    assert lost.since == NOW


def test_since_when_keys_wait_is_the_time_of_the_first_if_all_are_known() -> None:
    """Failed records have the time of their first failure."""
    old, late = (replace(parked(at), since_ms=at * 1_000) for at in (4, 5))
    for records, since in (((late, old), 4), ((old, parked(5)), None), ((late,), 5)):
        condition = condition_of(group(_holding(*records)), NOW)
        assert condition.parked_since == (since and datetime.fromtimestamp(since, UTC))
    (held,) = condition_of(group(_holding(Pending(4, 7, 1, 9, "no", since_ms=4_000))), NOW).failed
    assert held.since == datetime.fromtimestamp(4, UTC)
    (unknown,) = condition_of(group(_holding(Pending(4, 7, 1, 9, "no"))), NOW).failed
    assert unknown.since is None


def _holding(*records: Pending) -> PartitionOverview:
    return partition(stable_offset=4, pending={one.offset: one for one in records})


MINUTE = timedelta(minutes=1)
#: What a single look has of a hang: a record that was written long ago, and a commit before it.
OLD = BlockerRecord(is_there=True, key=b"k", written_ms=round((NOW - MINUTE).timestamp() * 1_000))
HANG = {"stable_offset": 4, "record": OLD}
FRESH = replace(OLD, written_ms=round(NOW.timestamp() * 1_000))


def epoch(at: datetime, kind: str = "epoch", *, counted: bool = True) -> GroupEvent:
    """Returns a change of the group."""
    return GroupEvent(kind, at, 1, "m", 1, None, counted, "")


@pytest.mark.parametrize(
    ("found", "since"),
    [
        # Its topic was quiet for an hour; then a record came, and its handler hangs.
        (group(partition(**HANG), last_commit=NOW - 60 * MINUTE), MINUTE),
        # There was more to do as it committed last.
        (group(partition(**HANG), last_commit=NOW - MINUTE / 2), MINUTE / 2),
        # It has committed nothing since it began.
        (group(partition(**HANG), events=(epoch(NOW - MINUTE / 2),)), MINUTE / 2),
        (
            group(
                partition(**HANG), last_commit=NOW - 9 * MINUTE,
                events=(epoch(NOW - MINUTE / 3), epoch(NOW, counted=False)),
            ),
            MINUTE / 3,
        ),
        # A record came just now: the group was idle before.
        (
            group(partition(stable_offset=4, record=FRESH), last_commit=NOW - 60 * MINUTE),
            0 * MINUTE,
        ),
        # An idle group, and others in which nothing says that a record could have been done.
        (group(partition(), last_commit=NOW - MINUTE), None),
        (group(partition(**HANG)), None),
        (group(partition(stable_offset=4), last_commit=NOW - MINUTE), None),
        (group(partition(**HANG, owners=()), last_commit=NOW - MINUTE), None),
        (group(partition(**HANG), last_commit=NOW - MINUTE, members=()), None),
        (group(partition(**HANG), last_commit=NOW - MINUTE, state="PreparingRebalance"), None),
        (
            group(
                partition(**HANG, in_doubt=(IN_DOUBT,)),
                last_commit=NOW - MINUTE,
            ),
            None,
        ),
        (group(partition(**HANG, pending={4: parked(4)}), last_commit=NOW - MINUTE), None),
        (
            group(
                partition(**HANG, pending={4: Pending(4, 7, 1, 9, "no")}),
                last_commit=NOW - MINUTE,
            ),
            None,
        ),
        # There is no record: the offset is that of a transaction marker.
        (
            group(
                partition(stable_offset=4, record=replace(OLD, is_there=False)),
                last_commit=NOW - MINUTE,
            ),
            None,
        ),
    ],
)  # fmt: skip
def test_a_single_look_sees_since_when_a_record_could_have_been_done(
    found: GroupOverview, since: timedelta | None
) -> None:
    """It is there, nothing holds it, and since then neither a commit nor another epoch came."""
    condition = condition_of(found, NOW)
    assert condition.open_since == (None if since is None else NOW - since)
    expected = [] if since is None else [RecordPlace("t", 0, 4, "k")]
    assert condition.open_records == expected


def test_a_hang_is_seen_in_a_single_look() -> None:
    """As it is on the page; not if commits come, although the record that is known is old."""
    found = group(partition(**HANG), partition(1, **HANG), last_commit=NOW - MINUTE / 2)
    first, *_ = group_verdicts(found, NOW)
    assert first.reason == "stalled"
    assert first.sentence == "No commit since 04:29:30 UTC: 12 records not done"
    assert [one.partition for one in first.records] == [0, 1]
    assert group_verdicts(found, NOW, Pace(2.0, 0.0, 4.0))[0].reason == "working"


def test_retention_names_the_partitions_that_have_lost_records() -> None:
    """Not those that have all that they need."""
    cut = {"stable_offset": 4, "log_start": 6}
    found = group(partition(**cut), partition(1), partition(2, **cut))
    sentence = "Retention has deleted 4 offsets of t-0, t-2 that were not done. "
    assert group_verdicts(found, NOW)[0].sentence.startswith(sentence)


def test_the_verdict_is_first_in_text_html_and_json() -> None:
    """With the next command, and what else holds; a key cannot begin another line."""
    record = parked(4, 7, "a\nb")
    found = group(
        partition(stable_offset=4, pending={4: record}, behind_parked=BehindParked(2)),
        last_commit=NOW,
        place="--commit-table /c",
    )
    expected = [
        r"1 key waits for your decision: 2 records behind a\nb (t-0@4)",
        "next: coopconsume records list g --commit-table /c",
        "also: Working: 3 records not done",
    ]
    for parts in (group_parts, lag_parts):
        assert [*text_lines(parts(found, NOW))][:3] == expected
    colour = Headline("", "action").colour
    assert found._repr_html_().startswith(f'<div><p style="color:{colour};font-weight:bold">1 key')
    document = json.loads(json.dumps(found.to_dict()))
    assert document["verdict"]["sentence"] == expected[0].replace(r"\n", "\n")
    assert document["verdict"]["records"][0]["key"] == "a\nb"
    assert document["last_commit"] == NOW.isoformat()
    assert document["partitions"][0]["behind_parked"] == {
        "records": 2,
        "is_all": True,
        "keys": {},
    }
    held = Pending(4, 7, 2, 9, "no", key="a\nb\x1b[2J")
    failing = group(partition(stable_offset=4, pending={4: held}))
    assert next(text_lines(group_parts(failing, NOW))) == (
        r"Held by a\nb\x1b[2J (t-0@4): no (attempt 2, next in 0 s)"
    )


def test_a_terminal_shows_the_colour_of_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level has its own, in terminals and in HTML; a pipe gets none."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    headlines = [Headline("All done", level) for level in LEVELS]
    shown = []
    for one in headlines:
        terminal, pipe = Terminal(), io.StringIO()
        write([one], terminal)
        write([one], pipe)
        assert pipe.getvalue() == "All done\n"
        red, green, blue = (int(one.colour[at : at + 2], 16) for at in (1, 3, 5))
        assert f"38;2;{red};{green};{blue}m" in terminal.getvalue()
        shown.append(html([one]))
    assert len({*shown}) == len(LEVELS)
