"""``coopconsume topics`` and ``groups`` on a real broker and live groups, and Kafka's own tool."""

from __future__ import annotations

import json
import math
import re
import shlex
import socket
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from assignors import MAX_KEY_HASH, KeyRange, key_hash
from commits import CommitStore, OffsetRanges
from coopconsume import Admin
from coopconsume.cli import main
from coopconsume.errors import InvalidOption, MissingOption
from coopconsume.kafka import parked_keys
from coopconsume.kafka.blocker_records import BlockerRecord, read_blockers
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.parked_keys import BehindParked, ParkedKeys, count_behind
from coopconsume.kafka.retention import ExpiringOffsets, OpenOffsets, find_expiring
from coopconsume.monitoring import verdict
from coopconsume.options import Options
from tests.broker.group_harness import LIFE
from tests.times import TIME

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from coopconsume.testing.local.broker import LocalKafka
    from tests.broker.group_harness import GroupHarness, Process
    from tests.conftest import Produce, TopicFactory

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def _members_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine these members commit more rarely than those that work would."""
    monkeypatch.setattr(verdict, "_LONG", math.inf)


TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def called(kafka: LocalKafka, table: object, *words: str) -> Result:
    """Call a command with the cluster and the commit table that it needs."""
    place = ["--bootstrap-servers", kafka.bootstrap_servers, "--commit-table", str(table)]
    return CliRunner().invoke(main, [*words, *place])


def document(kafka: LocalKafka, table: object, *words: str) -> Any:
    """What a command answers with --json."""
    result = called(kafka, table, *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def shared_by(harness: GroupHarness, **second: object) -> tuple[Process, Process]:
    """Two members that share the partition: one of two slots, the other with some options.

    The first has handed over to both, and so written the group's offset to Kafka.
    """
    a = harness.start(slots=2)
    harness.settled(a)
    b = harness.start(**second)
    harness.settled(a, b)
    return a, b


def test_topics_are_opened_closed_and_described(
    kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Without a group; a topic that does not exist stops it before anything is changed."""
    one, two, table = topic(1), topic(3), tmp_path / "commits"
    missing = called(kafka, table, "topics", "alter", one, "nowhere", "--accept-range-fetch")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "no topic 'nowhere'" in missing.stderr
    assert "check its name, or create it" in missing.stderr
    misspelt = called(kafka, table, "topics", "alter", f"{two}x", "--accept-range-fetch")
    assert misspelt.stderr.endswith(f"did you mean '{two}'?\n")
    unmade = called(kafka, table, "topics", "describe")
    assert unmade.exit_code == 1
    assert f"no commit table at {table}" in unmade.stderr
    assert not table.exists()
    assert called(kafka, table, "topics", "alter", two, "--accept-range-fetch").exit_code == 0
    assert {
        (found["name"], found["partitions"], found["is_shareable"])
        for found in document(kafka, table, "topics", "describe", one, two)
    } == {(one, 1, False), (two, 3, True)}
    everything = called(kafka, table, "topics", "describe").stdout
    assert re.search(rf"^{two} +3 +open ", everything, re.MULTILINE)
    assert re.search(rf"^{one} +1 +no ", everything, re.MULTILINE)
    assert "__consumer_offsets" not in everything
    called(kafka, table, "topics", "alter", two, "--no-accept-range-fetch")
    (closed,) = document(kafka, table, "topics", "describe", two)
    assert not closed["is_shareable"]


