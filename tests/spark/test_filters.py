"""Filters of jobs and of `poll`, on a real broker, a real Spark and a real Delta table."""

from __future__ import annotations

from functools import partial

import pytest

from coopconsume import CooperativeConsumer, TopicPartition
from coopconsume.errors import InvalidOption
from coopconsume.testing.history import read_history
from tests.spark.support import PATIENCE, Recorded, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]

KEYS = [b"a", b"b", None, b"\x00\xff", b"x-1", b"x-2"]
#: By filter the condition that its records meet, of (offset, key, value, headers).
FILTERS = {
    "allow": (
        {"allowKeys": "a", "allowKeyPrefixes": "x-", "denyKeys": "x-2"},
        lambda _, key, *__: key in (b"a", b"x-1"),
    ),
    "deny": (
        {"denyKeysFile": "keys", "keyEncoding": "hex"},
        lambda _, key, *__: key not in (b"\x00\xff", b"b"),
    ),
    "many": (
        {"allowKeys": [*(f"{n:04x}" for n in range(200)), "00ff", "61"], "keyEncoding": "hex"},
        lambda _, key, *__: key in (b"\x00\xff", b"a"),
    ),
    "size": (
        {"minRecordBytes": 3, "maxRecordBytes": 4},
        lambda _, key, value, __: 3 <= len(key or b"") + len(value or b"") <= 4,
    ),
    "header": (
        {"headerEquals": {"kind": "o'k"}},
        lambda *record: ("kind", b"o'k") in record[3],
    ),
    "where": (
        {"where": "CAST(value AS STRING) LIKE '%1' AND size(headers) > 0 -- null is false"},
        lambda _, __, value, headers: (value or b"").endswith(b"1") and bool(headers),
    ),
}  # fmt: skip


def records(count):
    """Keys, values and headers: null keys and values, binary keys, headers twice or not at all."""
    some = [[], [("kind", b"o'k")], [("kind", b"no")], [("kind", b"no"), ("kind", b"o'k")]]
    found = []
    for i in range(count):
        key = KEYS[i % 6]
        value = None if key and i % 11 == 0 else b"v%d" % i
        found.append((key, value, some[i % 4] if i % 3 else []))
    return found


def fail_once(failing, record):
    """Fails for some offsets at the first attempt."""
    if record.offset in failing and record.attempt == 1:
        raise RuntimeError("at first")


@pytest.fixture
def filled(topic, kafka, _producer):
    """A topic of one partition with 240 records, and what is in it."""
    name, all_of_them = topic(), records(240)
    for key, value, headers in all_of_them:
        _producer.send(name, key=key, value=value, headers=headers, partition=0)
    _producer.flush()
    return name, all_of_them


@pytest.fixture
def chosen(tmp_path):
    """The options of a filter."""
    (tmp_path / "keys").write_text("00ff\n62\n", encoding="utf-8")
    in_file = {"denyKeysFile": str(tmp_path / "keys")}
    return lambda kind: FILTERS[kind][0] | (in_file if kind == "deny" else {})


def passing(kind, every):
    """The offsets of the records that pass."""
    expected = [o for o, record in enumerate(every) if FILTERS[kind][1](o, *record)]
    assert 0 < len(expected) < 240
    return expected


@pytest.mark.parametrize("kind", ["deny", "where"])
def test_handlers_get_what_passes_and_the_rest_is_done(
    spark, kafka, filled, tmp_path, chosen, kind
):
    """Jobs and the commit log agree on which records passed; no offset stays behind."""
    name, every = filled
    expected = passing(kind, every)
    failing = frozenset(expected[::5])
    opts = options(kafka, tmp_path, name, maxOffsetsPerTrigger=100) | chosen(kind)
    events = []
    with CooperativeConsumer(opts, spark) as consumer:
        handler = Recorded(tmp_path / "history", partial(fail_once, failing))
        job = consumer.foreach(handler).trigger(availableNow=True)
        query = job.onProgress(events.append).start()
        assert query.awaitTermination(PATIENCE)
        calls = read_history(tmp_path / "history")
        assert sorted({call.offset for call in calls}) == expected
        assert len(calls) == len(expected) + len(failing)
        assert query.lastProgress["totals"]["filtered"] == 240 - len(expected)
        assert sum(p["numFilteredRows"] for p in events) == 240 - len(expected)
        store, group = consumer._subscription.joined().store, opts["kafka.group.id"]
        assert store.state(group)[name, 0].stable_offset == 240
        filtered = sum(p["filtered"] for e in store.history(group) for p in e["partitions"])
        assert filtered == 240 - len(expected)
        (epoch,) = [e for e in store.history(group) if e["kind"] == "epoch"]
        assert epoch["detail"]["filter"] == str(consumer.options.record_filter)


