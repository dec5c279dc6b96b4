"""The state per key without Spark: changelog, local stores, and what a slot shows its handlers."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import math
import os
import random
import sqlite3
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from assignors import MAX_KEY_HASH, KeyRange, key_hash
from commits import OffsetRanges
from commits.errors import FencedMember
from commits.ids import CommitIds
from coopconsume import Record, State
from coopconsume.errors import (
    OutputNotWritten,
    StateAhead,
    StateNeedsKey,
    StateNotReadable,
    TableUnusable,
)
from coopconsume.runtime.commit.deliveries import Deliveries
from coopconsume.runtime.commit.parcels import Parcel
from coopconsume.runtime.commit.state_log import StateLog
from coopconsume.sinks.base import Outputs
from coopconsume.state.changelog import Changelog
from coopconsume.state.rows import Origin
from coopconsume.state.schema import StateSchema
from coopconsume.state.slot_state import SlotState, StateSpec
from coopconsume.state.store import LocalStore
from coopconsume.state.table import RETENTION
from coopconsume.worker.channel.messages import decode_report, encode_report
from coopconsume.worker.channel.wire import Identity
from coopconsume.worker.report import SlotReport
from tests.unit.worker.slot_harness import prepared

LONG = StateSchema(pa.int64())
ORIGIN = Origin("id-of-t", 0)
WHOLE = (0, MAX_KEY_HASH)


def change(key, offset, value, commit, *, expires=None, schema=LONG):
    """One row of the changelog."""
    row = {
        "key": key, "value": value, "expires_at": expires, "_topic": "t", "_topic_id": "id-of-t",
        "_partition": 0, "_offset": offset, "_key_hash": key_hash(key), "_commit": commit,
    }  # fmt: skip
    return pa.Table.from_pylist([row], schema.changelog)


def rows(*changes):
    """Several rows as one table."""
    return pa.concat_tables(changes)


def store_of(changelog):
    """The local store of the partition, beside the changelog."""
    return LocalStore(changelog, ORIGIN, str(Path(changelog.path).parent / "stores"))


def everybody(_commit):
    """All commits count."""
    return True


class World:
    """Writers that crash between a change and its commit, and the state that counts."""

    def __init__(self, path, seed, *, history):
        self.has_history = history
        self.random = random.Random(seed)
        self.changelog = Changelog(str(path), LONG)
        self.origin = ORIGIN
        self.keys = [b"key-%d" % i for i in range(6)]
        self.state: dict[bytes, int | None] = {}
        self.refused: set[str] = set()
        self.offset = self.commits = 0
        self.snapshot_at = (-1, 0)
        #: All changes that count: the commit, the record, the key and the value.
        self.history: list[tuple[int, int, bytes, int | None]] = []
        #: From these on every time can be read: commits and offsets of the last two snapshots.
        self.kept = [(0, 0)]

    def write(self):
        """Some records change the state; the commit counts, or its writer crashes before it."""
        some = [self.random.choice(self.keys) for _ in range(self.random.randint(1, 6))]
        values = [self.random.choice((None, self.random.randrange(1000))) for _ in some]
        while True:
            self.commits += 1
            commit = f"c{self.commits}"
            self.changelog.append(
                rows(*(change(k, self.offset + i, v, commit)
                       for i, (k, v) in enumerate(zip(some, values, strict=True))))
            )  # fmt: skip
            if self.random.random() < 0.7:
                break
            self.refused.add(commit)
            values = [None if v is None else v + 1 for v in values]
        done = zip(some, values, strict=True)
        self.history += [(self.commits, self.offset + i, k, v) for i, (k, v) in enumerate(done)]
        self.offset += len(some)
        self.state |= dict(zip(some, values, strict=True))

    def snapshot(self):
        """The partition gets a snapshot, and what it or the one before has is removed."""
        version = self.changelog.version
        if version <= self.snapshot_at[0]:
            return
        self.changelog.write_snapshot(
            self.origin, version, lambda one: one not in self.refused, commits=self.commits,
            keeps_last=self.has_history,
        )  # fmt: skip
        at = version, self.offset
        self.kept = [*self.kept, (self.commits, self.offset)][-2 if self.has_history else -1 :]
        complete, below = self.snapshot_at if self.has_history else at
        if complete >= 0:
            self.changelog.trim(self.origin, below, complete)
        self.snapshot_at = at

    def look(self):
        """A slot with some key ranges sees exactly what counts."""
        store = store_of(self.changelog)
        pieces = KeyRange().split(self.random.randint(1, 5))
        mine = self.random.sample(pieces, self.random.randint(1, len(pieces)))
        version = self.changelog.version
        counted = CommitIds(self.changelog.commits(version) - self.refused)
        if version >= 0:
            ranges = [(r.first, r.last) for r in mine]
            store.bring_up_to_date(ranges, version, counted.__contains__)
            for key in self.keys:
                if any(r.contains(key_hash(key)) for r in mine):
                    assert store.get(key) == self.state.get(key), key
        if self.random.random() < 0.2:
            store.file.unlink()
        store.close()

    def look_back(self):
        """The state of an earlier commit or offset is read as it was, or refused."""
        if not self.history:
            return
        commit, offset, *_ = self.random.choice(self.history)
        ids = {f"c{one}" for one, *_ in self.history}
        before = {f"c{one}" for one, *_ in self.history if one <= commit}
        log = self.changelog
        for is_kept, so_far, known, place in (
            (commit >= self.kept[0][0], lambda one: one[0] <= commit, before, {"commits": commit}),
            (offset >= self.kept[0][1], lambda one: one[1] < offset, ids, {"offset": offset}),
        ):
            then = {one[2]: one[3] for one in self.history if so_far(one)}
            try:
                rows = log.rows_before(ORIGIN, log.version, known.__contains__, **place)
            except StateNotReadable:
                assert not is_kept
            else:
                columns = (rows.column(name).to_pylist() for name in ("key", "value"))
                found = dict(zip(*columns, strict=True))
                assert {key: found.get(key) for key in then} == then
                assert found.keys() <= then.keys()


@pytest.mark.parametrize("seed", range(12))
def test_a_store_has_what_counts(tmp_path, seed):
    """Whatever crashed, was removed or lost: each key has the value of its last counted change."""
    world = World(tmp_path / "state", seed, history=seed % 2 == 0)
    steps = [world.write] * 5 + [world.look] * 4 + [world.snapshot, world.look_back]
    for _ in range(30):
        world.random.choice(steps)()
    world.look()


def test_a_store_of_an_older_version_is_restored_after_rows_were_removed(tmp_path):
    """It would miss what it has not seen and nobody can see any more."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(change(b"a", 0, 1, "c1"))
    store = store_of(changelog)
    store.bring_up_to_date([WHOLE], changelog.version, everybody)
    changelog.append(change(b"a", 1, 2, "c2"))
    complete = changelog.version
    assert changelog.write_snapshot(ORIGIN, complete, lambda _one: True) == 1
    changelog.trim(ORIGIN, 2, complete)
    changelog.append(change(b"b", 2, 7, "c3"))
    assert not changelog.is_complete(ORIGIN, complete - 1, changelog.version)
    assert changelog.is_complete(ORIGIN, complete, changelog.version - 1)
    assert changelog.is_complete(Origin("another", 0), complete - 1, changelog.version)
    store.bring_up_to_date([WHOLE], changelog.version, everybody)
    assert (store.get(b"a"), store.get(b"b")) == (2, 7)
    assert store.restored[0] == 2
    store.close()


