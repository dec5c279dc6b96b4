"""What is written to Kafka beside the commits, on a real broker."""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest
from kafka.admin import KafkaAdminClient

from coopconsume.errors import InvalidOption, OutputRefused
from coopconsume.kafka.creation import make_topic
from coopconsume.kafka.partitioner import default_partition
from coopconsume.kafka.producer import ORIGIN_HEADER, Message, Producer
from coopconsume.options import Options
from coopconsume.sinks import DeadLetterTable, OutputTopic, open_dead_letters
from coopconsume.sinks.letters import HEADERS
from coopconsume.worker.report import DeadLetter
from tests.model.job_world import until
from tests.unit.sinks.test_sinks import outputs

pytestmark = [pytest.mark.broker]


def options_of(kafka, folder) -> Options:
    """Options of a consumer on the run's broker."""
    return Options.parse(
        {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": "shop",
            "commitTable": str(folder / "commits"),
        }
    )


def records_of(kafka, topic: str, count: int):
    """The first records of a topic, in the order of each partition."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest",
        enable_auto_commit=False, consumer_timeout_ms=90_000,
    )  # fmt: skip
    found = []
    for record in consumer:
        found.append(record)
        if len(found) == count:
            break
    consumer.close()
    return found


def test_a_dead_letter_is_the_record_with_why_beside_it(kafka, topic, tmp_path):
    """Key, value and headers are the record's own; origin and reason stand behind them."""
    name = topic(3)
    sink = open_dead_letters(f"kafka:{name}", options_of(kafka, tmp_path))
    headers = (("a", b"\xff\x00"), ("b", None), ("a", b""), ("coopconsume.reason", b"an older one"))
    letters = [
        DeadLetter("orders", 1, 40 + i, key, value, 1_234_567, headers, 3, "why: ü", "trace")
        for i, (key, value) in enumerate(
            [(b"k", b"v\x00"), (b"k", None), (None, b"n"), (b"k", b"")]
        )
    ]
    sink.append(letters, {"orders": "id-of-orders"}, "run-7")
    assert sink.rows_written == 4
    sink.close()
    found = records_of(kafka, name, 4)
    assert {(r.key, r.value) for r in found} == {
        (b"k", b"v\x00"), (b"k", None), (None, b"n"), (b"k", b"")
    }  # fmt: skip
    of_key = [r for r in found if r.key == b"k"]
    assert len({r.partition for r in of_key}) == 1
    assert [dict(r.headers)["coopconsume.offset"] for r in of_key] == [b"40", b"41", b"43"]
    first = of_key[0]
    assert list(headers) == first.headers[:4]
    assert tuple(name for name, _ in first.headers[4:]) == HEADERS
    own = dict(first.headers[4:])
    assert own.pop("coopconsume.rejected_at").isdigit()
    assert list(own.values()) == [
        b"orders", b"id-of-orders", b"1", b"40", b"1234567", b"3", "why: ü".encode(), b"trace",
        b"shop", b"run-7",
    ]  # fmt: skip


def test_keys_go_to_the_partitions_of_kafkas_own_producers(kafka, topic, tmp_path):
    """By murmur2, or by the hash of an ordering key in place of the key."""
    name, partitions = topic(7), 7
    keys = [b"", *(b"key %d" % n for n in range(60))]
    ordering = [b"ordering %d" % n for n in range(60)]
    with closing(Producer(options_of(kafka, tmp_path), "outputs")) as producer:
        producer.write(Message(name, key, b"by key") for key in keys)
        producer.write(Message(name, key, b"", ordering_key=key) for key in ordering)
    found = records_of(kafka, name, len(keys) + len(ordering))
    assert {r.key: r.partition for r in found} == {
        key: default_partition(key, partitions) for key in keys + ordering
    }