def test_frames_have_what_passes_and_the_rest_is_done(spark, kafka, filled, tmp_path, chosen):
    """Each filter by `poll`, in a group of its own."""
    name, every = filled
    for kind in FILTERS:
        expected = passing(kind, every)
        opts = options(kafka, tmp_path, name) | chosen(kind) | {"kafka.group.id": f"{name}-{kind}"}
        with CooperativeConsumer(opts, spark) as consumer:
            frame = consumer.poll(PATIENCE)
            assert "headers" not in frame.columns
            assert frame.schema == consumer.poll(0).schema
            assert sorted(row["offset"] for row in frame.collect()) == expected, kind
            (answer,) = consumer.commit(frame).values()
            assert answer.stable_offset == 240
            (commit,) = [
                e["partitions"]
                for e in consumer._subscription.joined().store.history(opts["kafka.group.id"])
                if e["kind"] == "commit"
            ]
            assert [(p["count"], p["filtered"]) for p in commit] == [(240, 240 - len(expected))]


def test_a_filter_may_change_between_starts_and_drops_pending_records(
    spark, kafka, filled, tmp_path, caplog
):
    """What was pending is dropped at its next read; a poll commits what is dropped alone."""
    name, _ = filled
    group = f"{name}-group"
    base = options(kafka, tmp_path, name)
    failing = frozenset({4, 10})  # of the key x-1
    with CooperativeConsumer(base, spark) as consumer:
        handler = Recorded(tmp_path / "first", partial(fail_once, failing))
        query = consumer.foreach(handler).trigger(processingTime="1 hour").start()
        store, tp = consumer._subscription.joined().store, (name, 0)
        until(lambda: len(store.state(group)[tp].ranges) == 240 - 4 - 40)  # all other keys
        query.stop()
        assert 4 in store.pending(group)[tp]
        assert store.state(group)[tp].stable_offset == 4
    with CooperativeConsumer(base | {"denyKeyPrefixes": "x-"}, spark) as consumer:
        handler = Recorded(tmp_path / "second")
        query = consumer.foreach(handler).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        message = "the filter of epoch 1 was none, this member's is denyKeys=x-*"
        assert caplog.text.count(message) == 1
        store = consumer._subscription.joined().store
        assert store.state(group)[tp].stable_offset == 240
        assert store.pending(group) == {}
        assert not (tmp_path / "second").exists()  # all that was left is dropped
    nothing = base | {"kafka.group.id": f"{name}-none", "where": "CAST(NULL AS BOOLEAN)"}
    with CooperativeConsumer(nothing, spark) as consumer:
        assert consumer.poll(0).isEmpty()
        (lag,) = consumer.lag().collect()
        assert (lag.stable_offset, lag.lag) == (240, 0)
        assert consumer.commit() == {}
        (place,) = consumer.assignment()
        assert place == TopicPartition(name, 0)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nope = 1", "UNRESOLVED_COLUMN"),
        ("partition >", "PARSE_SYNTAX_ERROR"),
        ("partition", "DATATYPE_MISMATCH"),
        ("partition > 1) OR (true", "PARSE_SYNTAX_ERROR"),
        ("sum(partition) > 1", "INVALID_WHERE_CONDITION"),
        ("coopconsume_test_dice(true)", "deterministic"),
    ],
)
def test_a_where_that_spark_refuses_is_reported_before_anything_starts(
    spark, tmp_path, where, words
):
    """The error names the option, what was found, the columns, and Spark's reason."""
    from pyspark.sql import functions as F

    dice = F.udf(lambda passes: passes, "boolean").asNondeterministic()
    spark.udf.register("coopconsume_test_dice", dice)
    with pytest.raises(InvalidOption) as error:
        CooperativeConsumer(
            {
                "kafka.bootstrap.servers": "nowhere:1", "kafka.group.id": "g", "subscribe": "t",
                "commitTable": str(tmp_path / "commits"), "slots": 1, "where": where,
            },
            spark,
        )  # fmt: skip
    assert error.value.name == "where"
    assert error.value.found == repr(where)
    assert "timestampType, headers" in str(error.value)
    assert words in str(error.value)
    assert not (tmp_path / "commits").exists()
