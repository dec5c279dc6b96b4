"""Listeners that call and close what calls them, and `close` beside other calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from coopconsume import CooperativeConsumer, TopicPartition
from coopconsume.errors import AlreadyClosed, InvalidOption
from coopconsume.monitoring import QueryListener
from tests.spark.support import PATIENCE, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]

#: Seconds within which a call has to return that would wait for itself for ever.
SOON = 120.0


class Rebalances:
    """Calls functions as key ranges come and go."""

    def __init__(self, assigned=None, revoked=None):
        self._assigned, self._revoked = assigned, revoked
        self.assigned, self.revoked = threading.Event(), threading.Event()

    def on_assigned(self, ranges):
        """Call the first function once."""
        if self._assigned is not None and not self.assigned.is_set():
            self._assigned(ranges)
        self.assigned.set()
        raise RuntimeError("listeners may fail")

    def on_revoked(self, ranges):
        """Call the second function."""
        if self._revoked is not None:
            self._revoked(ranges)
        self.revoked.set()

    def on_lost(self, _ranges):
        """Nothing."""


class Ends(QueryListener):
    """Calls functions at a query's progress and end."""

    def __init__(self, progress=None, terminated=None):
        self._progress, self._terminated = progress, terminated

    def onQueryProgress(self, _event):  # noqa: N802 - PySpark's name
        """Call the first function."""
        if self._progress is not None:
            self._progress()

    def onQueryTerminated(self, _event):  # noqa: N802
        """Call the second function."""
        if self._terminated is not None:
            self._terminated()


def nothing(_record):
    """Do nothing."""


def test_a_listener_polls_commits_and_closes_its_consumer(spark, kafka, topic, produce, tmp_path):
    """Already its first call may use the consumer; closing it ends a poll that waits."""
    name = topic(1)
    produce(name, [(b"k%d" % i, b"") for i in range(10)])
    place, opts, found = TopicPartition(name, 0), options(kafka, tmp_path, name), []
    consumer = CooperativeConsumer(opts, spark)

    def assigned(ranges):
        assert list(ranges) == [(name, 0)]
        consumer.pause()
        consumer.resume()
        consumer.seek(place, 4)
        found.append(consumer.poll(PATIENCE))
        with pytest.raises(InvalidOption, match="called twice"):
            consumer.subscribe()

    def revoked(_ranges):
        consumer.commit(found[0])
        consumer.close()
        consumer.close()

    def closing(ranges):
        assert list(ranges) == [(name, 0)]
        second.commit(found[1])

    last = Rebalances(revoked=closing)
    listener = Rebalances(assigned, revoked)
    consumer.subscribe(listener=listener)
    assert listener.assigned.wait(SOON), "the listener failed, or waits for itself"
    with ThreadPoolExecutor(1) as pool, CooperativeConsumer(opts, spark) as second:
        waiting = pool.submit(consumer.poll, PATIENCE)
        second.subscribe(listener=last)
        assert listener.revoked.wait(SOON), "the listener failed, or waits for itself"
        with pytest.raises(AlreadyClosed):
            waiting.result(SOON)
        for call in (consumer.poll, consumer.commit, consumer.subscribe, consumer.lag):
            with pytest.raises(AlreadyClosed):
                call()
        until(second.assignment)
        found.append(second.poll(PATIENCE))
        assert sorted(row["offset"] for row in found[1].collect()) == [0, 1, 2, 3]
        store, group = second._subscription.joined().store, opts["kafka.group.id"]
    assert last.revoked.is_set(), "the listener was not called, or failed"
    assert store.state(group)[name, 0].stable_offset == 10


@pytest.mark.slow
def test_listeners_stop_their_query_and_close_its_consumer(spark, kafka, topic, produce, tmp_path):
    """In the query's own thread and in the group's; `close` ends a hand-over that waits."""
    name = topic(2)  # one of them moves
    produce(name, [(b"k", b"") for _ in range(3)])
    opts = options(kafka, tmp_path, name, drainTimeout=PATIENCE)
    queries, running = [], threading.Event()

    def stop(*_):
        assert running.wait(SOON)
        queries[-1].stop(drain=True)

    def wait_and_stop():
        assert running.wait(SOON)
        for wait in (queries[-1].awaitTermination, queries[-1].processAllAvailable):
            with pytest.raises(InvalidOption, match="called by a listener"):
                wait()
        stop()

    def run(listener):
        running.clear()
        queries.append(consumer.foreach(nothing).addListener(listener).start())
        running.set()

    consumer = CooperativeConsumer(opts, spark)
    listener = Rebalances(revoked=stop)
    consumer.subscribe(listener=listener)
    run(Ends(progress=wait_and_stop))
    assert queries[-1].awaitTermination(SOON)
    run(Ends(terminated=consumer.close))
    with CooperativeConsumer(opts, spark) as second:
        second.subscribe()
        assert listener.revoked.wait(SOON), "the listener waits for itself"
        assert queries[-1].awaitTermination(SOON)
        until(lambda: "coopconsume-close" not in [thread.name for thread in threading.enumerate()])
        with pytest.raises(AlreadyClosed):
            consumer.poll(0)
        until(second.assignment)
        produce(name, [(b"k", b"")])
        assert second.poll(PATIENCE).count() == 1
        with ThreadPoolExecutor(1) as pool, CooperativeConsumer(opts, spark) as third:
            pool.submit(third.subscribe)
            until(lambda: second._poller.session.assignment is None)
            second.close()  # It has a record open; drainTimeout is long.
            until(third.assignment)
            assert third.poll(PATIENCE).count() == 1