def test_a_live_group_is_described(harness: GroupHarness) -> None:
    """Members as Kafka and the log have them, shares, lag in records, epochs; and what is gone."""
    kafka, table = harness.kafka, harness.store.target
    named = {"kafka.group.instance.id": "bee", "kafka.client.id": "second"}
    a, b = shared_by(harness, **named)
    begun = [process.events[-1] for process in (a, b)]
    for offset in (0, 3, 4):
        a.say(f"commit {offset}")
        a.wait_for("committed", offset=offset)
    found = document(kafka, table, "groups", "describe", harness.group)
    assert (found["state"], found["epoch"], found["lag"]) == ("Stable", begun[0]["epoch"], 7)
    assert found["assignor"] == "key-range-sticky"
    verdict = found["verdict"]
    assert verdict["level"] == "working"
    assert verdict["sentence"].startswith("Working: 7 records not done")
    assert found["notes"] == []
    members = {member["id"]: member for member in found["members"]}
    first, second = (members.pop(begin["member"]) for begin in begun)
    assert not members
    assert (first["slots"], first["host"], first["instance_id"]) == (2, "127.0.0.1", None)
    # Without kafka.client.id a member is named by application, host and process id.
    assert first["client_id"] == f"coopconsume-{socket.gethostname()}-{a.popen.pid}"
    assert (second["slots"], second["client_id"], second["instance_id"]) == (1, "second", "bee")
    assert {first["status"], second["status"]} == {"working"}
    (partition,) = found["partitions"]
    assert [owned["key_range"]["last"] for owned in partition["owners"]][-1] == MAX_KEY_HASH
    assert {owned["member"] for owned in partition["owners"]} == {first["id"], second["id"]}
    offsets = ("stable_offset", "end_offset", "committed_above", "gaps", "primary_offset")
    assert [partition[name] for name in offsets] == [1, 10, 2, 1, 0]
    assert partition["primary_is_ours"]
    assert found["events"][-1]["members"] == 2
    assert found["events"][-1]["by"] == first["id"]

    b.popen.kill()
    harness.forget_members(a)
    harness.settled(a)
    text = called(kafka, table, "groups", "describe", harness.group).stdout
    # The epoch without it has begun the wait; both times are in the row of that epoch.
    waits = rf"Waiting for a lost member since {TIME}, until {TIME} \(\d+ s\): .*leaseGrace.*\n"
    assert re.match(rf"{waits}also: Working: 7 ", text)
    assert re.search(rf"^{harness.topic}-0 +[\d.]+ to 100.0 % +\d+$", text, re.MULTILINE)
    assert called(kafka, table, "lag", harness.group).stdout.split(" (")[0] == text.split(" (")[0]
    assert re.search(r"^A .* working$", text, re.MULTILINE)
    assert re.search(rf"^{harness.topic}-0 +A{{32}} +1 +10 +2 +1 +0 +7 +[01]$", text, re.MULTILINE)
    (partition,) = document(kafka, table, "groups", "describe", harness.group)["partitions"]
    doubted = {doubt["key_range"]["last"]: doubt["seconds"] for doubt in partition["in_doubt"]}
    assert doubted[begun[1]["shares"][0][-1]] == LIFE
    (summary,) = document(kafka, table, "groups", "list")
    assert (summary["group"], summary["members"], summary["lag"]) == (harness.group, 1, 7)
    assert summary["verdict"]["reason"] == "lostMember"


def test_empty_and_unknown_groups_are_reported(harness: GroupHarness, tmp_path: Path) -> None:
    """Claims by hand of a group that Kafka never saw; a group that nobody knows, by its name."""
    kafka, table = harness.kafka, harness.store.target
    low, _ = KeyRange().split(2)
    share = (harness.topic, 0, low.first, low.last)
    epoch = harness.store.claim("by-hand", "somebody", [share])
    harness.store.start("by-hand", epoch, "somebody", {(harness.topic, 0): 4})
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "commitTable": table}
    admin = Admin(options)
    (summary,) = admin.groups()
    assert (summary.group, summary.state, summary.claims, summary.lag) == ("by-hand", "Dead", 1, 6)
    found = admin.describe("by-hand")
    assert [(claim.member, claim.epoch) for claim in found.claims] == [("somebody", 1)]
    (status,) = admin.lag("by-hand", {harness.topic: [0]})
    assert (status.name, status.stable_offset, status.lag) == (f"{harness.topic}-0", 4, 6)
    with pytest.raises(InvalidOption, match="no partition 7"):
        admin.lag("by-hand", {harness.topic: [7]})
    assert admin.check().is_sound
    (known,) = admin.topics([harness.topic])
    assert known.is_shareable
    with pytest.raises(InvalidOption, match="give a version, 'snapshot' or 'kafka'"):
        admin.repair("yesterday")
    assert admin.repair(admin.check().version).version is None  # a dry run
    with pytest.raises(MissingOption, match="deadLetter"):
        admin.dead_letters("by-hand")
    with pytest.raises(MissingOption, match="commitTable"):
        Admin({"kafka.bootstrap.servers": kafka.bootstrap_servers}).check()
    assert "Kafka does not know the group" in found.notes[0]
    text = called(kafka, table, "groups", "describe", "by-hand").stdout
    assert f"{harness.topic}-0  {'A' * 16}{'.' * 16}" in text
    assert text.startswith("Working: 6 records not done\n"), "whether a claimant lives is not known"
    assert re.search(
        r"^by-hand +Dead +0 +- +1 +1 +6 +Working: 6 records not done$",
        called(kafka, table, "groups", "list").stdout,
        re.MULTILINE,
    )
    unknown = called(kafka, table, "groups", "describe", "by-hnd")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "no group 'by-hnd'" in unknown.stderr
    assert "did you mean 'by-hand'?" in unknown.stderr
    letters = ("--dead-letter", str(tmp_path / "dead"))
    for words in (["list"], ["replay", "--all"], ["discard", "--all"]):
        unknown = called(kafka, table, "dead-letters", words[0], "by-hnd", *words[1:], *letters)
        assert (unknown.exit_code, unknown.stdout) == (1, "")
        assert "no group 'by-hnd'" in unknown.stderr
    none = called(kafka, table, "dead-letters", "list", "by-hand", *letters)
    assert (none.exit_code, none.stdout) == (0, "no dead letters\n")