def test_old_entries_of_the_changelog_go_and_an_older_store_is_restored(tmp_path, monkeypatch):
    """Delta removes them after each checkpoint, once they are older than the table says."""
    monkeypatch.setitem(RETENTION, "delta.logRetentionDuration", "interval 0 seconds")
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(change(b"a", 0, 1, "c1"))
    store = store_of(changelog)
    store.bring_up_to_date([WHOLE], changelog.version, everybody)
    for offset in range(1, 205):
        changelog.append(change(b"a", offset, offset, f"c{offset}"))
    assert len([*(tmp_path / "state/changelog/_delta_log").glob("*.json")]) < 120
    assert not changelog.is_complete(ORIGIN, 1, changelog.version)
    store.bring_up_to_date([WHOLE], changelog.version, everybody)
    assert store.get(b"a") == 204
    store.close()


def test_a_damaged_store_is_made_again(tmp_path, caplog):
    """It is a cache."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(change(b"a", 0, 1, "c1"))
    store = store_of(changelog)
    store.close()
    store.file.write_bytes(b"nonsense" * 1000)
    store = store_of(changelog)
    assert "damaged" in caplog.text
    store.bring_up_to_date([WHOLE], changelog.version, everybody)
    assert store.get(b"a") == 1
    store.close()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    """Values are unpickled."""
    folder = tmp_path / "stores"
    folder.mkdir()
    folder.chmod(stat.S_IRWXU | stat.S_IRWXO)
    with pytest.raises(StateNotReadable, match="others may write"):
        store_of(Changelog(str(tmp_path / "state"), LONG))


def test_a_state_of_another_schema_is_refused(tmp_path):
    """Before anything is written."""
    Changelog(str(tmp_path / "state"), LONG).append(change(b"a", 0, 1, "c1"))
    with pytest.raises(TableUnusable, match="values are int64, not string"):
        Changelog(str(tmp_path / "state"), StateSchema(pa.string()))
    with pytest.raises(TableUnusable, match="no state here"):
        Changelog(str(tmp_path / "nothing"))


def spec(changelog, **more):
    """What a slot gets that has everything."""
    version = changelog.version
    folder = str(Path(changelog.path).parent / "stores")
    ranges = {0: {("t", 0): (WHOLE,)}}
    ids = {"t": ORIGIN.topic_id}
    found = StateSpec(
        changelog.path, folder, changelog.schema, ids, version, version,
        CommitIds(changelog.commits(version)), ranges=ranges,
    )  # fmt: skip
    return replace(found, **more)


def test_a_state_that_a_slot_cannot_use_ends_its_worker_with_the_reason(tmp_path, monkeypatch):
    """No record is charged, and nothing is in doubt: the job shows the reason, or ends with it."""
    reports = []
    monkeypatch.setattr(
        "coopconsume.worker.slot.end_worker_with", lambda report, *_: reports.append(report)
    )
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(change(b"a", 0, 1, "c1"))
    slot, batches = prepared(lambda _: None, [(0, 0, b"a")])
    slot._spec = replace(slot._spec, state=spec(changelog, schema=StateSchema(pa.string())))
    slot.first_attempt(3, iter(batches))
    (end,) = [report.end for report in reports]
    assert (end.crashed, end.culprits, end.suspects) == (True, [], [])
    assert end.error.startswith("TableUnusable: state at")


def record(key, offset=0, value=b""):
    """A record of the topic."""
    return Record("t", 0, offset, key, value, 0)


def test_a_slot_shows_what_is_written_and_keeps_only_what_is_decided(tmp_path):
    """Changes whose commits may yet fail are shown, and are in no store."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(change(b"a", 0, 1, "c1"))
    decided = changelog.version
    changelog.append(change(b"a", 1, 2, "c2"))
    changelog.append(change(b"a", 2, 3, "somebody's"))
    slot = SlotState(spec(changelog, decided=decided, counted=CommitIds(["c1", "c2"])), 0)
    assert slot.of(record(b"a")).get() == 2
    slot.close()
    # The process ends before c2 is committed.
    slot = SlotState(spec(changelog, counted=CommitIds(["c1"])), 0)
    assert slot.of(record(b"a")).get() == 1
    slot.close()


