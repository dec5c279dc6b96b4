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
# # Your own topic
#
# From "what is in this topic?" to a job that handles each record once, keeps the order of keys and
# sets aside what it cannot handle. Change the next cell to your brokers and your topic. As it is,
# it starts a broker with a sample topic.
#
# It needs `pip install '.[spark,notebook,ui]'` and Java 17.

# %%
import json
import tempfile

from kafka import KafkaProducer, TopicPartition
from pyspark.sql import SparkSession, functions
from pyspark.sql.functions import col, count, decode, length

from coopconsume import Admin, CooperativeConsumer, LocalKafka, Record, Reject, local_session
from coopconsume.admin.pictures import offset_map

servers = None  # such as "kafka-1:9092,kafka-2:9092"; None: a broker with a sample topic
security = {}  # such as {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": …}
topic = "orders"
group = "my-notebook"
folder = None  # for the commit table and the dead letters; None: a temporary folder

# %% [markdown]
# On Databricks and in `spark-submit` there is a session already; else a local one is started.

# %%
spark = SparkSession.getActiveSession() or local_session("your-topic", cores=4)
temporary = tempfile.TemporaryDirectory(prefix="your-topic-")
folder = folder or temporary.name

broker = None
if servers is None:
    broker = LocalKafka().start()
    servers = broker.bootstrap_servers
    broker.create_topic(topic, 3)
    producer = KafkaProducer(bootstrap_servers=servers)
    for n in range(3_000):
        customer = "customer-0" if n % 4 == 0 else f"customer-{n % 40}"
        value = "not JSON" if n % 500 == 499 else json.dumps({"order": n, "cents": n % 9_000})
        producer.send(topic, key=customer.encode(), value=value.encode())
    producer.close()

options = {
    "kafka.bootstrap.servers": servers,
    **security,
    "kafka.group.id": group,
    "subscribe": topic,
    "commitTable": f"{folder}/commits",
    "deadLetter": f"{folder}/dead",
    "maxOffsetsPerTrigger": 10_000,
    "slots": 4,
}

# %% [markdown]
# ## What is in it?
#
# `poll` returns a window of records as a DataFrame. What is not committed comes again, so looking
# changes nothing.

# %%
consumer = CooperativeConsumer(options, spark)
window = consumer.poll(timeout=120)
window.select(
    "partition",
    "offset",
    "timestamp",
    decode("key", "utf-8").alias("key"),
    decode("value", "utf-8").alias("value"),
).show(5, truncate=60)

# %%
window.groupBy("partition").agg(
    count("*").alias("records"),
    functions.max("offset").alias("last offset"),
    functions.sum(length("value")).alias("bytes of values"),
).orderBy("partition").show()

# %% [markdown]
# ## Which keys?
#
# Records of a key are handled one after another, so one busy key can bound the speed of a job. If
# the first line has most of the records, or the keys are null, think about the key first.

# %%
window.groupBy(decode("key", "utf-8").alias("key")).agg(count("*").alias("records")).orderBy(
    col("records").desc()
).show(5)
consumer.close()

# %% [markdown]
# ## A handler
#
# This is the function to change. It gets one record. What it raises is tried again later, and only
# later records of the same key wait. `Reject` is for what will never succeed: the record is written
# to the dead letters and counts as done. What it returns can be written to a table (`output=…`).


# %%
def handle(record: Record) -> None:
    try:
        order = json.loads(record.value or b"")
    except ValueError as error:
        raise Reject(error) from error
    assert order["cents"] >= 0


# %% [markdown]
# ## Run it
#
# `availableNow` handles what is in the topic now and ends. Leave the line out for a job that goes
# on until `query.stop()`. `query.ui_url` is the address of a page that shows the job while it runs.

# %%
consumer = CooperativeConsumer(options, spark)
query = consumer.foreach(handle, concurrency=4).trigger(availableNow=True).start()
print("open", query.ui_url.partition("?")[0], "(query.ui_url has the token)")
query.awaitTermination(600)
query.lastProgress["totals"]

# %% [markdown]
# ## What is done?
#
# One map for each partition, from the start of its log to its end: above the share of each state,
# below the most urgent state, so that one open offset is visible among millions.

# %%
partitions = sorted(consumer.assignment())
offset_map(consumer, partitions[0], columns=200)

# %%
consumer.lag().show()

# %% [markdown]
# ## What was set aside?
#
# Dead letters are records with the reason and the number of attempts. After a change of the handler
# they can be replayed: `letters.carry_out("replay", letters.plan(Choice(reason="JSON")))`, with
# `Choice` of `coopconsume.admin.dead_letters.choice`, or `coopconsume dead-letters replay`.

# %%
letters = Admin(options, spark=spark).dead_letters(group)
for found in letters.letters()[:5]:
    print(f"{found.topic}-{found.partition}@{found.offset} {found.key}: {found.reason}")
print(len(letters.letters()), "dead letters")

# %% [markdown]
# ## Later
#
# The commit table knows what is done: run the job again, here or anywhere else with the same
# options, and it handles what is new. A second notebook with the same group shares the work.

# %%
status = Admin(options, spark=spark).lag(group)
print({f"{one.topic}-{one.partition}": one.lag for one in status})
assert all(one.lag == 0 for one in status if TopicPartition(one.topic, one.partition) in partitions)

# %%
consumer.close()
if broker is not None:
    broker.stop()
    spark.stop()
temporary.cleanup()
