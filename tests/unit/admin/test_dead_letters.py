"""Dead letters: which are chosen, their status, the effect of a decision, and its output."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from coopconsume.admin.dead_letters.choice import Choice, steps, with_status
from coopconsume.admin.dead_letters.stored import Letter, open_letters
from coopconsume.admin.dead_letters.tables import letter_facts, letter_table
from coopconsume.admin.tables import cell
from coopconsume.admin.text import text_lines
from coopconsume.cli import main
from coopconsume.cli.dead_letters import (
    _whole,
    decision_lines,
)
from coopconsume.options import Options
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.runtime.decisions import Decision
from coopconsume.sinks import DeadLetterTable
from coopconsume.worker.report import DeadLetter

LETTER = Letter(
    topic="orders", topic_id="id", partition=0, offset=7, key=b"k\xff", value=b"v", headers=(),
    timestamp=5, attempts=3, reason="TimeoutError: the bank\nsleeps", trace="", rejected_at=1_000,
    commit="run-1",
)  # fmt: skip


def decision(offset: int, action="replay") -> Decision:
    """A decision on a record of the topic."""
    return Decision("orders", 0, offset, action)


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        (Choice(), True),
        (Choice(topic="orders", partition=0, first=7, last=7, key=b"k\xff", since=1_000), True),
        (Choice(topic="bills"), False),
        (Choice(partition=1), False),
        (Choice(first=8), False),
        (Choice(last=6), False),
        (Choice(key=b"k"), False),
        (Choice(reason="THE BANK"), True),
        (Choice(reason="the shop"), False),
        (Choice(since=1_001), False),
        (Choice(until=1_000), False),
        (Choice(until=1_001), True),
    ],
)
def test_a_choice_takes_what_all_of_it_fits(choice, taken):
    """What is not said does not matter; times of giving up include the first and not the last."""
    assert choice.takes(LETTER) == taken


def test_what_was_decided_is_left_out_unless_asked_for():
    """Settled letters show up with ``settled`` alone."""
    assert not Choice().takes(replace(LETTER, status="replayed"))
    assert Choice(settled=True).takes(replace(LETTER, status="discarded"))
    assert Choice().takes(replace(LETTER, status="replaying"))


def test_how_a_letter_stands():
    """The commit log says what is parked; a mark counts only for what is not."""
    letters = [
        replace(LETTER, offset=1),
        replace(LETTER, offset=2, decision="replay"),
        replace(LETTER, offset=3, decision="replay"),
        replace(LETTER, offset=4, decision="discard"),
        replace(LETTER, offset=5, commit="run-1", decision="replay"),
        replace(LETTER, offset=5, commit="run-2"),
        replace(LETTER, offset=6, commit="run-1"),
        replace(LETTER, offset=6, commit="run-2"),
        LETTER,
    ]
    parked = {("orders", 0, o) for o in (1, 2, 4, 5)}
    found = with_status(letters, parked, [decision(2), decision(4, "discard"), decision(7)])
    assert [(one.offset, one.status) for one in found] == [
        (1, "parked"), (2, "replaying"), (3, "replayed"), (4, "discarding"), (5, "replayed"),
        (5, "parked"), (6, "replayed"), (6, "open"), (7, "open"),
    ]  # fmt: skip
    plan = steps(found)
    assert [one.offset for one in plan.parked] == [1, 2, 4, 5]
    assert [one.offset for one in plan.passed] == [6, 7]


def test_a_clock_that_steps_back_hides_no_letter():
    """The letters come in the order of clocks; what was given up after a decision is the newest."""
    replayed = replace(LETTER, offset=1, commit="a-3", decision="replay", rejected_at=9_000)
    again = replace(LETTER, offset=1, commit="b-1", rejected_at=5_000)
    later = replace(LETTER, offset=2, commit="a-9", rejected_at=5_000)
    earlier = replace(LETTER, offset=2, commit="a-4", rejected_at=9_000)
    found = with_status([again, later, replayed, earlier], {("orders", 0, 2)}, [])
    assert {one.commit: one.status for one in found} == {
        "a-3": "replayed", "b-1": "open", "a-9": "parked", "a-4": "replayed",
    }  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from(["", "replay"]))),
    st.sets(st.integers(0, 3)),
    st.sets(st.integers(0, 5)),
)
def test_each_record_is_decided_on_once(written, parked, decided):
    """Of several letters of a record at most the newest is acted on; parked ones always are."""
    letters = [
        replace(LETTER, offset=offset, commit=f"run-{i}", decision=mark)
        for i, (offset, _, mark) in enumerate(written)
    ]
    places = {("orders", 0, offset) for offset in parked}
    plan = steps(with_status(letters, places, [decision(offset) for offset in decided]))
    acted = [one.offset for one in plan.letters]
    assert len(acted) == len(set(acted))
    assert {one.offset for one in plan.parked} == parked & {one.offset for one in letters}
    # What was given up after a decision is newer than what was decided on.
    newest = {one.offset: one for one in sorted(letters, key=lambda one: not one.decision)}
    assert all(newest[one.offset].id == one.id for one in plan.letters)
    assert all(not one.decision for one in plan.passed)


def test_letters_are_printed_one_per_line():
    """Key and reason are one short line whatever they hold."""
    header, line = text_lines([letter_table([replace(LETTER, status="parked")])])
    names = ["RECORD", "KEY", "ATTEMPTS", "GIVEN", "UP", "STATUS", "REASON", "DECIDED"]
    assert header.split() == names
    assert "orders-0@7" in line
    assert r"k\xff" in line
    assert "1970-01-01 00:00:01 UTC" in line
    assert "TimeoutError: the bank sleeps" in line


def test_the_facts_of_a_letter_have_its_headers_and_the_size_of_its_value():
    """Its value and its trace may be long, and stand for themselves."""
    letter = replace(LETTER, value=b"12", headers=(("h", b"\xff"), ("n", None)), timestamp=2**62)
    facts = {str(name): cell(value) for name, value in letter_facts(letter).rows}
    assert (facts["value"], facts["header h"], facts["header n"]) == ("2 bytes", r"\xff", "-")
    assert facts["written"] == f"{2**62} ms since 1970"
    assert facts["given up"] == "1970-01-01 00:00:01 UTC"


@pytest.mark.parametrize(("executed", "words"), [(False, "--execute"), (True, "1 parked, 1 pas")])
def test_a_dry_run_says_that_nothing_was_done(executed, words):
    """Parked letters and those that have passed are counted separately."""
    plan = steps([replace(LETTER, status="parked"), replace(LETTER, offset=9)])
    lines = decision_lines("replay", plan, executed=executed)
    assert "retried" in lines[0]
    assert "written again" in lines[1]
    assert words in lines[-1]
    assert ("would be" in lines[0]) is not executed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "g", "--offset", "9-3"], "17-25"),
        (["list", "g", "--since", "yesterday"], "2026-11-21T10:00:00"),
        (["list", "g"], "commitTable"),
        (["list", "g", "--commit-table", "t", "--bootstrap-servers", "a:1"], "deadLetter"),
    ],
)
def test_wrong_usage_is_refused(arguments, words):
    """A wrong option is exit code 2 and one sentence that says what to do."""
    result = CliRunner().invoke(main, ["dead-letters", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr


def test_letters_are_read_back_from_a_table(tmp_path, caplog):
    """As they were written, if their commit counts; without the bulk where it is not needed.

    A job without dead letters has no table; a mistyped path is not the same.
    """
    path = str(tmp_path / "dead")
    options = Options.parse(
        {"kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": "commits"}
    )
    store = open_letters(path, options)
    assert store.read(lambda _: True, whole=True) == []
    assert f"no table of dead letters at {path}: check the path" in caplog.text
    letter = DeadLetter("t", 0, 1, b"k", b"v", 5, (("a", None), ("a", b"1")), 2, "why", "trace")
    DeadLetterTable(path).append([letter], {"t": "id"}, "c-1")
    assert store.read(lambda _: False, whole=True) == []
    (found,) = store.read(lambda commit: commit == "c-1", whole=True)
    assert (found.topic_id, found.commit, found.decision) == ("id", "c-1", "")
    assert (found.key, found.value, found.headers) == (letter.key, letter.value, letter.headers)
    assert (found.timestamp, found.attempts) == (5, 2)
    assert (found.reason, found.trace) == ("why", "trace")
    (lean,) = store.read(lambda _: True, whole=False)
    assert lean == replace(found, value=None, headers=(), trace="")
    earlier = ["decision", "decided_at", "_topic", "_topic_id", "_partition", "_offset", "_commit"]
    row = ["replay", datetime(2026, 1, 1, tzinfo=UTC), "t", "id", 0, 1, "c-0"]
    marks = pa.Table.from_pylist([dict(zip(earlier, row, strict=True))])
    write_deltalake(f"{path}_decisions", marks.cast(_marks_of_earlier_versions(marks.schema)))
    by = DecidedBy("alice@db1", "no such order", 1_790_000_000_000)
    store.mark([found], "discard", by)
    (marked,) = store.read(lambda _: True, whole=False)
    assert (marked.decision, marked.by) == ("discard", by)
    (facts,) = (str(value) for name, value in letter_facts(marked).rows if name == "decided")
    assert facts == "by alice@db1 at 2026-09-21 14:13:20 UTC: no such order"
    assert f"decision: discard, {facts}" in _whole(marked)


def _marks_of_earlier_versions(schema: pa.Schema) -> pa.Schema:
    """Without who decided and why; the type of partitions is that of the origin of rows."""
    return schema.set(schema.get_field_index("_partition"), pa.field("_partition", pa.int32()))


@pytest.mark.parametrize(
    ("millis", "read", "shown"),
    [
        (1_700_000_000_000, 1_700_000_000_000, "2023-11-14 22:13:20 UTC"),
        (-1, -1, "1969-12-31 23:59:59 UTC"),
        (1_700_000_000_000_000, 1_700_000_000_000_000, "1700000000000000 ms since 1970"),
        (1_700_000_000_000_000_000, 0, "1970-01-01 00:00:00 UTC"),
    ],
)
def test_a_record_may_have_any_timestamp(tmp_path, millis, read, shown):
    """A producer may have sent microseconds: the letters of all records are read and shown."""
    path = str(tmp_path / "dead")
    options = Options.parse(
        {"kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": "commits"}
    )
    letter = DeadLetter("t", 0, 1, b"k", b"v", millis, (), 2, "why", "trace")
    DeadLetterTable(path).append([letter], {"t": "id"}, "c-1")
    (found,) = open_letters(path, options).read(lambda _: True, whole=True)
    assert found.timestamp == read
    assert f"written: {shown}, topic id id" in _whole(found)
