"""Handlers with state: what they see, what counts, and what a restart finds."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from commits import CommitStore
from coopconsume import (
    CooperativeConsumer,
    Reject,
    RetryPolicy,
    committed_rows,
    committed_state,
)
from coopconsume.cli import main
from coopconsume.errors import HandlerNotUsable, InvalidOption, StateAhead, TableUnusable
from coopconsume.state.reading import CommittedState
from tests.spark.support import options

pytestmark = [pytest.mark.spark, pytest.mark.broker]


class Totals:
    """Adds up the values of a key, and notes what it saw and left."""

    def __init__(self, folder, fails_at=()):
        self.folder = str(folder)
        self.fails_at = fails_at

    def __call__(self, record, state):
        """Fails once at some offsets, after it has set the state."""
        before = state.get(0)
        state.set(before + int(record.value))
        mark = Path(self.folder, f"failed-{record.partition}-{record.offset}")
        if record.offset in self.fails_at and not mark.exists():
            mark.touch()
            raise RuntimeError("once")
        with Path(self.folder, f"calls-{record.partition}-{record.key.decode()}").open("a") as out:
            out.write(json.dumps([record.offset, before, state.get()]) + "\n")
        return {"key": record.key.decode(), "total": state.get()}


def totals_of(records):
    """What the handlers must have added up."""
    totals = defaultdict(int)
    for key, value in records:
        totals[key.decode()] += int(value)
    return dict(totals)


def chains(folder):
    """The (offset, saw, left) of the calls of each key."""
    return {
        file.name.rsplit("-", 1)[1]: [json.loads(line) for line in file.read_text().splitlines()]
        for file in Path(folder).glob("calls-*")
    }


def run(spark, kafka, folder, name, handler, **more):
    """Handle all that is there."""
    consumer = CooperativeConsumer(options(kafka, folder, name, **more), spark)
    with consumer:
        query = (
            consumer.foreach_with_state(
                handler, state_schema="long", state=str(folder / "state"),
                retry=RetryPolicy(backoff=0.1), concurrency=4,
                output=str(folder / "totals"), output_schema="key string, total long",
            ).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()


def test_running_totals(spark, kafka, topic, produce, tmp_path, monkeypatch):
    """Each record sees what the one before it left, over batches, failures and restarts."""
    monkeypatch.setenv("COOPCONSUME_STATE_DIR", str(tmp_path / "stores"))
    name = topic(2)
    calls = tmp_path / "calls"
    calls.mkdir()
    records = [(b"k%d" % (i % 7), b"%d" % i) for i in range(300)]
    produce(name, records[:200])
    handler = Totals(calls, fails_at=(3, 50))
    run(spark, kafka, tmp_path, name, handler, maxOffsetsPerTrigger="40")
    produce(name, records[200:])
    run(spark, kafka, tmp_path, name, handler)
    for key, calls_of in chains(calls).items():
        assert [saw for _, saw, _ in calls_of] == [0, *(left for *_, left in calls_of[:-1])], key
    totals = totals_of(records)
    assert {key: one[-1][2] for key, one in chains(calls).items()} == totals
    table, group = str(tmp_path / "commits"), f"{name}-group"
    state = committed_state(str(tmp_path / "state"), table, group, spark=spark)
    assert {row.key.decode(): row.value for row in state.collect()} == totals
    # The stores of a host are lost: all of it is restored.
    shutil.rmtree(tmp_path / "stores")
    produce(name, records[:14])
    run(spark, kafka, tmp_path, name, handler)
    assert (
        CommittedState(str(tmp_path / "state"), table, group).get(name, b"k3") == totals["k3"] + 13
    )
    # Offsets that are set back would apply records twice.
    (cluster,) = CommitStore.open(table).clusters(group)
    store = CommitStore.open(table, cluster=cluster)
    place = next(iter(store.state(group)))
    store.reset(group, {place: 5})
    with pytest.raises(StateAhead, match="offsets were set back"):
        run(spark, kafka, tmp_path, name, handler)
    with pytest.raises(HandlerNotUsable, match=r"handler\(record, state\)"):
        run(spark, kafka, tmp_path, name, lambda record: record)


class Times:
    """Keeps the times of a key's records; the key ``bad`` gets a value that does not fit."""

    def __call__(self, record, state):
        """Sees what was left, as the state's type holds it: a float, and times in UTC."""
        found = state.get({"last": None, "all": [], "mean": 0.0})
        assert type(found["mean"]) is float
        assert all(one.utcoffset() == dt.timedelta() for one in found["all"])
        at = dt.datetime(2020, 1, 1, record.offset)  # noqa: DTZ001 - one in UTC
        n = 1.5 if record.key == b"bad" else record.offset
        state.set({"last": at, "all": [*found["all"], at], "mean": record.offset})
        return {"n": n, "at": {"last": at, "all": [at]}, "x": record.offset}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_fits_is_kept_as_its_type_holds_it(
    spark, kafka, topic, produce, tmp_path, monkeypatch, concurrency
):
    """Times by DDL at each depth; what does not fit fails its record, and its state stays."""
    monkeypatch.setenv("COOPCONSUME_STATE_DIR", str(tmp_path / "stores"))
    name = topic(1)
    produce(name, [(key, b"") for key in (b"a", b"a", b"bad", b"a")])
    opts = options(kafka, tmp_path, name)
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach_with_state(
            Times(), state=str(tmp_path / "state"), concurrency=concurrency,
            state_schema="last timestamp, all array<timestamp>, mean double",
            retry=RetryPolicy(max_attempts=1), dead_letter=str(tmp_path / "dead"),
            output=str(tmp_path / "out"), output_mode="merge",
            output_schema="n long, at struct<last: timestamp, all: array<timestamp>>, x double",
        ).trigger(availableNow=True).start()  # fmt: skip
        query.awaitTermination()
        state = query.state(name, b"a")
        assert query.state(name, b"bad") is None
        with pytest.raises(InvalidOption, match="column '_part'"):
            consumer.foreach(print, output=print, output_schema="n long, _part long")
        with pytest.raises(InvalidOption, match="'id' and 'Id'"):
            consumer.foreach(print, output=str(tmp_path / "o"), output_schema="id long, Id long")
    at = [dt.datetime(2020, 1, 1, offset, tzinfo=dt.UTC) for offset in (0, 1, 3)]
    assert state == {"last": at[-1], "all": at, "mean": 3.0}
    out = DeltaTable(str(tmp_path / "out")).to_pyarrow_table(columns=["n", "at", "x"]).to_pylist()
    assert sorted(out, key=lambda row: row["n"]) == [
        {"n": when.hour, "at": {"last": when, "all": [when]}, "x": float(when.hour)} for when in at
    ]
    (letter,) = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table().to_pylist()
    assert "column n: 1.5" in letter["reason"]