def test_a_record_without_a_key_has_no_state(tmp_path):
    """It fails, with the reason."""
    slot = SlotState(spec(Changelog(str(tmp_path / "state"), LONG)), 0)
    with pytest.raises(StateNeedsKey, match=r"t-0@4 has no key"):
        slot.of(record(None, 4))
    slot.close()


def test_a_handler_that_yields_its_rows_changes_the_state(tmp_path):
    """It runs to its end before the change is taken, plain or as a coroutine."""

    def handler(found, state):
        yield {"n": found.offset}
        state.set(state.get(0) + 1)

    async def of_a_coroutine(found, state):
        return handler(found, state)

    slot = SlotState(spec(Changelog(str(tmp_path / "state"), LONG)), 0)
    changes = [
        slot.wrapped(handler)(record(b"a", 4)),
        asyncio.run(slot.wrapped(of_a_coroutine)(record(b"a", 4))),
    ]
    assert [type(made) for made in changes] == [State] * 2
    found = [(made.answer, made.key, made.left()[0]) for made in changes]
    assert found == [([{"n": 4}], b"a", 1)] * 2
    slot.close()


def test_a_changelog_that_cannot_be_created_is_one_error(tmp_path):
    """It names the state and the reason once."""
    (tmp_path / "file").write_text("no folder")
    changelog = Changelog(str(tmp_path / "file" / "state"), LONG)
    with pytest.raises(OutputNotWritten, match=r"written to .*Not a directory") as found:
        changelog.append(change(b"a", 0, 1, "c1"))
    assert str(found.value).count("could not be written") == 1


