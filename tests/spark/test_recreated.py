"""Logs that are replaced under jobs, polls and their fetch servers: another topic, or a cut log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka.admin import KafkaAdminClient

from coopconsume import CooperativeConsumer
from coopconsume.runtime import log_watch
from coopconsume.testing.history import read_history
from tests.spark.support import PATIENCE, Recorded, options, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture
def create_again(kafka, produce) -> Iterator[Callable[[str, bytes, int], None]]:
    """Return what deletes a topic and creates it again, at once with new records."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)

    def again(name: str, key: bytes, count: int) -> None:
        admin.delete_topics([name])
        until(lambda: name not in admin.list_topics())
        kafka.create_topic(name, 1)
        produce(name, [(key, b"")] * count)

    yield again
    admin.close()


def calls_of(folder: Path, key: bytes) -> list[int]:
    """The offsets of all calls for records of a key, in the order of their starts."""
    if not (folder / "history").is_dir():
        return []
    found = [call for call in read_history(folder / "history") if call.key == key]
    return [call.offset for call in sorted(found, key=lambda call: call.start_ns)]


def is_live(query) -> bool:
    """Whether slots read by themselves."""
    last = query.lastProgress
    return last is not None and last["mode"] == "realTime"


def test_real_time_reads_a_recreated_topic_from_its_start(
    spark, kafka, topic, produce, create_again, tmp_path, monkeypatch
):
    """Neither what a fetch server has of the old one counts, nor do slots read on at its offsets.

    The driver finds out late, as the new log is as long as the old one.
    """
    name = topic(1)
    opts = options(kafka, tmp_path, name, slots=2, failOnDataLoss=False)
    with CooperativeConsumer(opts, spark) as consumer:
        query = (
            consumer.foreach(Recorded(tmp_path / "history"))
            .trigger(realTime="10 minutes").start()
        )  # fmt: skip
        until(lambda: is_live(query))
        produce(name, [(b"first", b"")] * 200)
        query.processAllAvailable()
        create_again(name, b"second", 120)
        until(lambda: calls_of(tmp_path, b"second").count(119))
        until(lambda: is_live(query))
        query.processAllAvailable()
        with monkeypatch.context() as patched:
            for every in ("_ENDS_EVERY", "_STARTS_EVERY"):
                patched.setattr(log_watch, every, PATIENCE)
            create_again(name, b"third", 300)
            until(lambda: calls_of(tmp_path, b"third").count(299))
        query.processAllAvailable()
        query.stop()
        (row,) = until(lambda: consumer.committed().collect())
    assert (row["stable_offset"], row["committed_above"]) == (300, 0)
    for key, count in {b"first": 200, b"second": 120, b"third": 300}.items():
        assert calls_of(tmp_path, key) == list(range(count))
