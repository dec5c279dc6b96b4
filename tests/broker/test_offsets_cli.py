"""``coopconsume offsets`` and ``lag`` on a real broker."""

from __future__ import annotations

import json
import re
import shlex
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient, TopicPartition

from assignors import key_hash
from commits import CommitStore, PartitionCommits, Pending
from commits.model import PARKED_MS
from coopconsume.cli import main
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options
from coopconsume.state.changelog import Changelog
from coopconsume.state.note import begin_with_state
from coopconsume.state.reading import CommittedState
from coopconsume.state.schema import StateSchema

if TYPE_CHECKING:
    from click.testing import Result

    from commits import Epoch
    from tests.broker.group_harness import GroupHarness
    from tests.conftest import Produce

pytestmark = pytest.mark.broker


class OffsetsCli:
    """An operator at the commands, for one group that has done part of ten records."""

    def __init__(self, harness: GroupHarness) -> None:
        self.harness = harness
        self.at = (harness.topic, 0)
        self.cluster = Cluster(Options.parse(harness.options))
        self.ids = self.cluster.topic_ids([harness.topic])
        self.epoch = self.opened()
        failed = Pending(
            4, key_hash=key_hash(b"4"), attempts=3, due_ms=4_000_000_000_000, error="no"
        )
        harness.store.commit(
            harness.group, self.epoch, "m", {self.at: [(0, 3), (6, 7)]}, pending={self.at: [failed]}
        )
        self.failed = failed

    def opened(self, previous: Epoch | None = None) -> Epoch:
        """An epoch whose member is gone from Kafka."""
        return self.harness.store.open_epoch(
            self.harness.group, {"m": [self.at]}, previous=previous, topic_ids=self.ids
        )

    def call(self, *words: str, table: Path | None = None) -> Result:
        """Call a command with the place it needs."""
        options = self.harness.options
        return CliRunner().invoke(main, [
            *words, "--bootstrap-servers", options["kafka.bootstrap.servers"],
            "--commit-table", str(table or options["commitTable"]),
        ])  # fmt: skip

    def answer(self, *words: str, table: Path | None = None) -> Any:
        """What a command answers with --json."""
        result = self.call(*words, "--json", table=table)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def reset(self, *words: str) -> Any:
        """Carry out a reset of the partition; what it says of it."""
        found = self.answer("offsets", "reset", self.harness.group, "--all-topics", *words)
        return found["partitions"][0]

    @property
    def state(self) -> PartitionCommits:
        """What the commit table says of the partition."""
        return self.harness.store.state(self.harness.group)[self.at]

    @property
    def primary(self) -> tuple[int, bool]:
        """Kafka's offset, and whether it is ours."""
        held = self.cluster.primary()[self.at]
        return held.offset, held.ours


@pytest.fixture
def cli(harness: GroupHarness):
    """A group that has done part of ten records."""
    found = OffsetsCli(harness)
    yield found
    found.cluster.close()


