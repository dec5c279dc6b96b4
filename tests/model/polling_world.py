"""Members that poll from one topic: everything is real but Kafka, Spark and the commit log."""

from __future__ import annotations

import contextlib
import types
from unittest import mock

import numpy as np

from assignors import KeyRange, Share, key_hash
from assignors.ranges import offset_hash
from commits import FencedMember, OffsetRanges, PartitionCommits
from commits.affordable import affordable
from commits.partition_commits import CommitResult
from coopconsume.group.assigned_logs import AssignedLogs
from coopconsume.group.owned import Failed, Owned
from coopconsume.group.shares_in_doubt import SharesInDoubt
from coopconsume.kafka.cluster import LogEnd, Topic
from coopconsume.record import ORDERING_KEY
from coopconsume.runtime.poll.poller import Poller
from coopconsume.runtime.read.poll_frames import PolledRows

TOPIC = "t"


class SparkGone(Exception):
    """Stands for a Spark job that fails."""


class Frame(list):
    """Rows of (partition, offset)."""


class Log:
    """A topic's records and what the group's commit log says of them."""

    filtered = frozenset()  # (partition, offset) of the records that the filter drops
    ordered_by = None  # the ordering key by offset, as Spark computes it; None: records have none

    def __init__(self, records, splits, limit=1_000_000):
        self.limit = limit  # ranges that a partition may have
        self.records = records  # {partition: {offset: key}}; other offsets are holes
        self.ends = {p: max(log, default=-1) + 1 for p, log in records.items()}
        self.starts = {}  # where retention has deleted records, by partition
        self.commits = {p: PartitionCommits() for p in records}
        self.pending = {p: {} for p in records}
        self.epoch = 0
        self.splits = splits
        self.now = 1_000.0
        self.failures = 0  # Spark jobs that fail from now on
        self.topic_id = "first"
        self.options = types.SimpleNamespace(
            group_id="g", fail_on_data_loss=True, outlives_topics=False
        )

    def hash_of(self, partition, offset):
        """The hash that a record is dealt by."""
        hashed = key_hash(self.dealt_by(partition, offset))
        return offset_hash(offset) if hashed is None else hashed

    def dealt_by(self, partition, offset):
        """The key that a record is dealt by."""
        if self.ordered_by is None:
            return self.records[partition][offset]
        return self.ordered_by(offset)

    def headers_of(self, offset):
        """A record's headers: its ordering key, if there are such."""
        if self.ordered_by is None:
            return None
        return [{"key": ORDERING_KEY, "value": self.ordered_by(offset)}]

    def is_done(self, partition, offset):
        """Whether the commit log counts an offset as done."""
        commits = self.commits[partition]
        return offset < commits.stable_offset or offset in commits.ranges

    def present(self, owned, offsets, chosen):
        """By partition the offsets of rows, as Spark reads them."""
        if self.failures:
            self.failures -= 1
            raise SparkGone
        found = {}
        for tp, wanted in offsets.items():
            assert tp in owned, f"{tp} is read, and it is not ours"
            choice = chosen.get(tp)
            rows = []
            for offset in wanted.offsets().tolist():
                if offset not in self.records[tp[1]]:
                    continue
                dealt = self.hash_of(tp[1], offset)
                if not any(r.contains(dealt) for r in owned[tp].ranges):
                    continue
                if choice is not None and (
                    dealt in choice.without
                    if choice.only is None
                    else offset not in choice.only.get(dealt, OffsetRanges())
                ):
                    continue
                rows.append(offset)
            found[tp] = rows
        return found


