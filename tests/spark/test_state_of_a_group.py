"""One group has one state: members that live together, and later starts, on a real broker."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from coopconsume import CooperativeConsumer
from coopconsume.cli import main
from coopconsume.errors import GroupRefused, TableUnusable
from coopconsume.state.reading import CommittedState
from tests.spark.support import PATIENCE, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def count(_record, state):
    """Counts the records of a key."""
    state.set(state.get(0) + 1)


def ignore(_record):
    """Keeps no state."""


def with_state(consumer, folder, schema="long"):
    """A job that counts in a folder."""
    return consumer.foreach_with_state(count, state_schema=schema, state=str(folder))


def test_a_group_has_one_state_over_members_and_starts(spark, kafka, topic, produce, tmp_path):
    """A typo, a removed folder, no state: each is refused, and those at work go on."""
    name = topic(2)
    group, folder = f"{name}-group", tmp_path / "state"
    opts = options(kafka, tmp_path, name, slots="1")
    records = [(b"k%d" % (i % 7), b"%d" % i) for i in range(70)]
    produce(name, records)

    def totals():
        found = CommittedState(str(folder), opts["commitTable"], group).rows().to_pylist()
        return sum(row["value"] for row in found)

    with CooperativeConsumer(opts, spark) as consumer:
        query = with_state(consumer, folder).start()
        store = consumer._subscription.joined().store
        until(lambda: any(folder.glob("changelog/_delta_log/*.json")) and totals() == 70)
        epoch = store.assignment(group).epoch
        others = [
            (
                "staet",
                lambda other: with_state(other, tmp_path / "staet").start(),
                "is missing, th",
            ),
            ("none", lambda other: other.foreach(ignore).start(), "it keeps no state, that of the"),
        ]
        for _, begin, words in others:
            with (
                CooperativeConsumer(opts, spark) as other,
                pytest.raises(GroupRefused, match=words),
            ):
                begin(other)
        assert store.assignment(group).epoch == epoch  # They have not even joined.
        with (
            CooperativeConsumer(opts, spark) as other,
            pytest.raises(TableUnusable, match="its values are int64, not string"),
        ):
            with_state(other, folder, "string").start()
        with (
            CooperativeConsumer(opts, spark) as other,
            pytest.raises(GroupRefused, match="it keeps no state"),
        ):
            until(lambda: other.poll(1).count())
        produce(name, records)
        until(lambda: totals() == 140)
        query.stop()
    for _, begin, words in others:
        with CooperativeConsumer(opts, spark) as other, pytest.raises(GroupRefused, match=words):
            begin(other)
    shutil.move(folder, tmp_path / "moved")
    with (
        CooperativeConsumer(opts, spark) as other,
        pytest.raises(GroupRefused, match=rf"its state at {folder} is missing, that of the group"),
    ):
        with_state(other, folder).start()
    folder = tmp_path / "moved"  # It is the same table.
    produce(name, records)
    with CooperativeConsumer(opts, spark) as consumer:
        query = with_state(consumer, folder).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
    assert totals() == 210
    switch = [
        "state", "switch", group, "--json", "--bootstrap-servers",
        opts["kafka.bootstrap.servers"], "--commit-table", opts["commitTable"],
    ]  # fmt: skip
    for more in ([], ["--execute"]):
        shown = json.loads(CliRunner().invoke(main, [*switch, *more]).stdout)
        assert (shown["executed"], shown["state"]) == (bool(more), str(folder))
        if not more:
            with (
                CooperativeConsumer(opts, spark) as other,
                pytest.raises(GroupRefused, match="is missing"),
            ):
                with_state(other, tmp_path / "new").start()
    folder = tmp_path / "new"
    produce(name, records)
    with CooperativeConsumer(opts, spark) as consumer:
        query = with_state(consumer, folder).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
    assert totals() == 70


def test_a_state_that_is_added_later_is_an_explicit_choice(spark, kafka, topic, produce, tmp_path):
    """Over records that were processed without one, by this library or by another consumer."""
    name = topic(1)
    produce(name, [(b"k", b"v")] * 10)
    opts = options(kafka, tmp_path, name, slots="1")
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(ignore).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
    with (
        CooperativeConsumer(opts, spark) as consumer,
        pytest.raises(GroupRefused, match="of the group were processed without state: keep none"),
    ):
        with_state(consumer, tmp_path / "state").start()
    assert not (tmp_path / "state").exists()
    # The commit table is another one, so that the group goes on from its offsets in Kafka.
    again = opts | {"commitTable": str(tmp_path / "other commits")}
    with CooperativeConsumer(again, spark) as consumer:
        query = with_state(consumer, tmp_path / "state").trigger(availableNow=True).start()
        with pytest.raises(GroupRefused, match="of the group were processed without state"):
            query.awaitTermination(PATIENCE)