def test_a_group_is_shown_with_its_gaps_and_what_holds_it(cli: OffsetsCli, tmp_path: Path) -> None:
    """As data and as tables, with ages; and as a picture."""
    group = cli.harness.group
    (shown,) = cli.answer("offsets", "show", group)["partitions"]
    assert (shown["stable_offset"], shown["ranges"], shown["lag"]) == (4, [[6, 7]], 4)
    assert (shown["log_start"], shown["end_offset"], shown["primary_offset"]) == (0, 10, None)
    assert [p["attempts"] for p in shown["pending"]] == [3]
    (gap,) = cli.answer("offsets", "gaps", group)
    assert (gap["first"], gap["last"], gap["offsets"]) == (4, 5, 2)
    since = datetime.fromisoformat(gap["since"])
    assert since <= datetime.now(UTC)
    (lag,) = cli.answer("lag", group)
    assert lag["lag"] == 4
    failed = datetime.fromisoformat(lag["blocker"]["failing_since"])
    assert (since - failed) // timedelta(milliseconds=1) == 0, "its row is that of the gap"
    assert lag["blocker"] == {
        "offset": 4, "state": "failed", "key_hash": key_hash(b"4"), "attempts": 3,
        "since": gap["since"],
        "due": "2096-10-02T07:06:40+00:00", "error": "no", "done_behind": 2, "open_behind": 1,
        "key": "4", "deleted_by": "", "ordering_key": None,
        "has_ordering_key": False, "knows_ordering_key": False, "failing_since": failed.isoformat(),
    }  # fmt: skip
    assert cli.answer("offsets", "lag", group) == [lag]
    drawn = tmp_path / "map.svg"
    text = cli.call("offsets", "show", group, "--picture", str(drawn))
    row = rf"^{cli.harness.topic}-0 +0 +4 +10 +2 +1 +1 +1 +4 +- *$"
    assert re.search(row, text.stdout, re.MULTILINE)
    assert ET.parse(drawn).getroot().tag.endswith("svg")
    table = cli.call("lag", group).stdout
    assert re.search(rf"^{cli.harness.topic}-0 +4 +4 +failed +4 +3 ", table, re.MULTILINE)
    assert re.match(
        r"Nobody has worked on this group since [-: 0-9]+ UTC: 4 records wait\. If you run its "
        r"job, start it again; it ran last as .+\n"
        rf"next: coopconsume groups describe {group} .*\n"
        rf"also: Held by 4 \({cli.harness.topic}-0@4\) since [-: 0-9]+ UTC: no "
        r"\(attempt 3, next in \d+ d\)\n\nPARTITION ",
        table,
    )
    described = cli.call("groups", "describe", group).stdout
    assert re.search(rf"^{cli.harness.topic}-0 +4 +failed +4 +3 .* no$", described, re.MULTILINE)
    admin = KafkaAdminClient(bootstrap_servers=cli.harness.options["kafka.bootstrap.servers"])
    admin.delete_records({TopicPartition(cli.harness.topic, 0): 5})
    admin.close()
    (cut,) = cli.answer("lag", group)
    assert (cut["blocker"]["key"], cut["blocker"]["deleted_by"]) == (None, "retention")
    described = cli.call("groups", "describe", group).stdout
    assert "deleted by retention" in described
    lost = f"Retention has deleted 1 offset of {cli.harness.topic}-0 that was not done. "
    assert described.startswith(lost)
    missing = cli.call("offsets", "show", f"{group}x")
    assert (missing.exit_code, f"did you mean {group!r}?" in missing.stderr) == (1, True)


def test_a_reset_is_printed_first_and_then_done_in_both_places(cli: OffsetsCli) -> None:
    """A dry run changes nothing; what is done counts for the log, Kafka, and earlier members."""
    before = len(cli.harness.store.history(cli.harness.group))
    dry = cli.reset("--to-offset", "2")
    assert (dry["stable_offset"], dry["new_stable_offset"]) == (4, 2)
    assert (dry["again"], dry["skipped"]) == (4, 0)
    assert len(cli.harness.store.history(cli.harness.group)) == before
    assert cli.at not in cli.cluster.primary()
    text = cli.call(
        "offsets", "reset", cli.harness.group, "--topic", f"{cli.harness.topic}:0",
        "--to-offset", "2", "--execute",
    )  # fmt: skip
    assert "4 records will be processed again, 0 will be skipped" in text.stdout
    assert cli.state == PartitionCommits(2)
    assert not cli.harness.store.pending(cli.harness.group)
    assert cli.primary == (2, True)
    assert cli.harness.store.current_epoch(cli.harness.group) is None
    written = cli.harness.store.history(cli.harness.group)[-1]
    assert (written["kind"], "@" in written["member"]) == ("reset", True)


def test_every_target(cli: OffsetsCli, produce: Produce) -> None:
    """Earliest, latest, a time, Kafka's offset, the log's, and an offset outside of the log."""
    assert cli.reset("--to-latest", "--execute")["skipped"] == 4
    assert cli.state == PartitionCommits(10)
    time.sleep(0.05)
    moment = datetime.now(UTC)
    time.sleep(0.05)
    produce(cli.harness.topic, [(b"k", b"")] * 5)
    assert cli.reset("--to-earliest", "--no-count")["again"] == 10
    assert cli.reset("--to-datetime", moment.isoformat())["new_stable_offset"] == 10
    assert cli.reset("--to-datetime", "2100-01-01")["new_stable_offset"] == 15
    beyond = cli.reset("--to-offset", "99")
    assert (beyond["new_stable_offset"], beyond["skipped"]) == (15, 5)
    assert beyond["note"] == "99 is not in the log, which goes 0 to 15"
    cli.cluster.commit_primary({cli.at: (7, "somebody's")})
    assert cli.reset("--to-log", "--execute")["new_stable_offset"] == 10
    assert cli.primary == (10, True)
    cli.cluster.commit_primary({cli.at: (7, "somebody's")})
    assert cli.reset("--to-primary", "--execute")["again"] == 3
    assert (cli.state, cli.primary) == (PartitionCommits(7), (7, True))


