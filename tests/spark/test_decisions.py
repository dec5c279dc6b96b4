"""Decisions on failed records of a job that runs, by the command line."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from click.testing import CliRunner

from coopconsume import Admin, CooperativeConsumer, RetryPolicy
from coopconsume.admin.views import view_table
from coopconsume.cli import main
from coopconsume.testing.history import check, read_history
from tests.spark.support import Recorded, done_book, options, pending_book, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]

RETRIED, SKIPPED, PARKED = 3, 12, 21


def fails(record):
    """Three records fail at their first attempt, two of them for ever."""
    if record.offset in (SKIPPED, PARKED) or (record.offset == RETRIED and record.attempt == 1):
        raise RuntimeError("no luck")


@pytest.mark.parametrize("mode", ["batches", "real time"])
def test_failed_records_are_decided_on_while_the_job_runs(
    spark, kafka, topic, produce, tmp_path, mode
):
    """Each is tried again in an hour, but for the decision; later records of its key follow."""
    name, keys = topic(1), {o: b"k%d" % (o % 8) for o in range(40)}
    produce(name, [(key, b"v%d" % o) for o, key in keys.items()])
    opts = options(kafka, tmp_path, name, slots=2, deadLetter=str(tmp_path / "dead"))
    place = ["--bootstrap-servers", kafka.bootstrap_servers, "--commit-table", opts["commitTable"]]

    def call(*words):
        result = CliRunner().invoke(main, [*words, *place, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    with CooperativeConsumer(opts, spark) as consumer:
        group = consumer.options.group_id
        policy = RetryPolicy(backoff=3_600, max_backoff=3_600, jitter=0)
        job = consumer.foreach(Recorded(tmp_path / "history", fails), concurrency=2, retry=policy)
        query = (job.trigger(realTime="10 minutes") if mode == "real time" else job).start()

        def failed():
            return {one["offset"]: one for one in call("records", "list", group)}

        until(lambda: len(failed()) == 3)
        assert {o: one["attempts"] for o, one in failed().items()} == dict.fromkeys(
            (RETRIED, SKIPPED, PARKED), 1
        )
        by = ["--by", "alice", "--reason", "no such order"]
        dry = call("records", "skip", group, "--offset", str(SKIPPED), *by)
        assert (dry["executed"], [one["offset"] for one in dry["failed"]]) == (False, [SKIPPED])
        assert failed()[SKIPPED]["decision"] is None
        call("records", "retry", group, "--key", keys[RETRIED].decode(), "--execute")
        call("records", "skip", group, "--offset", str(SKIPPED), *by, "--execute")
        call("records", "park", group, "--offset", str(PARKED), *by, "--execute")
        until(lambda: {o: one["state"] for o, one in failed().items()} == {PARKED: "parked"})
        until(lambda: all(one["status"] != "open" for one in overview(group, opts)["decisions"]))
        found = {one["offset"]: one for one in overview(group, opts)["decisions"]}
        assert {o: (one["action"], one["status"]) for o, one in found.items()} == {
            RETRIED: ("retry", "done"), SKIPPED: ("skip", "done"), PARKED: ("park", "parked")
        }  # fmt: skip
        assert (found[SKIPPED]["by"], found[SKIPPED]["reason"]) == ("alice", "no such order")
        assert "@" in found[RETRIED]["by"]
        rows = view_table("decisions", opts, group).to_pylist()
        assert {row["offset"]: row["decided_by"] for row in rows}[SKIPPED] == "alice"
        call("records", "skip", group, "--offset", str(PARKED), "--execute")
        until(lambda: query.lastProgress["partitions"][0]["lag"] == 0)
        shown = CliRunner().invoke(main, ["groups", "describe", group, *place]).stdout
        of_parked = [line for line in shown.splitlines() if line.startswith(f"{name}-0@{PARKED} ")]
        # A parked record is skipped by the same word as one that is tried again.
        assert [line.split()[1] for line in of_parked] == ["skip", "park"]
        query.stop()
        letters = {one.offset: one for one in Admin(opts).dead_letters(group).letters()}
        store = consumer._subscription.joined().store
        book = done_book(store, group), pending_book(store, group)
    assert {o: one.attempts for o, one in letters.items()} == {SKIPPED: 1, PARKED: 1}
    assert letters[SKIPPED].value == b"v%d" % SKIPPED
    assert letters[SKIPPED].reason.startswith("skipped by alice: no such order; last error: ")
    calls = defaultdict(list)
    for one in read_history(tmp_path / "history"):
        calls[one.offset].append(one.attempt)
    assert {o: a for o, a in calls.items() if a != [1]} == {RETRIED: [1, 2]}
    given_up = {(name, 0): [(SKIPPED, SKIPPED), (PARKED, PARKED)]}
    verdict = check(read_history(tmp_path / "history"), {(name, 0): keys}, *book, given_up)
    assert verdict.ok, str(verdict)


def overview(group, opts):
    """The group as `groups describe --json` has it."""
    return Admin(opts).describe(group).to_dict()
