"""Operators and dead letters on a real broker and real Delta tables, without a job."""

from __future__ import annotations

import json
import shlex
from contextlib import closing

import pytest
from click.testing import CliRunner

from commits import CommitStore, Pending
from commits.model import PARKED_MS
from coopconsume.cli import main
from coopconsume.group.membership import Membership
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options
from coopconsume.runtime.decisions import Decision, apply_decisions, decide, decided
from coopconsume.runtime.plan import Waiting
from coopconsume.runtime.poll.session import PollSession
from coopconsume.sinks import open_dead_letters
from coopconsume.worker.report import DeadLetter
from tests.broker.test_sinks import records_of

pytestmark = [pytest.mark.broker]


def letter(topic: str, offset: int, reason: str) -> DeadLetter:
    """A dead letter of the key of its offset, with a header without a value."""
    headers = (("h", b"1"), ("none", None))
    return DeadLetter(topic, 0, offset, b"k%d" % offset, b"v", 77, headers, 2, reason, "trace")


@pytest.mark.parametrize("kind", ["table", "topic"])
def test_letters_are_listed_shown_and_decided_on(kafka, topic, tmp_path, kind):
    """What counts is listed; a replay writes again what has passed and orders what is parked."""
    orders = topic(1)
    place = f"kafka:{topic(2)}" if kind == "topic" else str(tmp_path / "dead")
    words = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": "shop",
        "commitTable": str(tmp_path / "commits"),
    }  # fmt: skip
    options = Options.parse(words)
    with closing(Cluster(options)) as cluster:
        store = CommitStore.open(tmp_path / "commits", cluster=cluster.cluster_id)
    epoch = store.open_epoch("shop", {"m": [(orders, 0)]}, previous=None)
    written = [letter(orders, o, "bank sleeps" if o % 2 else "no such bank") for o in range(4)]
    with closing(open_dead_letters(place, options)) as sink:
        sink.append(written, {orders: "id"}, "run-0")
        sink.append([letter(orders, 9, "of a commit that never counts")], {orders: "id"}, "run-1")
    at = (orders, 0)
    parked = {at: [Pending(3, 33, 2, PARKED_MS, "no")]}
    store.commit("shop", epoch, "m", {at: [(0, 2)]}, pending=parked, commit_id="run-0")

    at_its_place = [
        "--bootstrap-servers", kafka.bootstrap_servers, "--commit-table", words["commitTable"],
        "--dead-letter", place,
    ]  # fmt: skip

    def call(command: str, *more: str):
        arguments = ["dead-letters", command, "shop", *at_its_place, *more]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout) if "--json" in more else result.stdout

    def stands(*more: str) -> list[tuple[int, str]]:
        return [(one["offset"], one["status"]) for one in call("list", "--json", *more)]

    assert stands() == [(0, "open"), (1, "open"), (2, "open"), (3, "parked")]
    assert stands("--error", "SLEEPS") == [(1, "open"), (3, "parked")]
    (shown,) = call("show", "--key", "k3", "--json")
    nothing = {"name": "none", "value": None, "value_base64": None}
    assert shown["headers"] == [{"name": "h", "value": "1", "value_base64": "MQ=="}, nothing]
    assert (shown["value"], shown["timestamp_ms"], shown["trace"]) == ("v", 77, "trace")
    assert f"{orders}-0@3, parked" in call("show", "--offset", "3")

    who = ["--by", "alice", "--reason", "the bank is awake"]
    output = call("replay", "--error", "sleeps")
    assert "nothing was changed" in output
    listed = CliRunner().invoke(main, ["dead-letters", "list", "shop", *at_its_place])
    assert listed.stderr.startswith(
        f"next: coopconsume dead-letters replay shop --topic {orders} --partition 0 --offset 3 "
    )
    following = shlex.split(listed.stderr.splitlines()[0])[2:]
    assert f"{orders}-0@3: would be retried" in CliRunner().invoke(main, following).stdout
    as_json = CliRunner().invoke(main, ["dead-letters", "list", "shop", *at_its_place, "--json"])
    assert as_json.stderr == ""
    assert stands() == [(0, "open"), (1, "open"), (2, "open"), (3, "parked")]
    assert not decided(store, "shop", [orders])
    done = call("replay", "--error", "sleeps", *who, "--execute", "--json")
    assert done["executed"]
    assert [one["offset"] for one in done["parked"]] == [3]
    assert [one["offset"] for one in done["passed"]] == [1]
    assert stands() == [(0, "open"), (2, "open"), (3, "replaying")]
    (kept,) = decided(store, "shop", [orders])
    assert (kept.offset, kept.action, str(kept.by)) == (3, "replay", "alice: the bank is awake")
    (replayed,) = call("show", "--offset", "1", "--all", "--json")
    assert (replayed["decided_by"], replayed["decision_reason"]) == ("alice", "the bank is awake")
    assert replayed["decided_at_ms"] == kept.by.at_ms
    (again,) = records_of(kafka, orders, 1)
    assert (again.key, again.value, again.headers[0]) == (b"k1", b"v", ("h", b"1"))
    assert ("coopconsume.replay_of", f"{orders}-0@1".encode()) in again.headers
    said = call("discard", "--all", "--execute")
    assert f"{orders}-0@3: will be marked as done" in said
    assert f"{orders}-0@2: discarded" in said
    assert said.splitlines()[-1] == (
        "1 parked, 2 passed: the decision on parked ones was written down; no job runs, so the "
        "next one to start applies it"
    )
    assert stands() == [(3, "discarding")]
    assert stands("--all") == [
        (0, "discarded"), (1, "replayed"), (2, "discarded"), (3, "discarding")
    ]  # fmt: skip
    store.commit("shop", epoch, "m", {at: [(3, 3)]})
    assert stands() == []


