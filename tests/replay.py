"""Replays a trace of a job: the loop decides again, on the same events at the same times.

    python -m tests.replay FILE

prints what each run of the job in the file decided, and the first decision that differs now. Spark,
Kafka and the commit log are not needed: their answers are in the trace. A run is replayed through
rebalances, up to the first one in which the member gains key ranges without a hand-over: the trace
does not have how long the earlier owners of these may still be at work.
"""

from __future__ import annotations

import contextlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa

from assignors import KeyRange, Share
from commits import AcquisitionId, Epoch, FencedMember, OffsetRanges, Pending
from coopconsume import RetryPolicy, errors
from coopconsume.group.chunks import AcquiredChunks, GroupChunks, PartitionChunks
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.epoch_proof import EpochProof
from coopconsume.group.owned import EpochGrant, Failed, Owned
from coopconsume.group.shares_in_doubt import SharesInDoubt
from coopconsume.kafka.cluster import LogEnd
from coopconsume.options import Options
from coopconsume.runtime import events, trace
from coopconsume.runtime.commit.parcels import Written
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.runtime.decisions import Decision
from coopconsume.runtime.job_spec import JobSpec
from coopconsume.runtime.loop import Job
from coopconsume.runtime.status.progress import Meter
from coopconsume.worker.histogram import Histogram
from coopconsume.worker.report import (
    DeadLetter,
    Failure,
    PartitionReport,
    Reads,
    SlotEnd,
    SlotReport,
    SlotStats,
    pack_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from commits.model import TopicPartition
    from coopconsume.record import Headers

Line = dict[str, Any]
_DECISIONS = {kind.__name__ for kind in (trace.BatchStarted, trace.CommitStarted, trace.JobEnded)}
_SEEN = {
    kind.__name__
    for kind in (trace.EpochSeen, trace.EndsRead, trace.StartsRead, trace.BatchWithheld)
}


def runs(text: str) -> Iterator[list[Line]]:
    """Yields the lines of each run in a trace."""
    found: dict[str, list[Line]] = {}
    for line in map(json.loads, text.splitlines()):
        found.setdefault(line["run"], []).append(line)
    yield from found.values()


def decisions(lines: Sequence[Line]) -> list[Line]:
    """Returns the decisions among lines, without the times at which they were written."""
    return [
        {name: value for name, value in line.items() if name not in {"at", "run", "now"}}
        for line in lines
        if line["kind"] in _DECISIONS
    ]


def until_gain(lines: Sequence[Line]) -> list[Line]:
    """Returns the lines before the member first gains key ranges without a hand-over."""
    gain = events.SharesGained.__name__
    end = next((i for i, line in enumerate(lines) if line["kind"] == gain), len(lines))
    return list(lines[:end])


def replay(lines: Sequence[Line]) -> list[Line]:
    """Has the loop of a job decide on what a run saw.

    Returns:
        Its decisions, as `decisions` returns those of the run.
    """
    return decisions(Replay(lines).run())


@dataclass
class Replay:
    """One run that is replayed.

    Attributes:
        lines: The lines of the run.
        seen: What the next look at the logs finds.
        now: The time on the monotonic clock.
        wrote: The lines of the replay.
        committed_under: The epoch of the last commit.
    """

    lines: Sequence[Line]
    seen: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0
    wrote: list[Line] = field(default_factory=list)
    committed_under: Epoch | None = None

    def run(self) -> list[Line]:
        """Returns the lines of the replay."""
        nothing = mock.Mock(return_value=None)
        with contextlib.ExitStack() as stack:
            for patch in (
                mock.patch("time.monotonic", side_effect=lambda: self.now),
                mock.patch("threading.Thread.start", nothing),
                mock.patch.object(ThreadPoolExecutor, "submit", nothing),
                mock.patch("coopconsume.runtime.dispatch.spark_jobs.open_mailbox", nothing),
                mock.patch("coopconsume.runtime.dispatch.spark_jobs.interrupt", nothing),
                mock.patch("coopconsume.runtime.dispatch.slot_leases.driver_address", nothing),
                mock.patch.object(
                    EpochProof, "is_confirmed", property(lambda _: self._withheld != [False])
                ),
            ):
                stack.enter_context(patch)
            self._run()
        return self.wrote

    def _run(self) -> None:
        started = self.lines[0]
        assert started["kind"] == "JobStarted", "the trace begins within the run"
        self.now = started["at"]
        job = self._job(started)
        for i, line in enumerate(self.lines[1:], 1):
            if line["kind"] in _DECISIONS | _SEEN:
                continue
            self._look_ahead(i)
            if line["kind"] == "TurnBegun" and "EpochSeen" in self.seen:
                self._go_on(job, self.seen.pop("EpochSeen")["number"])
            try:
                self._step(job, line)
            except Exception as error:
                if type(error).__name__ != self.lines[-1].get("error"):
                    raise
                self._write(trace.JobEnded(error))
                break
        else:
            if self.lines[-1]["kind"] == "JobEnded":
                self._write(trace.JobEnded(None))

    def _look_ahead(self, start: int) -> None:
        """Sets the time and what is seen by what a turn or an event gave rise to."""
        self.now = self.lines[start]["at"]
        self.seen.pop("BatchWithheld", None)
        for line in self.lines[start + 1 :]:
            if line["kind"] in _SEEN:
                self.seen[line["kind"]] = line
            elif line["kind"] in _DECISIONS - {"JobEnded"}:
                written: float = line["at"]
                self.now = line.get("now", written)
            else:
                break

    def _step(self, job: Job, line: Line) -> None:
        if line["kind"] == "TurnBegun":
            job._finished()
            with mock.patch.object(job._events, "take", return_value=()):
                job._turn()
        elif (event := self._event(line, job)) is not None:
            job._handle(event)

    def _write(self, event: events.JobEvent) -> None:
        trace.Trace(write=lambda text: self.wrote.append(json.loads(text))).write(event)

    # -- the job

    def _job(self, line: Line) -> Job:
        plain: dict[str, Any] = {
            name: float(value) if value in ("inf", "-inf") else value
            for name, value in line["options"].items()
        }
        options = Options.parse(
            {
                "kafka.bootstrap.servers": "replay:1", "kafka.group.id": "replay",
                "subscribe": "replay", "commitTable": "replay",
            }
        )  # fmt: skip
        numbers = {
            one.name: plain[one.name]
            for one in fields(options)
            if isinstance(plain[one.name], int | float | None)
            and isinstance(getattr(options, one.name), int | float | None)
        }
        options = replace(options, sharing=plain["sharing"], **numbers)
        spec = dict(line["job_spec"])
        policy = RetryPolicy(max_attempts=spec["policy"]["max_attempts"])
        sinks = {name: self._sink(spec[name]) for name in ("dead_letters", "outputs")}
        assert not spec["state"], "runs with state are not replayed"
        job_spec = JobSpec(handler=print, policy=policy, **sinks, **{
            name: spec[name]
            for name in (
                "concurrency", "ordering", "park", "park_undecodable", "interval", "available_now",
            )
        })  # fmt: skip
        membership: Any = SimpleNamespace(
            options=options, may_work_for=lambda *_: self._withheld != [True],
            driver_lock=None,
            assignment=None, joining="", rebalance=lambda _: None,
        )  # fmt: skip
        identity = {
            "id": "replay",
            "runId": "replay",
            "name": None,
            "groupId": "replay",
            "clientId": "replay",
        }

        def write(text: str) -> None:
            self.wrote.append(json.loads(text))
            if self.wrote[-1]["kind"] == "CommitStarted":
                self.committed_under = job._current.begun.assignment.epoch

        of_slots: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if line["lease"] is not None:
            leases = "coopconsume.runtime.dispatch.dispatcher.SlotLeases"
            of_slots = mock.patch(leases, return_value=_Leases(line["lease"]))
        into = trace.Trace(write=write)
        with of_slots, mock.patch.object(trace.Trace, "from_environment", return_value=into):
            meter = Meter(identity, line["slots"])
            job = Job(mock.sentinel.spark, membership, job_spec, line["slots"], meter)
        return job

    @staticmethod
    def _sink(name: str | None) -> Any:
        return None if name is None else SimpleNamespace(hears_all=False, close=lambda: None)

    def _assignment(self, line: Line, options: Options) -> EpochAssignment:
        assignment: Any = EpochAssignment.__new__(EpochAssignment)
        assignment.options, assignment.topic_ids, assignment.is_between_epochs = options, {}, False
        assignment._lock = contextlib.nullcontext()
        assignment.owned = {}
        assignment.in_doubt = SharesInDoubt()
        assignment.proof = EpochProof(None, "", None, None)  # type: ignore[arg-type]
        for one in line["owned"].values():
            tp = one["topic"], one["partition"]
            assignment.owned[tp] = Owned(
                *tp, tuple(KeyRange(*pair) for pair in one["ranges"]), one["stable"],
                OffsetRanges(one["committed"]),
                _failed(one["pending"]),
                one["range_count"], one["last_committed"], one["max_ranges"],
                uses_chunks=options.uses_chunks,
            )  # fmt: skip
            assignment.in_doubt._until += [
                (SimpleNamespace(topic=tp[0], partition=tp[1], key_range=KeyRange(*pair)), until)
                for *pair, until in one["in_doubt"]
            ]
        assignment._grant = EpochGrant(
            Epoch(line["epoch"], "replay"), "replay",
            tuple(
                Share(topic, partition, key_range)
                for (topic, partition), owned in assignment.owned.items()
                for key_range in owned.ranges
            ),
            {}, (), 0,
        )  # fmt: skip
        assignment.begin_with_state = lambda _: None
        assignment.store = SimpleNamespace(unanswered="")
        assignment.cluster = SimpleNamespace(log_ends=self._ends, record_bytes=lambda _: None)
        assignment.logs = SimpleNamespace(
            present=list(assignment.owned), is_cut=lambda _: False, check_topics=lambda _: [],
            has_read=lambda *_: None,
            check_starts=self._starts,
        )  # fmt: skip
        assignment.primary = SimpleNamespace(
            publish_by=lambda _: None, has_unpublished=False, publishes=False, is_publishing=False,
            troubled={}, given_up=lambda _: None, stop_publishing=lambda: None,
            write_quietly=lambda **_: None,
        )  # fmt: skip
        assignment.stop_repeating = lambda: None
        found: EpochAssignment = assignment
        return found

    def _fenced(self, job: Job) -> FencedMember:
        """Why the log has refused a commit of a job that goes on."""
        assignment = job._current.begun.assignment
        error = FencedMember("replay", "replay", self.committed_under, None, "its epoch has passed")
        # It has another epoch by now, or is about to get it.
        assignment.is_between_epochs = error.epoch == assignment.epoch
        return error

    @staticmethod
    def _go_on(job: Job, number: int) -> None:
        """Moves a job to its next epoch."""
        if job._epoch_state is not None and number > job._epoch_state.assignment.epoch.number:
            assignment = job._epoch_state.assignment
            assignment._grant = replace(assignment._grant, epoch=Epoch(number, "replay"))
            assignment.is_between_epochs = False

    @property
    def _withheld(self) -> list[bool]:
        """Whether the epoch is confirmed, if no batch starts."""
        return [self.seen["BatchWithheld"]["is_confirmed"]] if "BatchWithheld" in self.seen else []

    def _ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        ends = self.seen.get("EndsRead", {}).get("ends", {})
        return {tp: LogEnd(ends.get(_name(tp), 0), 0) for tp in partitions}

    def _starts(self, _done: object) -> dict[TopicPartition, int]:
        starts = self.seen.pop("StartsRead", {}).get("starts", {})
        return {_tp(name): start for name, start in starts.items()}

    # -- events

    def _event(self, line: Line, job: Job) -> events.JobEvent | None:  # noqa: PLR0911
        options, of = job._context.options, line.get
        match line["kind"]:
            case "AssignmentReceived":
                assignment = self._assignment(line["assignment"], options)
                job._membership.assignment = assignment  # type: ignore[misc]
                return events.AssignmentReceived(assignment)
            case "HandOverRequested":
                return events.HandOverRequested(line["until"], events.Reply(()))
            case "SharesRevoked":
                shares = [
                    Share(one["topic"], one["partition"], KeyRange(**one["key_range"]))
                    for one in line["shares"]
                ]
                return events.SharesRevoked(shares, line["until"], events.Reply(None))
            case "RebalanceBegun":
                return events.RebalanceBegun(line["until"], events.Reply(value=False))
            case "SlotReported":
                return events.SlotReported(_report(line["report"]))
            case "SlotProgressed":
                return events.SlotProgressed(_report(line["report"]))
            case "CallReported":
                return events.CallReported(line["batch"], line["slot"], of("call"))
            case "BatchEnded":
                reports = {int(slot): one and _report(one) for slot, one in line["reports"].items()}
                return events.BatchEnded(
                    line["batch"], reports, _error(line["error"]), frozenset(of("unconnected", ()))
                )
            case "CommitAnswered":
                return events.CommitAnswered(
                    {
                        _tp(tp): (OffsetRanges(done), stable)
                        for tp, (done, stable) in line["offsets"].items()
                    },
                    _ranges(line["holes"]), tuple(line["took"]), line["answered_at"],
                    _ranges(line["failed"]), _ranges(line["not_held"]), _acquired(line["acquired"]),
                    line["cost"],
                )  # fmt: skip
            case "CommitFenced":
                return events.CommitFenced(self._fenced(job), _pending(line["pending"]))
            case "LogRead":
                chunks = _chunks(line["chunks"])
                for tp, one in (chunks.partitions if chunks else {}).items():
                    job._membership.assignment.owned[tp].leads = one.leads  # type: ignore[union-attr]
                stable = {_tp(tp): stable for tp, stable in line["stable"].items()}
                return events.LogRead(stable, chunks)
            case "OffsetsMirrored":
                return events.OffsetsMirrored(_error(line["error"]))
            case "DecisionsApplied":
                made = [_decision(one) for one in line["decisions"]]
                on_failed = line["on_failed"]
                return events.DecisionsApplied(made, on_failed and list(map(_decision, on_failed)))
            case "HolesFound":
                holes = line["holes"]
                return events.HolesFound(line["index"], holes and OffsetRanges(holes))
            case "BlockersRead" | "RetentionForeseen":
                return None  # Keys and verdicts are for people.
            case "ParcelWritten":
                under_way = job._current.begun.committer.outbox._by_name[line["what"]]._under_way
                assert under_way is not None
                written = Written(under_way, "replay", line["written"][2])
                return events.ParcelWritten(line["what"], written)
            case "ParcelFailed":
                return events.ParcelFailed(line["what"], _error(line["error"]) or Exception())
            case "EndsAwaited":
                ends = {_tp(tp): end for tp, end in line["ends"].items()}
                return events.EndsAwaited(ends, events.Reply(None))
            case "PauseRequested":
                return events.PauseRequested(line["is_paused"])
            case "StopRequested":
                return events.StopRequested(float(line["stop_by"]), line["drain"])
            case "AbortRequested":
                return events.AbortRequested()
            case "AssignmentLost":
                return events.AssignmentLost()
            case "CommitFailed" | "MembershipFailed" as kind:
                return getattr(events, kind)(_error(line["error"]))  # type: ignore[no-any-return]
            case kind:
                raise AssertionError(f"{kind} is not replayed")


class _Leases:
    """The channel of a job whose slots have all connected."""

    error = ""

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self.spec = SimpleNamespace(lease=lease)

    def has_met(self, _at: object) -> bool:
        return True

    def stop(self, _slots: object) -> set[object]:
        return set()

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: None


def _name(tp: TopicPartition) -> str:
    return f"{tp[0]}-{tp[1]}"


def _tp(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)


def _ranges(of: Line) -> dict[TopicPartition, OffsetRanges]:
    return {_tp(tp): OffsetRanges(pairs) for tp, pairs in of.items()}


def _pending(of: Line) -> dict[TopicPartition, list[Pending]]:
    return {_tp(tp): _records(some) for tp, some in of.items()}


def _records(of: Iterable[Line]) -> list[Pending]:
    names = ("offset", "key_hash", "attempts", "due_ms", "delay_ms")
    return [
        Pending(**{name: one[name] for name in names}, headers=_headers(one["headers"]))
        for one in of
    ]


def _failed(of: list[Line]) -> list[Failed]:
    return [
        Failed(one["offset"], one["key_hash"], one["attempts"], float(one["due"]), "",
               _headers(one["headers"]), due_ms=one["due_ms"])
        for one in of
    ]  # fmt: skip


def _headers(of: list[list[bool | None]]) -> Headers:
    """Headers that a trace shows in the same way."""
    return tuple(("h" if name else "", value and b"h") for name, value in of)  # type: ignore[misc]


def _decision(of: Line) -> Decision:
    names = ("topic", "partition", "offset", "action", "attempts", "due_ms")
    named = {name: of[name] for name in names}
    return Decision(**named, by=DecidedBy("recorded", at_ms=of["by"]["at_ms"]))


def _acquired(of: Line | None) -> AcquiredChunks | None:
    if of is None:
        return None
    failed = {_tp(tp): _failed(some) for tp, some in of["failed"].items()}
    return AcquiredChunks(_ranges(of["offsets"]), failed)


def _chunks(of: Line | None) -> GroupChunks | None:
    if of is None:
        return None
    partitions = {
        _tp(tp): PartitionChunks(
            one["stable"], OffsetRanges(one["committed"]),
            {record.offset: record for record in _records(one["pending"].values())},
            OffsetRanges(one["ours"]), OffsetRanges(one["held"]), leads=one["leads"],
        )
        for tp, one in of["partitions"].items()
    }  # fmt: skip
    overdue = tuple(
        AcquisitionId(one["topic"], one["partition"], "replay", one["renewals"])
        for one in of["overdue"]
    )
    return GroupChunks(partitions, overdue, (), of["now_ms"])


def _error(name: str | None) -> BaseException | None:
    if name is None:
        return None
    kind = getattr(errors, name, RuntimeError)
    error: BaseException = kind.__new__(kind)
    return error


def _packed(pairs: list[list[int]]) -> bytes:
    return pack_offsets(pa.array([o for a, b in pairs for o in range(a, b + 1)], pa.int64()))


def _failure(of: Line) -> Failure:
    numbers = of["offset"], of["key_hash"], None, of["attempts"], float(of["delay"])
    return Failure(*numbers, "", headers=_headers(of["headers"]))


def _letter(of: Line) -> DeadLetter:
    numbers = {
        name: of[name]
        for name in ("topic", "partition", "offset", "timestamp", "attempts", "key_hash")
    }
    return DeadLetter(**numbers, key=None, value=None, headers=(), reason="", trace="")


def _report(of: Line) -> SlotReport:
    known = dict(of)
    known["partitions"] = {int(i): _outcome(one) for i, one in of["partitions"].items()}
    known["dead"] = [_letter(one) for one in of["dead"]]
    known["outputs"] = known["changes"] = known["lines"] = None
    known["gates"] = {
        None if i == "None" else int(i): float(seconds) for i, seconds in of["gates"].items()
    }
    stats, end = dict(of["stats"]), dict(of["end"])
    stats["reads"] = Reads(*stats["reads"])
    for name in ("starts", "calls"):
        stats[name] = Histogram(**stats[name])
    for name in ("tripped", "fatal", "channel_error", "state_error", "open_error", "read_error"):
        end[name] = "recorded" if end[name] else ""
    end["unacknowledged"] = [_report(one) for one in end["unacknowledged"]]
    for name in ("culprits", "suspects"):
        end[name] = [tuple(one) for one in end[name]]
    return SlotReport(**known | {"stats": SlotStats(**stats), "end": SlotEnd(**end)})


def _outcome(of: Line) -> PartitionReport:
    known = dict(of) | {name: _packed(of[name]) for name in ("done", "filtered", "read")}
    for name in ("failed", "retrying"):
        known[name] = [_failure(one) for one in of[name]]
    for name in ("blocked", "holes"):
        known[name] = [tuple(one) for one in of[name]]
    return PartitionReport(**known | {"times": b""})


def main(path: str) -> int:
    """Prints the decisions of each run in a trace; returns 1 if one is another now."""
    for lines in runs(Path(path).read_text()):
        replayed = until_gain(lines)
        before, after = decisions(replayed), replay(replayed)
        sys.stdout.write(f"run {lines[0]['run']}: {len(before)} decisions\n")
        for i, decision in enumerate(before):
            sys.stdout.write(f"  {json.dumps(decision)}\n")
            now = after[i] if i < len(after) else None
            if now != decision:
                sys.stdout.write(f"  now: {json.dumps(now)}\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