def test_selected_records_are_done_again_and_all_else_stays(cli: OffsetsCli) -> None:
    """What failed elsewhere keeps its attempts."""
    found = cli.reset("--undone", "1,6", "--done", "5", "--execute")
    assert (found["again"], found["skipped"], found["new_stable_offset"]) == (2, 1, 1)
    assert cli.state == PartitionCommits(1, [(2, 3), (5, 5), (7, 7)])
    assert cli.harness.store.pending(cli.harness.group) == {cli.at: {4: cli.failed}}
    cli.opened()
    assert cli.state.stable_offset == 1


def test_what_is_noted_of_a_former_topic_is_not_moved_to_the_one_that_has_its_name(
    cli: OffsetsCli, produce: Produce
) -> None:
    """It is neither shown nor written: no record of the new topic counts as done."""
    name = cli.harness.topic
    cli.harness.recreate_topic()
    produce(name, [(b"k", b"v")] * 20)
    (shown,) = cli.answer("offsets", "show", cli.harness.group)["partitions"]
    assert (shown["stable_offset"], shown["committed_above"]) == (None, 0)
    refused = cli.call(
        "offsets", "reset", cli.harness.group, "--all-topics", "--done", "5", "--execute"
    )
    assert refused.exit_code != 0
    cli.reset("--to-offset", "2", "--execute")
    assert cli.state == PartitionCommits(2)
    cli.ids = cli.cluster.topic_ids([name])
    cli.opened()
    assert cli.state == PartitionCommits(2), "the reset is of the new topic"
    assert not cli.harness.store.pending(cli.harness.group)


def test_failed_records_have_a_next_command_and_decisions_say_who_applies_them(
    cli: OffsetsCli,
) -> None:
    """Commands run as they are shown; what is due waits for a job, as nobody works on the group."""
    group, topic = cli.harness.group, cli.harness.topic
    due = replace(cli.failed, due_ms=5)
    parked = Pending(5, key_hash=key_hash(b"5"), attempts=2, due_ms=PARKED_MS, error="no", key="5")
    cli.harness.store.commit(group, cli.epoch, "m", {}, pending={cli.at: [due, parked]})
    listed = cli.call("records", "list", group)
    assert re.search(rf"^{topic}-0@4 .* failed .* when a job runs ", listed.stdout, re.MULTILINE)
    assert "next: " not in listed.stdout, "a pipe gets the table alone"
    command, others = listed.stderr.splitlines()
    at = f"--topic {topic} --partition 0 --offset 5 --bootstrap-servers "
    assert command.startswith(f"next: coopconsume records retry {group} {at}"), "parked ones first"
    assert others == "skip in place of retry; --execute applies it"
    dry = CliRunner().invoke(main, shlex.split(command)[2:])
    assert dry.stdout.splitlines() == [
        f"{topic}-0@5: would be retried from its first attempt on",
        "1 record; dry run, nothing was changed: add --execute to apply the change",
    ]
    assert cli.call("records", "list", group, "--json").stderr == ""
    done = cli.call("records", "retry", group, "--all", "--execute").stdout
    assert done.splitlines() == [
        f"{topic}-0@4: will be retried",
        f"{topic}-0@5: will be retried from its first attempt on",
        (
            "2 records: the decision was written down; no job runs, so the next one to start "
            "applies it"
        ),
    ]
    assert cli.call("records", "list", group).stderr == "", "there is a decision on each"
    described = cli.call("groups", "describe", group).stdout
    assert re.search(
        r"^nobody works since [-: 0-9]+ UTC, last commit [-: 0-9]+ UTC, last members: m$",
        described, re.MULTILINE,
    )  # fmt: skip
    assert re.search(rf"^{topic}-0 .* when a job runs ", described, re.MULTILINE)
    assert re.search(
        rf"^{topic}-0 .* when a job runs ", cli.call("lag", group).stdout, re.MULTILINE
    )
    member = cli.harness.start()
    cli.harness.settled(member)
    done = cli.call("records", "skip", group, "--all", "--execute").stdout
    assert done.endswith("written down; the job that runs applies it in about 2 s\n")
    member.leave()