class MemoryFrames:
    """What `Frames` reads, from a `Log`."""

    def __init__(self, log, _options, _slots):
        self._log = log

    def empty(self):
        """No rows."""
        return Frame()

    def look_for_timestamp_overflows(self, _cluster, _offsets):
        """Does nothing: Python reads the log."""

    def rows(self, owned, offsets, chosen, _added):
        """The rows of a frame."""
        found = self._log.present(owned, offsets, chosen)
        rows = {(tp[1], o) for tp, rows in found.items() for o in rows}
        return Frame(sorted(rows - self._log.filtered))

    def present(self, owned, offsets):
        """Their offsets."""
        found = self._log.present(owned, offsets, {}) if offsets else {}
        return {tp: OffsetRanges.from_offsets(rows) for tp, rows in found.items()}

    def dealt(self, owned, offsets, chosen, *, keys=False):
        """Their offsets and hashes, and the keys that they are dealt by if asked for."""
        return {
            tp: PolledRows(
                np.array(rows, np.int64),
                np.array([self._log.hash_of(tp[1], o) for o in rows], np.int64),
                np.array([(tp[1], o) not in self._log.filtered for o in rows], np.bool_),
                np.array([self._log.dealt_by(tp[1], o) for o in rows], np.object_)
                if keys
                else None,
            )
            for tp, rows in self._log.present(owned, offsets, chosen).items()
        }

    def originals(self, named):
        """The records of some offsets."""
        return [
            {
                "topic": tp[0], "partition": tp[1], "offset": o, "value": b"", "millis": 0,
                "key": self._log.records[tp[1]][o], "headers": self._log.headers_of(o),
                "key_hash": self._log.hash_of(tp[1], o),
            }
            for tp, offsets in named.items() for o in offsets if o in self._log.records[tp[1]]
        ]  # fmt: skip


class FakeAssignment:
    """What a member holds under one epoch of a `Log`."""

    def __init__(self, log, ranges):
        self._log = log
        self.epoch = log.epoch
        self.owned = {
            (TOPIC, p): Owned(
                TOPIC, p, tuple(of), log.commits[p].stable_offset, log.commits[p].ranges,
                [Failed(r.offset, r.key_hash, r.attempts, np.inf if r.is_parked else log.now, "",
                        r.headers, r.key)
                 for r in log.pending[p].values()],
                range_count=log.commits[p].ranges.range_count, max_ranges=log.limit,
            )
            for p, of in ranges.items()
        }  # fmt: skip
        self.shares = tuple(Share(TOPIC, p, r) for p, of in ranges.items() for r in of)
        self.topic_ids = {}
        self.begin_with_state = lambda _: None
        self.options = log.options
        self.cluster = types.SimpleNamespace(
            log_ends=lambda tps: {tp: LogEnd(log.ends[tp[1]], None) for tp in tps},
            epoch_ends=lambda _: {},
            log_starts=lambda tps: dict.fromkeys(tps, 0),
            visible_topics=lambda names: ([Topic(n, log.topic_id, 1) for n in names], []),
        )  # fmt: skip
        grant = types.SimpleNamespace(topic_ids={TOPIC: log.topic_id})
        state = types.SimpleNamespace(
            state=lambda _: {(TOPIC, p): c for p, c in log.commits.items()},
            reached=lambda _: {},
        )
        self.logs = AssignedLogs(
            log.options, self.cluster, state, lambda: grant, self.owned, contextlib.nullcontext()
        )
        self.logs.check_ends()
        self.in_doubt = SharesInDoubt()
        self.primary = types.SimpleNamespace(write_quietly=lambda: None)
        self.store = types.SimpleNamespace(
            settings=lambda _: {}, set_settings=list, unanswered="", one_look=contextlib.nullcontext
        )  # fmt: skip

    def refresh(self):
        """Where others move stable offsets, too, they are read from the log."""
        for (_, p), owned in self.owned.items():
            if not owned.is_whole:
                owned.follow(self._log.commits[p].stable_offset)
                owned.look(self._log.commits[p].ranges)

    def affordable(self, named, besides):
        """What the limit lets in; what others commit is seen late, as by a member of a group."""
        fit = dict(named)
        for tp in named:
            owned, more = self.owned[tp], besides.get(tp, OffsetRanges())
            commits = self._log.commits[tp[1]].copy(max_ranges=None)
            if owned.range_count + (named[tp] | more).range_count > self._log.limit:
                commits.amend(more)
                fit[tp] = affordable(commits, named[tp], self._log.limit)
        return fit

    def commit(self, offsets, *, pending=None, holes=None, filtered=None, commit_id=None):
        """Under the epoch in force, however many ranges that makes."""
        assert commit_id != ""
        for tp, done in offsets.items():
            # One that is done was counted when it was committed first.
            named = {(tp[1], o) for o in done.offsets().tolist() if not self._log.is_done(tp[1], o)}
            assert (filtered or {}).get(tp, 0) == len(named & self._log.filtered)
        if self.epoch != self._log.epoch:
            raise FencedMember("g", "m", None, None, "a later epoch is in force")
        results = {}
        for tp in {*offsets, *(pending or {}), *(holes or {})}:
            done = offsets.get(tp, OffsetRanges()) | (holes or {}).get(tp, OffsetRanges())
            commits, waiting = self._log.commits[tp[1]], self._log.pending[tp[1]]
            for record in (pending or {}).get(tp, ()):
                waiting[record.offset] = record
            for offset in [o for o in waiting if o in done]:
                del waiting[offset]
            commits.amend(done.pairs())
            self.owned[tp].follow(commits.stable_offset, done)
            count = self.owned[tp].range_count = commits.ranges.range_count
            results[tp] = CommitResult(commits.stable_offset, len(done), 0, count)
        return results


