"""The registry's log: which change counts, whatever order they come in, and from any snapshot."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.errors import OwnershipFormat
from coopconsume.fenced.ownership import rules, wire
from coopconsume.fenced.ownership.log_fold import MOST_FINDINGS, OwnershipFold, change
from coopconsume.fenced.ownership.model import AccessMode, Holder, OwnershipEvent, Row, Session
from tests.examples import examples

NAMES = ("anna", "ben", "carl")
RESOURCES = ("a", "b")

#: Records that somebody else wrote, and what is reported of them.
FOREIGN: list[tuple[bytes, str]] = [
    (b"\xff", "no JSON object"),
    (b"[]", "no JSON object"),
    (b'{"format": 99}', "format 99"),
    (b'{"format": 1, "kind": "change", "id": "x", "entries": []}', "'rows'"),
    (b'{"format": 1, "kind": "change", "id": "x", "rows": [{"group": "g"}]}', "Row."),
    (b'{"format": 1, "kind": "change", "id": "x", "rows": 7, "entries": []}', "TypeError"),
    (b'{"format": 1, "kind": "change", "id": "x", "rows": ["a"], "entries": []}', "items"),
    (
        b'{"format": 1, "kind": "change", "id": "x", "rows": [], "entries": [{"x": 1}]}',
        "'x'",
    ),
    (b'{"format": 1, "kind": "snapshot", "id": "x", "rows": [], "entries": []}', "'part'"),
    (b'{"format": 1, "kind": "snapshot", "rows": [], "entries": [], "part": 1e999}', "part"),
    (b"", "no JSON object"),
    (b"[" * 100_000, "no JSON object"),
]
#: Fields of a row, or of its owner, that no registry writes.
MALFORMED: list[tuple[str, str, object]] = [
    ("row", "revision", True), ("row", "generation", "1"), ("row", "fence_epoch", None),
    ("row", "fence_epoch", -1), ("row", "fence_epoch", 2**64), ("row", "topic_id", 3),
    ("row", "next_ticket", 1.5), ("owner", "heartbeat", None), ("owner", "lease_ms", "10"),
    ("owner", "session", {"owner": "anna", "id": []}), ("owner", "epoch", "2"),
]  # fmt: skip

# Each writer decides on what it saw after some record, which may be long ago.
intents = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sets(st.sampled_from(RESOURCES), min_size=1),
        st.sampled_from([*AccessMode, "own", "leave", "beat", "again", "foreign"]),
        st.integers(0, 3),
    ),
    max_size=25,
)


def decided(row: Row, name: str, what: object) -> rules.Step:
    """What a claimant makes of a row."""
    session = Session(name, name)
    if what == "own":
        return rules.own(row, Holder(session, lease_ms=5), row.generation)
    if what == "leave":
        return rules.leave(row, session)
    if what == "beat":
        return rules.beat(row, session)
    assert isinstance(what, AccessMode)
    return rules.acquire(row, Holder(session, what, epoch=row.fence_epoch), "an id")


class Log:
    """A log as its writers make it, with a naive account of what counts."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.states: list[dict[str, Row]] = [{}]  # after each record
        self.lines: list[OwnershipEvent] = []

    def write(self, name: str, resources: set[str], what: object, behind: int) -> None:
        now = self.states[-1]
        if what == "again" and self.records:
            self.records.append(self.records[-1])  # written twice: the first one counts
            self.states.append(now)
            return
        if what == "foreign":
            self.records.append(FOREIGN[behind][0])
            self.states.append(now)
        if what in ("again", "foreign"):
            return
        seen = self.states[max(0, len(self.states) - 1 - behind)]
        steps = []
        for resource in sorted(resources):
            row = seen.get(resource, Row("g", resource))
            step = decided(row, name, what)
            if step.row is not row:
                steps.append(replace(step, row=replace(step.row, revision=row.revision + 1)))
        if not steps:
            return
        lines = [
            OwnershipEvent("g", s.row.resource, s.row.revision, event, who.owner, who.id, 1, 1)
            for s in steps
            for event, who in s.happened
        ]
        rows = [step.row for step in steps]
        self.records.append(change(f"change-{len(self.records)}", rows, lines))
        untouched = all(now.get(s.row.resource) == seen.get(s.row.resource) for s in steps)
        if untouched:
            now = now | {row.resource: row for row in rows}
            self.lines += lines
        self.states.append(now)


def folded(records: list[tuple[int, bytes]], start: int = 0) -> OwnershipFold:
    """A fold of records, from where the log begins."""
    fold = OwnershipFold("here", start)
    for offset, value in records:
        fold.take(offset, value)
    return fold


def state_of(fold: OwnershipFold) -> tuple[dict[str, Row], list[OwnershipEvent]]:
    """Rows and history."""
    return {row.resource: row for row in fold.rows.values()}, [
        entry for key in sorted(fold.history) for entry in fold.history[key]
    ]


@settings(max_examples=examples(300))
@given(intents)
def test_a_change_counts_if_nothing_came_in_between(steps: list) -> None:
    """All rows of it or none, once; and the history is that of what counted."""
    log = Log()
    for step in steps:
        log.write(*step)
    rows, lines = state_of(folded(list(enumerate(log.records))))
    assert rows == log.states[-1]
    assert lines == sorted(log.lines, key=lambda line: line.resource)