def test_nothing_is_moved_under_members_or_claims(cli: OffsetsCli) -> None:
    """A live member and a claim by hand are named; a claim whose process is gone can be ended."""
    cli.harness.store.claim(cli.harness.group, "by-hand", [(cli.harness.topic, 1)])
    words = ("offsets", "reset", cli.harness.group, "--all-topics", "--to-earliest")
    refused = cli.call(*words, "--execute")
    assert refused.exit_code == 1
    assert "standalone claims of by-hand" in refused.stderr
    assert "--end-claims" in refused.stderr
    assert cli.state.stable_offset == 4
    assert cli.call(*words, "--end-claims", "--execute").exit_code == 0
    assert cli.state.stable_offset == 0
    member = cli.harness.start()
    cli.harness.settled(member)
    refused = cli.call(*words, "--execute")
    assert refused.exit_code == 1
    assert "is active (members " in refused.stderr
    member.leave()


def test_a_group_moves_to_another_table_exactly(cli: OffsetsCli, tmp_path: Path) -> None:
    """Exported and imported under another name: ranges, attempts and due times are the same."""
    document, table = tmp_path / "shop.json", tmp_path / "other"
    assert cli.call("offsets", "export", cli.harness.group, str(document)).exit_code == 0
    words = ("offsets", "import", str(document), "--group", "new")
    result = cli.call(*words, table=table)
    assert result.exit_code == 0
    assert f"no commit table at {table}: --execute creates it, with group new" in result.stdout
    assert not table.exists()
    CommitStore.open(table)
    dry = cli.answer(*words, table=table)
    assert (dry["group"], dry["executed"], dry["partitions"][0]["skipped"]) == ("new", False, 6)
    cli.answer(*words, "--execute", table=table)
    store = CommitStore.open(table, cluster=cli.cluster.cluster_id)
    assert store.state("new") == {cli.at: cli.state}
    assert store.pending("new") == {cli.at: {4: cli.failed}}
    assert store.topic_ids("new") == {cli.at: cli.ids[cli.harness.topic]}
    again = cli.call("offsets", "export", "new", "-", table=table).stdout
    assert json.loads(again)["partitions"] == json.loads(document.read_text())["partitions"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_key_in_the_commit_table_is_shown_and_moves_with_its_record(
    cli: OffsetsCli, tmp_path: Path, keep: bool
) -> None:
    """No record is read for it; an operator may leave it out of another table."""
    group, document, table = cli.harness.group, tmp_path / "shop.json", tmp_path / "other"
    other = f"{group}-moved"  # Kafka has offsets of groups of other tests
    failed = replace(cli.failed, key="of the table")
    cli.harness.store.commit(group, cli.epoch, "m", {}, pending={cli.at: [failed]})
    (lag,) = cli.answer("lag", group)
    assert lag["blocker"]["key"] == "of the table"
    assert "of the table" in cli.call("groups", "describe", group).stdout
    assert cli.call("offsets", "export", group, str(document)).exit_code == 0
    words = ("--execute", "--option", f"keepFailedKeys={str(keep).lower()}")
    cli.answer("offsets", "import", str(document), "--group", other, *words, table=table)
    store = CommitStore.open(table, cluster=cli.cluster.cluster_id)
    assert store.pending(other) == {cli.at: {4: failed if keep else cli.failed}}
    (lag,) = cli.answer("lag", other, table=table)
    assert lag["blocker"]["key"] == ("of the table" if keep else "4")


@pytest.mark.parametrize("command", ["reset", "show", "gaps", "lag", "export"])
def test_a_misspelt_group_is_an_error(cli: OffsetsCli, command: str, tmp_path: Path) -> None:
    """With the close name, also beside a topic; a new one is named so."""
    wrong = f"{cli.harness.group[:-1]}x"
    more = {"reset": ["--to-earliest"], "export": [str(tmp_path / "out.json")]}.get(command, [])
    words = ("offsets", command, wrong, *more, "--topic", f"{cli.harness.topic}:0")
    refused = cli.call(*words)
    assert refused.exit_code != 0
    assert f"did you mean '{cli.harness.group}'?" in refused.stderr
    assert refused.stdout == ""
    if command == "reset":
        assert [move["partition"] for move in cli.answer(*words, "--create")["partitions"]] == [0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to-earliest"], "give --topic, or --all-topics"),
        (["--all-topics"], "give one of --to-earliest"),
        (["--all-topics", "--to-earliest", "--to-latest"], "give one of --to-earliest"),
        (["--all-topics", "--to-datetime", "noon"], "write it as 2026-"),
        (["--all-topics", "--undone", "9-3"], "write it as 17 or 20-29"),
        (["--topic", "t:x", "--to-latest"], "write it as topic or topic:0,1"),
    ],
)
def test_wrong_usage_is_reported_before_any_request(words: list[str], said: str) -> None:
    """No broker is needed to say so."""
    result = CliRunner().invoke(main, ["offsets", "reset", "g", *words])
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_checkpoint_is_imported_into_a_group_with_a_name(tmp_path: Path) -> None:
    """No broker is needed to say that the group is missing, or that the folder is another one."""
    words = ["offsets", "import", str(tmp_path), "-o", "kafka.bootstrap.servers=127.0.0.1:1"]
    unnamed = CliRunner().invoke(main, words)
    assert (unnamed.exit_code, "give --group" in unnamed.stderr) == (2, True), unnamed.output
    other = CliRunner().invoke(main, [*words, "--group", "g"])
    assert other.exit_code == 2
    assert "it has no folders commits and offsets" in other.stderr