def test_a_handler_that_returns_its_state_fails_with_the_remedy(tmp_path):
    """Whether it has changed it or not."""
    slot = SlotState(spec(Changelog(str(tmp_path / "state"), LONG)), 0)

    def handler(found, state):
        if found.offset:
            state.set(1)
        return state

    for offset in (0, 1):
        with pytest.raises(TypeError, match=r"returned its state: call state\.set\(\)"):
            slot.wrapped(handler)(record(b"a", offset))
    slot.close()


def test_the_values_of_many_keys_are_read_at_once(tmp_path):
    """Those that a slot has seen stay as it has left them; a damaged store is read per record."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    keys = [b"%d" % n for n in range(1_200)]
    changelog.append(rows(*(change(key, n, n, "c1") for n, key in enumerate(keys))))
    slot = SlotState(spec(changelog), 0)
    slot.of(record(keys[5])).pass_on(-5, None)
    asked = []
    find = LocalStore.find
    slot._stores["t", 0].find = lambda key: asked.append(key) or find(slot._stores["t", 0], key)
    slot.prefetch(("t", 0), pa.array([*keys, None, b"unknown", keys[0]]))
    values = [slot.of(record(key)).get() for key in [*keys, b"unknown"]]
    assert values == [n if n != 5 else -5 for n in range(1_200)] + [None]
    assert not asked
    slot._seen.clear()
    slot._stores["t", 0]._connection.execute("DROP TABLE state")
    slot.prefetch(("t", 0), pa.array(keys))
    assert slot.of(record(keys[7])).get() == 7
    assert asked == [keys[7]]
    slot.close()


def test_an_empty_store_is_asked_for_no_key(tmp_path):
    """Values that records of the batch leave are seen, and those of commits not decided yet."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.create()
    empty = changelog.version
    changelog.append(rows(change(b"b", 0, 7, "c1")))
    slot = SlotState(spec(changelog, decided=empty), 0)
    asked = []
    slot._stores["t", 0].find = asked.append
    slot._stores["t", 0].find_all = asked.append
    slot.prefetch(("t", 0), pa.array([b"a", b"b"]))
    assert [slot.of(record(key)).get() for key in (b"a", b"b")] == [None, 7]
    slot.of(record(b"a")).pass_on(1, None)
    assert slot.of(record(b"a")).get() == 1
    assert not asked
    slot.close()