@settings(max_examples=examples(300))
@given(intents, st.data())
def test_a_log_cut_anywhere_below_a_snapshot_says_the_same(
    steps: list, data: st.DataObject
) -> None:
    """Also where changes were written between the state of a snapshot and its own place."""
    log = Log()
    for step in steps:
        log.write(*step)
    whole = list(enumerate(log.records))
    taken = data.draw(st.integers(0, len(whole)), label="taken in by the one who writes it")
    late = data.draw(st.integers(0, len(whole) - taken), label="written before it lands")
    place = taken + late
    size = data.draw(st.sampled_from([1, 300, 10**6]), label="bytes of a part")
    parts = folded(whole[:taken]).snapshot(size)
    values = log.records[:place]
    for i, part in enumerate(parts):  # Changes come between the parts.
        values += [part, *log.records[place + i : place + i + 1]]
    values += log.records[place + len(parts) :]
    start = data.draw(st.integers(0, taken), label="where the log begins now")
    fold = folded([*enumerate(values)][start:], start)
    assert fold.is_whole
    assert state_of(fold) == state_of(folded(whole))
    assert fold.next_offset == len(values)
    if start and len(parts) > 1:
        missing = values.index(parts[data.draw(st.integers(0, len(parts) - 1), label="lost")])
        cut = [(offset, value) for offset, value in enumerate(values) if offset != missing]
        assert not folded(cut[start:], start).is_whole


def test_a_snapshot_that_is_too_old_is_not_used() -> None:
    """A log was cut above what it covers: the next one is needed."""
    log = Log()
    for number in range(4):
        log.write(NAMES[number % 2], {"a"}, "own", 0)
    old, new = folded(list(enumerate(log.records))[:1]), folded(list(enumerate(log.records)))
    records = [*enumerate(log.records), (4, *old.snapshot())]
    fold = folded(records[3:], 3)
    assert not fold.is_whole
    fold.take(5, *new.snapshot())
    assert fold.is_whole
    assert state_of(fold) == state_of(new)


def test_a_snapshot_of_any_size_has_records_of_a_bounded_one() -> None:
    """Of hundreds of resources with their histories."""
    fold = folded([])
    for number in range(200):
        rows = [Row("g", f"resource-{number}", 1, owner=Holder(Session("anna" * 20, "1")))]
        lines = [OwnershipEvent("g", f"resource-{number}", 1, "owned", "anna", "1", 1, 1)] * 100
        fold.take(number, change(f"c{number}", rows, lines))
    parts = fold.snapshot()
    assert sum(map(len, parts)) > 2_000_000
    assert max(map(len, parts)) < 600_000
    again = folded([(200 + i, part) for i, part in enumerate(parts)], 200)
    assert state_of(again) == state_of(fold)


def test_what_is_left_of_a_log_without_its_beginning_can_be_used() -> None:
    """The last change of each resource."""
    log = Log()
    for number in range(4):
        log.write(NAMES[number % 2], {"a"}, "own", 0)
    fold = folded([*enumerate(log.records)][2:], 2)
    assert not fold.is_whole
    fold.salvage()
    assert fold.is_whole
    assert state_of(fold)[0] == log.states[-1]


def test_a_change_that_follows_on_nothing_does_not_count() -> None:
    """A revision beyond the next one: what it follows on is not in the log."""
    first, third = Row("g", "a", revision=1), Row("g", "a", revision=3)
    fold = folded([(0, change("one", [first], []))])
    assert fold.take(1, change("three", [third], [])) is None
    assert state_of(fold) == ({"a": first}, [])


@given(st.sampled_from(NAMES), st.sampled_from(AccessMode), st.none() | st.integers(0, 9))
def test_rows_and_lines_come_back_as_they_were(
    name: str, mode: AccessMode, epoch: int | None
) -> None:
    """Through the JSON of every store."""
    holder = Holder(Session(name, "1"), mode, 3, 4, 5, epoch)
    row = Row("g", "r", 1, 2, 3, holder, (holder,), (holder, replace(holder, mode=None)), 6)
    again = wire.loads("here", wire.dumps({"format": wire.FORMAT, "row": asdict(row)}))
    assert wire.parsed(Row, "here", again["row"]) == row
    entry = OwnershipEvent("g", "r", 1, "owned", name, "1", 2, 3, 4)
    assert wire.parsed(OwnershipEvent, "here", asdict(entry)) == entry


@pytest.mark.parametrize(("value", "problem"), FOREIGN)
@pytest.mark.parametrize("start", [0, 7])
def test_foreign_records_are_skipped(value: bytes, problem: str, start: int) -> None:
    """They are reported with their offset; what comes after them counts."""
    fold = folded([(start, value)], start)
    assert fold.passed_over == 1
    ((offset, found),) = fold.findings
    assert offset == start
    assert problem in found
    fold.salvage()
    assert fold.take(start + 1, change("one", [Row("g", "a", revision=1)], [])) == "one"
    for number in range(30):
        fold.take(start + 2 + number, value)
    assert (fold.passed_over, len(fold.findings)) == (31, MOST_FINDINGS)


@pytest.mark.parametrize(("where", "field", "value"), MALFORMED)
def test_a_row_with_a_malformed_field_is_passed_over(where: str, field: str, value: object) -> None:
    """If it counted, the comparisons of later decisions would fail for every claimant."""
    row = Row("g", "a", revision=1, owner=Holder(Session("anna", "1")))
    written = json.loads(change("one", [row], []))
    (wrong,) = written["rows"]
    (wrong if where == "row" else wrong["owner"])[field] = value
    fold = folded([(0, json.dumps(written).encode())])
    assert (fold.rows, fold.passed_over) == ({}, 1)
    assert field in fold.findings[0][1] or "id" in fold.findings[0][1]
    assert fold.take(1, change("two", [row], [])) == "two"


@pytest.mark.parametrize("kind", ["change", "snapshot"])
def test_a_newer_version_is_reported(kind: str) -> None:
    """Nobody goes on without understanding what holds."""
    with pytest.raises(OwnershipFormat, match="format 99") as caught:
        folded([(0, b'{"format": 99, "kind": "%s"}' % kind.encode())])
    assert caught.value.place == "here"