def test_a_checkpoint_is_imported_without_a_topic_that_is_gone(
    cli: OffsetsCli, tmp_path: Path
) -> None:
    """The remedy names the others; until then nothing is created, and no record is read."""
    topic, table, folder = cli.harness.topic, tmp_path / "new", tmp_path / "checkpoint"
    for name, text in (
        ("offsets", f'v1\n{{}}\n{{"{topic}":{{"0":5}},"gone":{{"0":7}}}}'), ("commits", "v1\n{}"),
    ):  # fmt: skip
        (folder / name).mkdir(parents=True)
        (folder / name / "0").write_text(text)
    words = ("offsets", "import", str(folder), "--group", f"{cli.harness.group}-query", "--execute")
    refused = cli.call(*words, table=table)
    assert refused.exit_code == 2
    assert f"gone-0: not in this cluster; give --topic {topic} for the others" in refused.stderr
    assert not table.exists()
    found = cli.answer(*words, "--topic", topic, table=table)
    (moved,) = found["partitions"]
    assert (found["counted"], moved["done_by_query"], moved["again"]) == ("offsets", 5, 0)
    assert (moved["new_stable_offset"], moved["note"]) == (5, "")


def test_a_reset_says_what_becomes_of_the_state(cli: OffsetsCli, tmp_path: Path) -> None:
    """A group with state is not moved without a choice; the state goes back with the offsets."""
    topic, group, store = cli.harness.topic, cli.harness.group, cli.harness.store
    changelog = Changelog(str(tmp_path / "state"), StateSchema(pa.int64()))
    cli.harness.store.set_setting(f"state:{group}", {"any_next": True})
    begin_with_state(store, group, cli.cluster.cluster_id, "m", changelog)
    commit = next(iter(store.counted_commits(group)))
    rows = [
        {
            "key": b"k", "value": 10 + offset, "expires_at": None, "_topic": topic,
            "_topic_id": cli.ids[topic], "_partition": 0, "_offset": offset,
            "_key_hash": key_hash(b"k"), "_commit": commit,
        }
        for offset in range(4)
    ]  # fmt: skip
    changelog.append(pa.Table.from_pylist(rows, changelog.schema.changelog))
    place = ("offsets", "reset", group, "--all-topics", "--execute")
    refused = cli.call(*place, "--to-offset", "2")
    assert refused.exit_code == 1
    assert "--restore-state" in refused.stderr
    assert cli.state.stable_offset == 4
    single = cli.call(*place, "--undone", "1", "--restore-state")
    assert "single offsets" in single.stderr
    shown = cli.call(*place[:-1], "--to-offset", "2", "--restore-state")
    assert shown.stdout.splitlines()[1].split() == [f"{topic}-0", "2", "1", "1"]
    done = cli.answer(*place, "--to-offset", "2", "--restore-state")
    assert done["state"] == [
        {"topic": topic, "partition": 0, "below": 2, "keys": 1, "keys_after": 1}
    ]
    assert cli.state.stable_offset == 2
    state = CommittedState(changelog.path, cli.harness.options["commitTable"], group)
    assert state.get(topic, b"k") == 11
    assert cli.answer(*place, "--to-offset", "3", "--keep-state")["state"] is None
    assert cli.answer(*place, "--to-earliest", "--clear-state")["state"][0]["keys_after"] == 0
    assert state.get(topic, b"k") is None