def test_any_number_of_groups_is_listed_by_the_same_requests(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Kafka's offsets, log ends and retention are asked for all groups at once, and are theirs."""
    names, other = [topic(1) for _ in range(3)], topic(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "commitTable": tmp_path / "t"}
    asked, calls, answer = [], [0], Cluster.answer

    def counted(cluster: Cluster, call: Callable[[], Any]) -> Any:
        calls[0] += 1
        return answer(cluster, call)

    monkeypatch.setattr(Cluster, "answer", counted)
    for number, name in enumerate(names):
        produce(name, [(b"k", b"")] * (5 + 2 * number))
        with closing(Cluster(Options.parse({**options, "kafka.group.id": name}))) as cluster:
            store = CommitStore.open(tmp_path / "t", cluster=cluster.cluster_id)
            if number:  # Nothing but Kafka has these.
                cluster.commit_primary({(other, 0): (0, "")})
        store.start(name, store.claim(name, "m", [(name, 0)]), "m", {(name, 0): number})
        calls[0] = 0
        listed = Admin(options).groups()
        asked.append(calls[0])
    assert asked == [asked[0]] * 3
    assert {one.group: (one.state, one.partitions, one.lag) for one in listed} == {
        names[0]: ("Dead", 1, 5), names[1]: ("Empty", 2, 6), names[2]: ("Empty", 2, 7)
    }  # fmt: skip


def test_records_behind_parked_ones_are_counted_by_their_keys(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log as it is, from the parked record to the end, without what is done."""
    name = topic(2)
    for number in (0, 1):
        produce(name, [(b"abc"[n % 3 : n % 3 + 1], b"") for n in range(30)], number)
    options = Options.parse(
        {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": "g"}, table=False
    )
    # a is parked at 3, b at 1; the records of c wait for nothing.
    parked = ParkedKeys({key_hash(b"a"): 3, key_hash(b"b"): 1}, OffsetRanges([(4, 9)]), 0, 29)
    late = replace(parked, first={key_hash(b"a"): 28}, log_start=0)
    counts = count_behind(options, {(name, 0): parked, (name, 1): late})
    of_a, of_b = [12, 15, 18, 21, 24, 27], [10, 13, 16, 19, 22, 25, 28]
    assert counts == {
        (name, 0): BehindParked(len(of_a) + len(of_b)), (name, 1): BehindParked(0)
    }  # fmt: skip
    behind = {key_hash(b"a"): len(of_a), key_hash(b"b"): len(of_b)}
    assert (counts[name, 0].keys, counts[name, 1].keys) == (behind, {})
    monkeypatch.setattr(parked_keys, "_MOST", 5)
    (part,) = count_behind(options, {(name, 0): parked}).values()
    assert not part.is_all
    gone = replace(parked, log_start=100, end=101)
    assert count_behind(options, {(name, 0): gone}) == {(name, 0): BehindParked(0, is_all=False)}
    assert count_behind(options, {}) == {}


def test_records_that_retention_deletes_next_are_counted(
    kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Those that are not done and older than the retention less the look ahead; others are not."""
    aged, kept = topic(3), topic(1)
    day, now = 86_400.0, time.time()
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    # The retention is eight days: what is as old is deleted at once, a record of seven days in one.
    for days in (7.95, 7.9, 7.7, 7.2, 6.0, 1.0):
        stamp = int((now - days * day) * 1000)
        for name, number in ((aged, 0), (aged, 1), (kept, 0)):
            producer.send(name, b"v", partition=number, timestamp_ms=stamp)
    producer.send(aged, b"v", partition=2, timestamp_ms=int((now - 7.95 * day) * 1000))
    producer.close()
    options = Options.parse(
        {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": "g"}, table=False
    )
    oldest = BlockerRecord(is_there=True, written_ms=int((now - 7.95 * day) * 1000))
    assert read_blockers(options, {(aged, 2): 0}) == {(aged, 2): oldest}
    some = OpenOffsets(0, 6, OffsetRanges([(1, 1)]))
    partitions = {(aged, 0): some, (aged, 1): replace(some, first=4), (kept, 0): some}
    with closing(Cluster(options)) as cluster:
        assert find_expiring(cluster, partitions) is None, "no topic has a retention"
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        settings = {"retention.ms": str(round(8 * day * 1000))}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, aged, settings)])
        admin.close()
        until = time.monotonic() + 60
        while not cluster.retention([aged, kept]) and time.monotonic() < until:
            time.sleep(0.1)
        assert cluster.retention([aged, kept]) == {aged: 8 * day}
        # Within an eighth of a day those of 7.95 and 7.9 days; the younger one is done.
        assert find_expiring(cluster, partitions) == ExpiringOffsets(1, day / 8, ((aged, 0),))
        done = OffsetRanges([(0, 2)])
        late = {(aged, 0): replace(some, first=3, done=done), (kept, 0): some}
        assert find_expiring(cluster, late) == ExpiringOffsets(1, day, ((aged, 0),))
        assert find_expiring(cluster, {(aged, 1): replace(some, first=4)}) is None
        all_old = OpenOffsets(0, 1, OffsetRanges())
        found = find_expiring(cluster, {(aged, 2): all_old})
        assert found == ExpiringOffsets(1, day / 8, ((aged, 2),))
        store = CommitStore.open(tmp_path / "commits", cluster=cluster.cluster_id)
    epoch = store.claim("g", "somebody", [(aged, 0)])
    store.start("g", epoch, "somebody", {(aged, 0): 0})
    text = called(kafka, store.target, "lag", "g").stdout
    first = f"Within 3 h, retention deletes up to 2 records of {aged}-0 that are not done. "
    assert text.startswith(f"{first}Raise retention.ms, or work faster\n")
    assert "next:" not in text, "the next command is this one"
    # The next command runs as it is printed, wherever the options were.
    file = tmp_path / "my client.properties"
    file.write_text(f"bootstrap.servers={kafka.bootstrap_servers}\ncommitTable={store.target}\n")
    in_file, place = ["--command-config", str(file)], ["--commit-table", store.target]
    for given, expected in (
        (in_file, in_file),
        ([*in_file, *place], [*in_file, *place]),
    ):
        found = CliRunner().invoke(main, ["groups", "describe", "g", *given])
        words = shlex.split(found.stdout.splitlines()[1])
        assert words == ["next:", "coopconsume", "lag", "g", *expected]
        listed = CliRunner().invoke(main, ["groups", "list", "--json", *given])
        assert shlex.split(json.loads(listed.stdout)[0]["verdict"]["command"]) == words[1:]
        assert CliRunner().invoke(main, words[2:]).stdout.startswith(first)


def test_kafkas_own_tool_shows_the_group(harness: GroupHarness) -> None:
    """A partition of several members has a row for each, with the group's one offset and lag."""
    a, b = shared_by(harness, **{"kafka.client.id": "second"})
    a.say("commit 0")
    a.wait_for("committed")
    b.leave()
    harness.settled(a)
    b = harness.start(**{"kafka.client.id": "second"})
    harness.settled(a, b)
    words = ("--bootstrap-server", harness.kafka.bootstrap_servers, "--describe", "--group")
    done = harness.kafka.run_tool(TOOL, *words, harness.group)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if harness.topic in line]
    assert {(row[2], row[3], row[4], row[5]) for row in rows} == {("0", "1", "10", "9")}
    assert {row[6] for row in rows} == {p.events[-1]["member"] for p in (a, b)}
    assert len(rows) == 2