class Member:
    """One consumer: the real poller, and what a user of it knows."""

    def __init__(self, log):
        self.log = log
        self.assignment = None
        self.given = set()  # (partition, offset) that a frame contained, and not answered for
        options = types.SimpleNamespace(
            max_offsets_per_trigger=None,
            dead_letter="dead",
            min_partitions=None,
            record_filter=bool(log.filtered),
            ordering_key=None if log.ordered_by is None else "value",
        )
        self.poller = Poller(log, options, lambda: 1)
        self.cluster = types.SimpleNamespace(
            limited_by=lambda _limit: contextlib.nullcontext(),
            patient_for=lambda _seconds: contextlib.nullcontext(),
        )
        self.driver_lock = None
        self.letters = []
        #: Is called while dead letters are being written.
        self.meanwhile = lambda: None

    def fenced(self, _why):
        """The next rebalance brings new shares."""
        self.assignment = None
        self.given = set()
        self.poller.session.drop()
        return True

    def rejoin(self, why, _running):
        """The next rebalance brings the new topic."""
        return self.fenced(why)

    def begin(self, ranges):
        """Get shares of the epoch in force."""
        self.assignment = FakeAssignment(self.log, ranges)
        self.given = set()
        self.poller.session.begin(self.assignment)

    def append(self, letters, _topic_ids, _commit_id):
        """Take dead letters."""
        self.meanwhile()
        self.letters += letters

    def close(self):
        """Nothing is open."""

    def poll(self, window):
        """A frame; empty if there are no rows now."""
        self.poller._options.max_offsets_per_trigger = window
        frame = self.poller.poll(self, 0)
        self.given |= set(frame)
        return frame

    def is_ours(self, partition, offset):
        """Whether a record's hash is in our ranges."""
        owned = self.assignment.owned.get((TOPIC, partition))
        dealt = self.log.hash_of(partition, offset)
        return owned is not None and any(r.contains(dealt) for r in owned.ranges)


def in_memory(log, member_of):
    """Patches that let pollers read from a log in memory.

    Args:
        log: The log.
        member_of: Returns where dead letters go.
    """
    base = "coopconsume.runtime.poll.poller"

    def reasons_of(frame, reason, _call):
        found = {}
        for partition, offset in frame:
            found.setdefault((TOPIC, partition), {})[offset] = reason
        return found

    def offsets_of(done):
        if not isinstance(done, Frame):
            return done
        found = {}
        for partition, offset in done:
            found.setdefault((TOPIC, partition), []).append(offset)
        return {tp: OffsetRanges.from_offsets(offsets) for tp, offsets in found.items()}

    def sink(*_):
        return member_of()

    clock = types.SimpleNamespace(monotonic=lambda: log.now)

    def present_offsets(_spark, _options, span, _slices):
        records = log.records[span.partition]
        if span.first < log.starts.get(span.partition, 0) or span.last >= log.ends[span.partition]:
            raise SparkGone  # Spark reads nothing that is not in the log.
        return OffsetRanges.from_offsets([o for o in records if span.first <= o <= span.last])

    return [
        mock.patch(f"{base}.FrameReader", MemoryFrames),
        mock.patch(f"{base}.reasons_of", reasons_of),
        mock.patch(f"{base}.offsets_of", offsets_of),
        mock.patch(f"{base}.open_dead_letters", sink),
        mock.patch("coopconsume.runtime.read.audit.present_offsets", present_offsets),
        mock.patch("coopconsume.runtime.poll.poller.time", clock),
        mock.patch("coopconsume.runtime.poll.holes.time", clock),
        mock.patch("coopconsume.runtime.poll.answers.time", clock),
    ]


def dealt(parts, splits):
    """Key ranges by member and partition: each partition is split at some hashes."""
    ranges = [{} for _ in range(parts)]
    for partition, (first_owner, count) in splits.items():
        for i, piece in enumerate(KeyRange().split(count)):
            ranges[(first_owner + i) % parts].setdefault(partition, []).append(piece)
    return ranges
