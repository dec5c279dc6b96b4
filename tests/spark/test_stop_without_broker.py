"""Jobs and consumers end although their broker was killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from coopconsume import CooperativeConsumer, LocalKafka
from coopconsume.errors import AlreadyClosed
from coopconsume.runtime.log_watch import LogWatch
from tests.spark.support import PATIENCE, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]


def works(_record):
    """Take a moment."""
    time.sleep(0.02)


def is_planned(query):
    """Whether Spark plans a batch, so that no slot of it has connected."""
    dispatcher = query._job._dispatcher
    return any(
        batch.unfinished and not any(map(dispatcher.leases.has_met, batch.connections))
        for batch in dispatcher.runs.by_number.copy().values()
    )


def test_everything_ends_while_the_broker_is_away(spark, tmp_path, monkeypatch, caplog):
    """An idle job, one whose batch Spark plans, one of claimed key ranges, and a poll that waits.

    No end waits for the broker or for Spark; what is done is in the commit log.
    """
    from kafka import KafkaProducer

    looks: Counter[str] = Counter()
    look = LogWatch.refresh

    def noted(watch, **how):
        looks[watch._assignment.options.group_id] += 1
        look(watch, **how)

    monkeypatch.setattr(LogWatch, "refresh", noted)
    with LocalKafka() as broker:
        names = ("idle", "busy", "claimed", "polled")
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        for name in names:
            broker.create_topic(name, 1)
            for i in range(3_000 if name == "busy" else 20):
                producer.send(name, key=b"k%d" % (i % 40))
        producer.flush()
        producer.close()
        opts = {name: options(broker, tmp_path, name, slots=1) for name in names}
        opts["busy"]["maxOffsetsPerTrigger"] = 100
        del opts["claimed"]["subscribe"]
        consumers = {name: CooperativeConsumer(opts[name], spark) for name in names}
        consumers["claimed"].assign({("claimed", 0): []})
        jobs = {name: consumers[name].foreach(works).start() for name in names[:3]}
        for name in ("idle", "claimed"):
            jobs[name].processAllAvailable()
        frame = until(lambda: consumers["polled"].poll(1))
        consumers["polled"].commit(frame)
        until(lambda: jobs["busy"].lastProgress)
        stores = {name: consumers[name]._subscription.joined().store for name in jobs}
        broker.kill()
        until(lambda: is_planned(jobs["busy"]))
        ended = []

        def poll():
            try:
                while True:
                    consumers["polled"].poll(PATIENCE)
            except AlreadyClosed:
                ended.append("poll")

        polling = threading.Thread(target=poll, daemon=True)
        polling.start()
        until(lambda: consumers["polled"]._poller._is_reading)

        def end(name):
            if name in jobs:
                job = jobs[name]._job
                threading.Thread(target=jobs[name].stop, daemon=True).start()
                until(lambda: job._completion.is_stopping or job.ended.is_set())
                before = looks[group(name)]
                jobs[name].stop()
                assert looks[group(name)] == before
            consumers[name].close()
            return name

        def group(name):
            return opts[name]["kafka.group.id"]

        with ThreadPoolExecutor(len(names)) as pool:
            assert set(pool.map(end, names)) == {*names}
        polling.join(PATIENCE)
        assert ended == ["poll"]
        for name, query in jobs.items():
            assert query.exception() is None
            (commits,) = stores[name].state(group(name)).values()
            count = commits.stable_offset + len(commits.ranges)
            assert count == query.lastProgress["totals"]["done"]
        left = jobs["busy"]._job._dispatcher.runs.by_number.values()
        assert all(batch.is_withdrawn for batch in left)
        confirmed = [line for line in caplog.messages if "did not confirm" in line]
        assert {line.split()[1].rstrip(":") for line in confirmed} == {
            group(name) for name in names if name != "claimed"
        }