def test_values_of_all_kinds_come_back_as_they_were(tmp_path):
    """Also after a restore: numbers, texts, bytes, columns, lists and times."""
    now = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)
    kinds = [
        (pa.float64(), float("inf")), (pa.binary(), b"p\x00b"),
        (pa.string(), "ä"), (pa.float64(), 1.0), (pa.bool_(), False),
        (pa.timestamp("us", "UTC"), now), (pa.list_(pa.int32()), [1, None]),
        (pa.struct([("n", pa.int64()), ("s", pa.string())]), {"n": 1, "s": None}),
        (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": None}),
        (pa.list_(pa.map_(pa.string(), pa.struct([("m", pa.map_(pa.int32(), pa.string()))]))),
         [{"a": {"m": {1: "x"}}, "b": {"m": {}}, "c": None}, None]),
    ]  # fmt: skip
    for i, (kind, value) in enumerate(kinds):
        schema = StateSchema(kind)
        changelog = Changelog(str(tmp_path / str(i)), schema)
        changelog.append(change(b"a", 0, value, "c1", schema=schema))
        slot = SlotState(spec(changelog), 0)
        found = slot.of(record(b"a")).get()
        assert (found, type(found)) == (value, type(value))
        slot.close()
        # Before its commit is decided, and without a local store.
        slot = SlotState(spec(changelog, decided=-1), 0)
        assert slot.of(record(b"a")).get() == value
        slot.close()
        assert changelog.value(ORIGIN, b"a", everybody) == value


def test_a_value_is_gone_after_its_time(tmp_path):
    """In a store, and in a batch."""
    past, future = (dt.datetime.now(dt.UTC) + dt.timedelta(days=d) for d in (-1, 1))
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(
        rows(change(b"a", 0, 1, "c", expires=past), change(b"b", 1, 2, "c", expires=future))
    )
    slot = SlotState(spec(changelog, lifetime=60.0), 0)
    assert slot.of(record(b"a")).get("none") == "none"
    state = slot.of(record(b"b"))
    assert state.get() == 2
    state.set(3)
    value, expires = state.left()
    assert dt.timedelta(seconds=58) < expires - dt.datetime.now(dt.UTC) < future - past
    state.pass_on(value, past)
    assert not slot.of(record(b"b")).exists
    slot.close()


def test_a_value_that_stays_takes_the_place_of_one_that_does_not(tmp_path):
    """The time of the earlier value does not count for it."""
    slot = SlotState(spec(Changelog(str(tmp_path / "state"), LONG)), 0)
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    slot.of(record(b"a")).pass_on(1, past)
    slot.of(record(b"b")).pass_on(1, past)
    slot.of(record(b"a")).pass_on(2, None)
    assert [slot.of(record(key)).get() for key in (b"a", b"b")] == [2, None]
    slot.close()


def test_a_state_can_be_read_set_and_removed():
    """What a handler does with a value does not change what others see."""
    state = State({"n": 1})
    state.get()["n"] = 2
    assert state.get() == {"n": 1}
    assert not state.is_changed
    state.clear()
    assert not state.exists
    assert state.is_changed
    assert state.left() == (None, None)
    with pytest.raises(ValueError, match="call set"):
        state.ttl("1 day")
    given = {"n": 3}
    state.set(given)
    given["n"] = 4
    assert state.get() == {"n": 3}
    with pytest.raises(ValueError, match="above 0"):
        state.ttl(0)


def parcel(slot, first):
    """A parcel of one slot."""
    found = Parcel(slots={slot}, changes=[((("t", 0),), b"")])
    found.failures = first
    return found


def test_changes_are_written_strictly_in_their_order():
    """One that failed goes before all later ones."""
    deliveries = Deliveries("outputs", 5.0, in_order=True)
    one, two = parcel(0, 0), parcel(1, 0)
    deliveries.add(one)
    assert deliveries.begin(0.0) is one
    deliveries.add(two)
    deliveries.failed("no", 0.0, is_final=False)
    assert deliveries.concerns(0)
    assert deliveries.concerns(1)
    assert deliveries.begin(0.5) is None
    assert deliveries.begin(2.0) is one
    deliveries.delivered()
    assert not deliveries.concerns(0)


def test_a_rewritten_file_brings_no_removed_key_back(tmp_path):
    """The change that removed the key is in a file that the store has seen."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(rows(change(b"other", 0, 1, "c1"), change(b"a", 5, 1, "c1")))
    changelog.append(change(b"a", 9, None, "c2"))
    store = store_of(changelog)
    have = changelog.version
    store.bring_up_to_date([WHOLE], have, everybody)
    changelog.trim(ORIGIN, 3, have)
    store.bring_up_to_date([WHOLE], changelog.version, everybody)
    assert store.restored[0] == 0
    assert store.get(b"a") is None
    store.close()


def test_a_progressive_report_has_changes():
    """They reach the driver with the offsets that are done."""
    report = SlotReport(3, 1, seq=1, changes=b"changes", outputs=b"rows")
    found = decode_report(encode_report(report), Identity("run", 3, 1, 7))
    assert (found.changes, found.outputs) == (b"changes", b"rows")


def test_changes_and_rows_of_a_parcel_are_divided_together():
    """What the limit on ranges leaves out waits with its changes."""
    schema = pa.schema([("_part", pa.int32()), ("_offset", pa.int64()), ("_key_hash", pa.int64())])

    def packed(*offsets):
        table = pa.table([[0] * len(offsets), offsets, [7] * len(offsets)], schema=schema)
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, schema) as writer:
            writer.write_table(table)
        return out.getvalue().to_pybytes()

    names = (("t", 0),)
    both = Parcel(
        offsets={("t", 0): OffsetRanges([(1, 3)])}, rows=[(names, packed(1, 3))],
        changes=[(names, packed(1, 2, 3))], slots={4},
    )  # fmt: skip
    assert [one.offset for one in both.records()["t", 0]] == [1, 3, 2]
    now, later = both.divided({("t", 0): OffsetRanges([(2, 3)])})
    assert (now.slots, later.slots) == ({4}, {4})
    assert [
        pa.ipc.open_stream(data).read_all().column("_offset").to_pylist()
        for _, data in (*now.changes, *later.changes, *now.rows, *later.rows)
    ] == [[1], [2, 3], [1], [3]]


def test_changes_before_those_that_are_not_decided_do_not_come_again(tmp_path):
    """A trim by any member rewrites files, while a commit has no answer yet."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(rows(change(b"a", 0, 1, "c1"), change(b"a", 1, 2, "c1")))
    changelog.append(change(b"a", 2, 3, "c2"))
    decided = changelog.version
    changelog.write_snapshot(ORIGIN, decided, everybody)
    changelog.append(change(b"b", 3, 4, "c3"))
    changelog.trim(ORIGIN, 1, decided)
    slot = SlotState(spec(changelog, decided=decided), 0)
    assert (slot.of(record(b"a")).get(), slot.of(record(b"b")).get()) == (3, 4)
    slot.close()


def test_a_slot_waits_if_changes_that_it_needs_are_in_a_snapshot_alone(tmp_path):
    """They are neither in the store nor in the changelog; once more is decided, it has them."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(change(b"b", 0, 1, "c0"))
    decided = changelog.version
    changelog.append(change(b"a", 1, 2, "c1"))
    complete = changelog.version
    changelog.write_snapshot(ORIGIN, complete, everybody)
    changelog.trim(ORIGIN, 2, complete)
    with pytest.raises(StateNotReadable, match="in a snapshot by now"):
        SlotState(spec(changelog, decided=decided), 0)
    slot = SlotState(spec(changelog), 0)
    assert (slot.of(record(b"a")).get(), slot.of(record(b"b")).get()) == (2, 1)
    slot.close()


def test_a_value_that_a_slot_has_seen_is_gone_at_its_time(tmp_path):
    """Also within a batch, in which a slot reads each key once."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    changelog.append(change(b"a", 0, 1, "c1", expires=until))
    slot = SlotState(spec(changelog), 0)
    if (found := slot.of(record(b"a")).get()) is not None:
        assert found == 1
    while dt.datetime.now(dt.UTC) <= until:
        time.sleep(0.01)
    assert slot.of(record(b"a")).get() is None
    slot.close()


def test_not_a_number_is_a_value(tmp_path):
    """SQLite would store it as null."""
    schema = StateSchema(pa.float64())
    changelog = Changelog(str(tmp_path / "state"), schema)
    changelog.append(change(b"a", 0, float("nan"), "c1", schema=schema))
    slot = SlotState(spec(changelog), 0)
    assert math.isnan(slot.of(record(b"a")).get())
    slot.close()


def test_a_store_that_is_damaged_while_it_is_read_costs_no_record(tmp_path, caplog):
    """The value is read from the changelog."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(change(b"a", 0, 1, "c1"))
    slot = SlotState(spec(changelog), 0)
    slot.close()
    with pytest.raises(sqlite3.DatabaseError):
        slot._stores["t", 0].get(b"a")
    assert slot.of(record(b"a")).get() == 1
    assert "cannot be read" in caplog.text


def test_a_state_belongs_to_one_group(tmp_path):
    """Two groups would take each other's changes for their own."""
    mine = Changelog(str(tmp_path / "state"), LONG)
    mine.belong_to("cluster/one")
    mine.append(change(b"a", 0, 1, "c1"))
    mine.belong_to("cluster/one")
    with pytest.raises(TableUnusable, match="belongs to the group cluster/one"):
        Changelog(str(tmp_path / "state")).belong_to("cluster/two")


def test_an_older_snapshot_does_not_take_the_place_of_a_newer_one(tmp_path):
    """Its writer was frozen while another member made one."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(change(b"a", 0, 1, "c1"))
    old = changelog.version
    changelog.append(change(b"a", 1, 2, "c2"))
    changelog.write_snapshot(ORIGIN, changelog.version, everybody)
    changelog.write_snapshot(ORIGIN, old, everybody)
    assert changelog.snapshots.rows(ORIGIN, [WHOLE]).column("value").to_pylist() == [2]


class Epoch:
    """What `StateLog` asks an epoch."""

    def __init__(self, counted=()):
        self.counted = CommitIds(counted)
        self.topic_ids = {"t": ORIGIN.topic_id}
        self.options = SimpleNamespace(group_id="g", ordering_key=None)
        self.cluster = SimpleNamespace(cluster_id="c")
        self.store = SimpleNamespace(
            counted_commits=lambda _group: self.counted, settings=dict,
            has_counted=lambda _group, commit_id: commit_id in self.counted,
            set_setting=lambda *_: None,
        )  # fmt: skip
        self.begin_with_state = Changelog.create
        self.check = lambda: None
        self.owned = {
            ("t", 0): SimpleNamespace(
                ranges=(KeyRange(),), stable=0, committed=OffsetRanges([(0, 100)]), owns_first=True
            )
        }

    def answer(self, log, commit_id, *, counts=True):
        """The commit log answers a commit."""
        if counts:
            self.counted.add(commit_id)
        log.committed(self, commit_id)


def outputs(key, offset, value, commit):
    """A change as slots report it."""
    schema = pa.schema([*LONG.rows, ("_part", pa.int32()), ("_offset", pa.int64()),
                        ("_key_hash", pa.int64())])  # fmt: skip
    row = {"key": key, "value": value, "expires_at": None, "_part": 0, "_offset": offset,
           "_key_hash": key_hash(key)}  # fmt: skip
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_table(pa.Table.from_pylist([row], schema))
    data = out.getvalue().to_pybytes()
    return Outputs([((("t", 0),), data)], {}, {"t": ORIGIN.topic_id}, commit)


def seen(log, folder):
    """The value of key a that a slot sees next."""
    found = log.spec({0: {("t", 0): (WHOLE,)}})
    slot = SlotState(replace(found, folder=str(folder)), 0)
    value = slot.of(record(b"a")).get()
    slot.close()
    return value


def test_slots_get_the_whole_path_of_a_state(tmp_path, monkeypatch):
    """Their workers have another current folder than the program; a URI is left as it is."""
    monkeypatch.chdir(tmp_path)
    uri = (tmp_path / "others").as_uri()
    for given, whole in (("./totals", str(tmp_path / "totals")), (uri, uri)):
        log = StateLog(given, LONG)
        assert (log.path, log.spec({}).path) == (given, whole)


def test_a_change_that_comes_late_never_counts(tmp_path):
    """Of a thread or a process whose epoch is over, also if it lands after the next has begun."""
    log, first = StateLog(str(tmp_path / "state"), LONG), Epoch()
    log.begin(first)
    log.append(first, outputs(b"a", 0, 1, "r-0"))
    assert seen(log, tmp_path / "stores") == 1
    first.answer(log, "r-0")
    assert seen(log, tmp_path / "stores") == 1
    log.begin(second := Epoch(["r-0"]))
    with pytest.raises(OutputNotWritten, match="the epoch is over"):
        log.append(first, outputs(b"a", 1, 100, "r-1"))
    Changelog(str(tmp_path / "state")).append(change(b"a", 1, 100, "somebody-0"))
    log.append(second, outputs(b"a", 1, 2, "r-2"))
    assert seen(log, tmp_path / "stores") == 2
    second.answer(log, "r-2")
    first.answer(log, "r-2", counts=False)  # late, and nothing that matters
    log._move_on()
    assert seen(log, tmp_path / "stores") == 2
    log.close()


def test_changes_of_an_earlier_owner_count_once_its_key_ranges_have_come(tmp_path):
    """Those that its commits count, and those alone."""
    log, epoch = StateLog(str(tmp_path / "state"), LONG), Epoch()
    log.begin(epoch)
    theirs = Changelog(str(tmp_path / "state"), LONG)
    theirs.append(change(b"a", 0, 1, "theirs-0"))
    theirs.append(change(b"a", 1, 2, "theirs-1"))
    log.extend(Epoch(["theirs-0"]))
    assert seen(log, tmp_path / "stores") == 1
    log.append(epoch, outputs(b"a", 1, 3, "r-0"))
    assert seen(log, tmp_path / "stores") == 3
    back = Epoch(["theirs-0"])
    back.owned["t", 0].committed = OffsetRanges()
    with pytest.raises(StateAhead, match="t-0@0"):
        log.extend(back)
    log.close()


def test_a_change_that_is_being_written_as_key_ranges_come_is_not_passed_over(
    tmp_path, monkeypatch
):
    """A local store that took it for undecided would never look at it again."""
    log, epoch = StateLog(str(tmp_path / "state"), LONG), Epoch()
    log.begin(epoch)
    append = log._changelog.append

    def slowly(table):
        answer = append(table)
        log.extend(Epoch())
        assert seen(log, tmp_path / "stores") is None
        return answer

    monkeypatch.setattr(log._changelog, "append", slowly)
    log.append(epoch, outputs(b"a", 0, 1, "r-0"))
    assert seen(log, tmp_path / "stores") == 1
    epoch.answer(log, "r-0")
    assert seen(log, tmp_path / "stores") == 1
    log.close()


def test_a_state_that_is_ahead_of_the_offsets_is_refused(tmp_path):
    """Also if the change is in a snapshot alone."""
    log, first = StateLog(str(tmp_path / "state"), LONG), Epoch()
    log.begin(first)
    log.append(first, outputs(b"a", 7, 1, "r-0"))
    back = Epoch(["r-0"])
    back.owned["t", 0].committed = OffsetRanges()
    with pytest.raises(StateAhead, match="t-0@7"):
        log.begin(back)
    changelog = Changelog(str(tmp_path / "state"))
    changelog.write_snapshot(ORIGIN, changelog.version, everybody)
    changelog.trim(ORIGIN, 8, changelog.version)
    with pytest.raises(StateAhead, match="t-0@7"):
        log.begin(back)
    log.close()


def test_a_commit_that_changed_nothing_does_not_count(tmp_path):
    """Its records were done before, or deleted: a restart would not count its changes either."""
    log, epoch = StateLog(str(tmp_path / "state"), LONG), Epoch()
    log.begin(epoch)
    log.append(epoch, outputs(b"a", 0, 1, "r-0"))
    epoch.answer(log, "r-0")
    log.append(epoch, outputs(b"a", 1, 2, "r-1"))
    epoch.answer(log, "r-1", counts=False)
    assert seen(log, tmp_path / "stores") == 1
    log.append(epoch, outputs(b"a", 2, 3, "r-2"))
    assert seen(log, tmp_path / "stores") == 3
    epoch.answer(log, "r-2")
    assert seen(log, tmp_path / "stores") == 3
    log.close()


@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_member_that_is_no_owner_any_more_makes_no_snapshot_without_a_warning(
    tmp_path, monkeypatch, caplog, is_fenced
):
    """Any other failure is logged, and the next look may succeed."""
    monkeypatch.setattr("coopconsume.runtime.commit.state_log._LOOK_EVERY", 0.001)
    log, over, looks = StateLog(str(tmp_path / "state"), LONG), threading.Event(), []

    def look(*_of):
        looks.append(1)
        if len(looks) == 2:
            over.set()
        raise FencedMember("g", "m", None, None, "left") if is_fenced else OSError("disk")

    monkeypatch.setattr(log, "_snapshot_if_due", look)
    log._keep(Epoch(), over)
    assert (len(looks), len(caplog.messages)) == ((1, 0) if is_fenced else (2, 2))


def test_a_store_that_another_slot_is_just_making_is_waited_for(tmp_path):
    """SQLite itself does not wait as it sets the journal mode."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    first = store_of(changelog)
    first.close()
    first.file.unlink()
    with contextlib.closing(sqlite3.connect(first.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool:
            opens = pool.submit(store_of, changelog)
            with pytest.raises(TimeoutError):
                opens.result(0.2)
            other.execute("COMMIT")
            opens.result(60).close()


def test_files_that_no_slot_has_used_for_a_week_are_deleted(tmp_path):
    """When a new one is made; nothing else in the folder is touched."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    changelog.append(change(b"a", 0, 1, "c1"))
    used = store_of(changelog)
    used.close()
    folder = used.file.parent
    old = [folder / f"state-0-{'a' * 32}.db{end}" for end in ("", "-wal", "-shm")]
    others = [folder / f"state-0-{'b' * 32}.db", folder / "state-of-orders.db"]
    week = time.time() - 8 * 86_400
    for file in (*old, *others):
        file.touch()
    for file in (old[0], others[1], used.file):
        os.utime(file, (week, week))
    store_of(changelog).close()  # which is a use
    LocalStore(changelog, Origin("id-of-t", 1), str(folder)).close()
    assert not any(file.exists() for file in old)
    assert used.file.exists()
    assert all(file.exists() for file in others)