def test_a_refusal_by_the_broker_is_reported(kafka, topic, tmp_path):
    """A record that the topic does not take is an error that names the topic and the cause."""
    name = topic(1, {"max.message.bytes": 1_000})
    sink = open_dead_letters(f"kafka:{name}", options_of(kafka, tmp_path))
    letter = DeadLetter("orders", 0, 1, b"k", bytes(2_000), 0, (), 1, "too large", "")
    with pytest.raises(OutputRefused) as refused:
        sink.append([letter], {}, "run-0")
    assert (refused.value.what, refused.value.where) == ("dead letters", f"topic {name!r}")
    assert "MessageSizeTooLarge" in refused.value.cause
    assert not refused.value.retriable
    sink.append([small()], {}, "run-1")
    sink.close()
    assert [r.key for r in records_of(kafka, name, 1)] == [b"k"]


def test_a_dead_letter_topic_is_created_with_its_first_letter(kafka, tmp_path):
    """Only if that is asked for; with partitions and settings, and again if it was deleted."""
    name = f"dead-{uuid.uuid4().hex}"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    wanted = {"dead_letter_partitions": 3, "dead_letter_topic_config": {"retention.ms": "-1"}}
    asked = replace(options_of(kafka, tmp_path), **wanted)
    wrong = {"dead_letter_partitions": 3, "dead_letter_topic_config": {"retention.ms": "soon"}}
    refusing = replace(options_of(kafka, tmp_path), **wrong)
    for options in (options_of(kafka, tmp_path), refusing):
        with closing(open_dead_letters(f"kafka:{name}", options)) as sink:
            assert name not in admin.list_topics()
            if options is refusing:
                with pytest.raises(OutputRefused, match="InvalidConfig"):
                    sink.append([small()], {}, "run-0")
    with closing(open_dead_letters(f"kafka:{name}", asked)) as sink:
        for again in (False, True):
            sink.append([small()], {}, f"run-{again}")
            (described,) = admin.describe_topics([name])
            assert len(described["partitions"]) == 3
            assert [r.key for r in records_of(kafka, name, 1)] == [b"k"]
            if not again:
                sink.append([small()], {}, "run-1")
                admin.delete_topics([name])
                until(lambda: name not in admin.list_topics())
                with closing(open_dead_letters(f"kafka:{name}", asked)) as other:
                    other.append([small()], {}, "run-2")
    admin.close()


def test_a_topic_that_another_process_has_created_meanwhile_stays_as_it_is(kafka):
    """Both have found that it does not exist; the broker refuses the later one."""
    name = f"made-{uuid.uuid4().hex}"
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        for partitions in (2, 3):
            make_topic(admin, name, partitions, {"retention.ms": "-1"})
        admin.wait_for_topics([name], timeout_ms=60_000)
        (found,) = admin.describe_topics([name])
    assert len(found["partitions"]) == 2


def small() -> DeadLetter:
    """A dead letter that fits everywhere."""
    return DeadLetter("orders", 0, 1, b"k", b"", 0, (), 1, "small", "")


def test_a_sink_is_chosen_by_its_name(kafka, tmp_path):
    """A path is a table, kafka: and a name a topic."""
    options = options_of(kafka, tmp_path)
    assert isinstance(open_dead_letters(str(tmp_path / "dead"), options), DeadLetterTable)
    assert open_dead_letters("kafka:dead", options).topic == "dead"
    with pytest.raises(InvalidOption, match="kafka:TOPIC"):
        open_dead_letters("kafka:", options)


def test_rows_become_records(kafka, topic, tmp_path):
    """Text or bytes, in the order of the record they come from, with that beside them."""
    name = topic(1)
    schema = pa.schema([("value", pa.string()), ("key", pa.binary())])
    sink = OutputTopic(name, schema, options_of(kafka, tmp_path))
    written = outputs({4: ["a", "b"], 5: ["c"]}, "run-0")
    ((partitions, data),) = written.parts
    rows = pa.ipc.open_stream(data).read_all().rename_columns(["value", "_part", "_offset"])
    rows = rows.append_column("key", pa.array([b"k", None, b"k"], pa.binary()))
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    sink.write(replace(written, parts=[(partitions, stream.getvalue().to_pybytes())]))
    assert sink.rows_written == 3
    sink.close()
    found = records_of(kafka, name, 3)
    assert [(r.key, r.value) for r in found] == [(b"k", b"a"), (None, b"b"), (b"k", b"c")]
    assert [dict(r.headers)[ORIGIN_HEADER] for r in found] == [b"t-3@4", b"t-3@4", b"t-3@5"]