class Counts:
    """Counts the records of a key, on an event loop; the key ``gone`` is forgotten at once."""

    async def __call__(self, record, state):
        """Rejects a record after it has changed the state."""
        await asyncio.sleep(0)
        found = state.get({"n": 0, "last": None})
        state.set({"n": found["n"] + 1, "last": str(record.offset)})
        if record.value == b"reject":
            raise Reject("no")
        if record.key == b"gone":
            state.ttl(0.001)


def test_columns_coroutines_dead_letters_and_lifetimes(
    spark, kafka, topic, produce, tmp_path, monkeypatch
):
    """A dead letter changes nothing, and neither does a record without a key."""
    monkeypatch.setenv("COOPCONSUME_STATE_DIR", str(tmp_path / "stores"))
    name = topic(1)
    values = [b"reject" if i % 5 == 0 else b"" for i in range(40)]
    produce(name, [(b"k%d" % (i % 4), value) for i, value in enumerate(values)])
    produce(name, [(None, b""), (b"gone", b"")])
    opts = options(kafka, tmp_path, name, maxOffsetsPerTrigger="15")
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach_with_state(
            Counts(), state_schema="n long, last string", state=str(tmp_path / "state"),
            concurrency=8, retry=RetryPolicy(max_attempts=1), dead_letter=str(tmp_path / "dead"),
        ).trigger(availableNow=True).start()  # fmt: skip
        query.awaitTermination()
        assert query.state(name, b"k2") == {"n": 8, "last": "38"}
        assert query.state(name, b"gone") is None
    table, group = opts["commitTable"], opts["kafka.group.id"]
    words = [group, "--state", str(tmp_path / "state"), "--commit-table", table]
    one = [*words, "--topic", name, "--key", "k2", "--json"]
    assert json.loads(CliRunner().invoke(main, ["state", "get", *one]).stdout)["n"] == 8
    text = CliRunner().invoke(main, ["state", "get", *one[:-1]])
    assert (text.exit_code, text.stdout) == (0, '{"n": 8, "last": "38"}\n')
    gone = CliRunner().invoke(main, ["state", "get", *words, "--topic", name, "--key", "gone"])
    assert (gone.exit_code, gone.stdout) == (1, "")
    dumped = json.loads(CliRunner().invoke(main, ["state", "dump", *words, "--json"]).stdout)
    assert {row["key"]: row["value"]["n"] for row in dumped} == dict.fromkeys(
        ("k0", "k1", "k2", "k3"), 8
    )
    assert "k3" in CliRunner().invoke(main, ["state", "dump", *words]).stdout
    dead = committed_rows(str(tmp_path / "dead"), table, group)
    reasons = {row["_offset"]: row["reason"] for row in dead.to_pylist()}
    assert sorted(reasons) == [*range(0, 40, 5), 40]
    assert "has no key" in reasons[40]
    with pytest.raises(TableUnusable, match="give the same state_schema"):
        CooperativeConsumer(opts, spark).foreach_with_state(
            Counts(), state_schema="long", state=str(tmp_path / "state")
        )
