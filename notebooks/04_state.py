# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # State per key
#
# Running totals of the flights of each aircraft. A total changes if and only if the commit of its
# record counts: an application is killed in the middle, a second one joins, and every total is
# right to the flight.
#
# This notebook starts its own Kafka and two Spark applications. It needs Java 17 and
# `pip install '.[spark,demo,notebook]'`; the first run fetches Kafka's jars.

# %%
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from kafka import KafkaProducer
from pyspark.sql.functions import col

from coopconsume import (
    Admin,
    CooperativeConsumer,
    CooperativeQuery,
    LocalKafka,
    Record,
    State,
    committed_state,
    local_session,
)
from coopconsume.demo.flights import flights
from coopconsume.errors import GroupNotFound

broker = LocalKafka().start()
spark = local_session("second", cores=2)
folder = tempfile.TemporaryDirectory(prefix="state-")

# %% [markdown]
# ## The flights
#
# 12,000 flights of January 2013 in one partition: half of them now, the others later. The key is
# the aircraft. We count them here, too, to compare at the end.

# %%
expected: dict[bytes, tuple[int, int]] = {}
records = [(key, value) for key, value in flights(12_000) if key is not None]


def produce(some: list[tuple[bytes, bytes]]) -> int:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for key, value in some:
        producer.send("flights", key=key, value=value)
        count, miles = expected.get(key, (0, 0))
        expected[key] = count + 1, miles + json.loads(value)["distance"]
    producer.close()
    return sum(count for count, _ in expected.values())


broker.create_topic("flights", 1)
produced = produce(records[:6_000])
print(f"{produced:,} flights of {len(expected):,} aircraft")

# %% [markdown]
# ## The application
#
# A handler with a second parameter has the state of the record's key. Here a value has two columns.
# The same program runs as two applications: one in a process of its own, one in this notebook.

# %%
options = {
    "kafka.bootstrap.servers": broker.bootstrap_servers,
    "kafka.group.id": "totals",
    "kafka.session.timeout.ms": "6000",
    "subscribe": "flights",
    "commitTable": f"{folder.name}/commits",
    "startingOffsets": "earliest",
    "slots": "2",
    "handlerTimeout": "5 seconds",
}
state = f"{folder.name}/totals"


def add(record: Record, state: State) -> None:
    time.sleep(0.002)
    before = state.get({"flights": 0, "miles": 0})
    miles = before["miles"] + json.loads(record.value)["distance"]
    state.set({"flights": before["flights"] + 1, "miles": miles})


def start(consumer: CooperativeConsumer, path: str) -> CooperativeQuery:
    schema = "flights long, miles long"
    return consumer.foreach_with_state(add, state_schema=schema, state=path).start()


# %%
PROGRAM = f"""
from __future__ import annotations
import json, sys, time
from contextlib import suppress
from coopconsume import CooperativeConsumer, local_session

{inspect.getsource(add)}
{inspect.getsource(start)}
options, state = json.loads(sys.argv[1]), sys.argv[2]
session = local_session("first", cores=2)
with suppress(KeyboardInterrupt), CooperativeConsumer(options, session) as consumer:
    start(consumer, state).awaitTermination()
"""


def application() -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, json.dumps(options), state]
    return subprocess.Popen(command, start_new_session=True)


def done() -> int:
    try:
        lag = Admin(options).lag("totals")
    except GroupNotFound:  # The application has not started yet.
        return 0
    return produced - sum(partition.lag for partition in lag)


def wait_for(what: str, condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < give_up, f"no {what} within 300 s"
        time.sleep(0.5)


# %% [markdown]
# ## Killed in the middle

# %%
Admin(options).set_shareable(["flights"], shareable=True)
first = application()
wait_for("first thousand flights", lambda: done() >= 1_000)
os.killpg(first.pid, signal.SIGKILL)
first.wait()

print(f"{done():,} of {produced:,} flights are committed")

# %% [markdown]
# The totals are those of the committed flights, no more and no less. What the handler did beyond
# them is forgotten with the process.

# %%
totals = committed_state(state, options["commitTable"], "totals", spark=spark)
committed = sum(row["value"]["flights"] for row in totals.collect())
print(f"{committed:,} flights in the totals of {totals.count():,} aircraft")
assert committed == done()

# %% [markdown]
# ## Started again, and joined by a second application
#
# The first application starts again, with the same group. It waits until its predecessor's session
# has ended, then continues with the flights that are not committed. This is the group:

# %%
first = application()
wait_for("end of the first half", lambda: done() == produced)
Admin(options).describe("totals")

# %% [markdown]
# Now this notebook joins as the second application. The topic is open to sharing, so the key ranges
# of the only partition are divided between the two. The totals of the keys that move are restored
# here from the changelog; nothing is copied from application to application.

# %%
consumer = CooperativeConsumer(options, spark)
query = start(consumer, state)
wait_for("key ranges", consumer.assignment)
consumer.describe_group()

# %% [markdown]
# Now the other half of the flights: both applications work on it.

# %%
produced = produce(records[6_000:])
wait_for("end of the second half", lambda: done() == produced)
wait_for("report of it", lambda: query.lastProgress and query.lastProgress["totals"]["handled"])
handled = query.lastProgress["totals"]["handled"]
print(f"{handled:,} of {len(records) - 6_000:,} flights were handled by this application")
assert 0 < handled < len(records) - 6_000

# %% [markdown]
# The owner of an aircraft's total, and the total itself, can be asked for anywhere:

# %%
aircraft = max(expected, key=lambda key: expected[key])
owner = consumer.key_metadata("flights", aircraft)
print(f"{aircraft.decode()}: slot {owner.slot} of {owner.client_id}, key range {owner.key_range}")
print(query.state("flights", aircraft))

# %% [markdown]
# ## Every total is right

# %%
query.stop()
consumer.close()
os.killpg(first.pid, signal.SIGTERM)
first.wait()

totals = committed_state(state, options["commitTable"], "totals", spark=spark)
totals.select(col("key").cast("string").alias("aircraft"), "value.flights", "value.miles").orderBy(
    col("miles").desc()
).show(5)

# %%
found = {
    bytes(row["key"]): (row["value"]["flights"], row["value"]["miles"]) for row in totals.collect()
}
assert found == expected
print(f"{len(found):,} totals, all as expected, after a kill -9 and a second application")

# %% [markdown]
# That is all. `docs/how-to/keep-state` has expiry, resets of offsets and the command line;
# `docs/explanation/state` explains why state and commits cannot disagree.

# %%
spark.stop()
broker.close()
folder.cleanup()
