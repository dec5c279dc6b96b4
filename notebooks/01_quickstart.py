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
# # Quick start
#
# Many workers on one Kafka partition, in the order of each key, every record committed by itself.
#
# This notebook starts its own Kafka and its own Spark. It needs Java 17 and
# `pip install '.[spark,notebook]'`; the first run fetches Kafka's jars.

# %%
import json
import tempfile
import time

from kafka import KafkaProducer, TopicPartition
from pyspark.sql.functions import col, decode

from coopconsume import (
    CooperativeConsumer,
    CooperativeQuery,
    LocalKafka,
    Record,
    RetryPolicy,
    key_hash,
    local_session,
)
from coopconsume.admin.pictures import offset_map

broker = LocalKafka().start()
spark = local_session("quickstart", cores=4)
folder = tempfile.TemporaryDirectory(prefix="quickstart-")

# %% [markdown]
# ## Some records
#
# 2,000 payments of 20 customers, all in one partition. The key is the customer.

# %%
customers = [f"customer-{n:02}" for n in range(20)]
payments = TopicPartition("payments", 0)

broker.create_topic("payments", 1)
producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
for n in range(2_000):
    customer = customers[n * 7 % 20]
    value = json.dumps({"customer": customer, "cents": n})
    producer.send("payments", key=customer.encode(), value=value.encode(), partition=0)
producer.close()

# %% [markdown]
# ## Poll a DataFrame
#
# `poll` gives a fixed window of offsets as a DataFrame: the columns of Spark's own Kafka source,
# and the hash of the key. Looking twice shows the same rows.

# %%
options = {
    "kafka.bootstrap.servers": broker.bootstrap_servers,
    "kafka.group.id": "quickstart",
    "subscribe": "payments",
    "commitTable": f"{folder.name}/commits",
    "slots": 4,
}
consumer = CooperativeConsumer(options, spark)
frame = consumer.poll(timeout=60)
frame.select("offset", decode("key", "utf-8").alias("key"), "key_hash").show(5)

# %% [markdown]
# ## Commit part of it
#
# Suppose that only the payments of the first twelve customers are done. A commit takes any offsets
# that were polled, in any order.

# %%
done = frame.where(col("key").isin([customer.encode() for customer in customers[:12]]))
consumer.commit(done)

# %% [markdown]
# The *stable offset* is the first one not done: what Kafka's own tools show. Above it stand the
# individual commits, and between them the gaps.

# %%
consumer.lag().show()
consumer.gaps().show(5)

# %% [markdown]
# The same as a picture. Above: the share of each state, by offset. Below: the worst that is there.

# %%
offset_map(consumer, payments, columns=200)

# %% [markdown]
# ## A handler, and a key that fails
#
# A handler is a function of one record. Four slots run it on four threads each: at most 16 records
# in flight, and never two of the same customer. The account of customer 15 is frozen, so the
# handler fails there, and that customer's later payments wait. Nobody else does.


# %%
frozen = {b"customer-15"}


def pay(record: Record) -> None:
    if record.key in frozen:
        raise ValueError("account is frozen")
    time.sleep(0.001)


query = (
    consumer.foreach(pay, concurrency=4, retry=RetryPolicy(backoff=1.0)).queryName("pay").start()
)

# %% [markdown]
# The query works in the background. We wait until only the frozen account is left: 100 payments.


# %%
def state(query: CooperativeQuery) -> dict:
    if query.lastProgress:
        return query.lastProgress["partitions"][0]
    return {"lag": 2_000, "blocker": None}


give_up = time.monotonic() + 300
while (found := state(query))["lag"] > 100 or not found["blocker"]["error"]:
    assert time.monotonic() < give_up
    time.sleep(0.1)

found

# %% [markdown]
# Progress names what holds the stable offset back: the offset, the hash of its key, the error, how
# often it was tried and how many records wait behind it.

# %%
blocker = found["blocker"]
names = {key_hash(customer.encode()): customer for customer in customers}
print(f"{names[blocker['keyHash']]} at offset {blocker['offset']}: {blocker['error']},")
print(f"failed {blocker['attempts']} times so far, {blocker['behind']} records behind it")

# %%
offset_map(consumer, payments, columns=200)

# %% [markdown]
# ## Stop, and start again
#
# Everything that counts is in the commit table. Once the account is thawed, a new consumer gets the
# 100 payments that are left, and no other. `availableNow` ends the query when all is done.

# %%
query.stop()
consumer.close()

# %%
frozen.clear()
with CooperativeConsumer(options, spark) as consumer:
    query = consumer.foreach(pay, concurrency=4).trigger(availableNow=True).start()
    query.awaitTermination(300)
    handled = query.lastProgress["totals"]["handled"]
    lag = consumer.lag().first()

print(f"handled {handled} more; stable offset {lag.stable_offset} of {lag.end_offset}")
assert (handled, lag.lag, lag.stable_offset) == (100, 0, 2_000)

# %% [markdown]
# That is all. Next: give `foreach` an `output` table for what your handler returns, and a
# `dead_letter` table for what it gives up; the documentation has both.

# %%
broker.stop()
spark.stop()
folder.cleanup()