def die(*_, **__):
    """Stand for the end of the process."""
    raise OSError("gone")


def test_a_decision_is_taken_once_even_if_its_taker_dies(kafka, topic, tmp_path, monkeypatch):
    """After a crash between the commit and its end, a record that is parked again stays so."""
    orders = topic(1)
    options = Options.parse(
        {
            "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": "shop-2",
            "commitTable": str(tmp_path / "commits"),
        }
    )  # fmt: skip
    at = (orders, 0)
    membership = Membership(options, 1, PollSession())
    try:
        membership.subscribe([orders], None, None)
        assignment = membership.wait_for_assignment()
        group, store = options.group_id, assignment.store
        parked = [(at, Waiting(o, 33, 2, float("inf"), "no")) for o in (3, 5)]
        log = {at: [Pending(o, 33, 2, PARKED_MS, "no") for o in (3, 5)]}
        assignment.commit({}, pending=log, commit_id="run-0")
        decide(store, group, [Decision(orders, 0, 3, "replay"), Decision(orders, 0, 5, "discard")])
        ids = (f"again-{number}" for number in range(9))
        with monkeypatch.context() as broken:
            broken.setattr(store, "set_settings", die)
            with pytest.raises(OSError, match="gone"):
                apply_decisions(assignment, parked, ids)
        pending = store.pending(group)[at]
        assert [(o, p.attempts, p.is_parked) for o, p in pending.items()] == [(3, 0, False)]
        assert store.state(group)[at].ranges.pairs() == [(5, 5)]
        assert len(decided(store, group, [orders])) == 2
        assert apply_decisions(assignment, [], ids) == [], (
            "the next process starts with none parked"
        )
        assert decided(store, group, [orders]) == []
        assignment.commit({}, pending={at: log[at][:1]}, commit_id="run-1")
        assert apply_decisions(assignment, parked[:1], ids) == []
        assert store.pending(group)[at][3].is_parked
    finally:
        membership.leave()
