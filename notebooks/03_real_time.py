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
# # Real time
#
# In batches a record waits until Spark has planned and read its batch. In real time the slots read
# Kafka themselves, and a record reaches its handler in milliseconds. Order, retries and individual
# commits stay the same. This notebook measures both, one after the other, with the same handler.
#
# It starts its own Kafka and its own Spark. It needs Java 17 and
# `pip install '.[spark,notebook]'`; the first run fetches Kafka's jars.

# %%
import tempfile
import time
from collections.abc import Callable

import matplotlib.pyplot as plt
from kafka import KafkaProducer

from coopconsume import (
    CooperativeConsumer,
    CooperativeQuery,
    LocalKafka,
    Record,
    committed_rows,
    local_session,
)

broker = LocalKafka().start()
broker.create_topic("payments", 1)
spark = local_session("real-time", cores=3)
folder = tempfile.TemporaryDirectory(prefix="real-time-")

# %% [markdown]
# ## The handler
#
# Its output is the time from the creation of the record to the call. The first records only warm
# Spark up.


# %%
def measure(record: Record) -> dict[str, float] | None:
    if record.value == b"warm-up":
        return None
    return {"millis": time.time() * 1000 - record.timestamp}


def consumer_of(mode: str) -> CooperativeConsumer:
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "kafka.group.id": mode,
        "subscribe": "payments",
        "startingOffsets": "latest",
        "commitTable": f"{folder.name}/commits",
        "slots": 2,
    }
    return CooperativeConsumer(options, spark)


# %% [markdown]
# ## 1,000 records, 100 a second

# %%
RECORDS = 1_000


def wait_for(what: str, condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < give_up, f"no {what} within 300 s"
        time.sleep(0.1)


def latencies(mode: str, real_time: str | None = None) -> list[float]:
    table = f"{folder.name}/{mode}"
    with consumer_of(mode) as consumer:
        job = consumer.foreach(measure, concurrency=8, output=table, output_schema="millis double")
        if real_time is not None:
            job = job.trigger(realTime=real_time)
        query: CooperativeQuery = job.start()
        wait_for("progress", lambda: query.lastProgress)
        if real_time is not None:
            wait_for("real time", lambda: query.lastProgress["mode"] == "realTime")
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        for n in range(50):
            producer.send("payments", key=f"customer-{n}".encode(), value=b"warm-up")
        producer.flush()
        query.processAllAvailable()
        begun = time.monotonic()
        for n in range(RECORDS):
            time.sleep(max(0.0, begun + n / 100 - time.monotonic()))
            producer.send("payments", key=f"customer-{n % 50}".encode(), value=b"1")
        producer.close()
        query.processAllAvailable()
        query.stop()
    return committed_rows(table, f"{folder.name}/commits", mode)["millis"].to_pylist()


batches = latencies("batches")
real_time = latencies("real-time", real_time="5 minutes")
assert len(batches) == len(real_time) == RECORDS

# %% [markdown]
# ## From produced to handler
#
# Mind the logarithmic scale. The slots of a real-time run commit as they work, as those of batches
# do. A record is committed after its handler, within the option `commitInterval`.

# %%
_, axes = plt.subplots(figsize=(9, 3.5))
edges = [10 ** (exponent / 8) for exponent in range(33)]
for name, found in {"batches": batches, "real time": real_time}.items():
    axes.hist(found, bins=edges, alpha=0.7, label=name)
axes.set(xscale="log", xlabel="milliseconds from produced to handler", ylabel="records")
axes.legend()
plt.show()

# %%
for name, found in {"batches": batches, "real time": real_time}.items():
    found.sort()
    half, most = found[len(found) // 2], found[len(found) * 99 // 100]
    print(f"{name:9}: half of the records within {half:,.0f} ms, 99 % within {most:,.0f} ms")

# %% [markdown]
# ## When to use it
#
# A real-time slot keeps its core for the whole run, so leave one free for everything else. The
# slots of a host read through one fetch server, each the records of its own keys.
# `docs/how-to/real-time` has the details.

# %%
spark.stop()
broker.close()
folder.cleanup()
