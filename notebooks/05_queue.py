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
# # A work queue
#
# Tasks without order: any worker may take any record. `QueueConsumer` hands each record to one
# worker at a time, without Spark and without a partition per worker.
#
# First, three workers of different speeds share one partition, and one of them is killed. Then
# three brokers record who holds what, and one of them is stopped. At last, Spark jobs do the same:
# they share a partition by chunks.
#
# This notebook starts its own brokers and its own Spark. It needs Java 17 and
# `pip install '.[spark,notebook]'`; the first run fetches Kafka's jars.

# %%
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
from kafka import KafkaProducer

from coopconsume import CooperativeConsumer, CooperativeQuery, LocalKafka, Record, local_session
from coopconsume.admin.views import create_views
from coopconsume.queue import QueueReplica, queue_status

folder = tempfile.TemporaryDirectory(prefix="queue-")
broker = LocalKafka().start()

# %% [markdown]
# ## 600 tasks in one partition

# %%
TASKS = 600


def put(topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for n in range(TASKS):
        producer.send(topic, value=f"task {n}".encode())
    producer.close()


broker.create_topic("tasks", 1)
put("tasks")

# %% [markdown]
# ## A worker
#
# It takes up to ten records, works on each one for some milliseconds and acknowledges them. It
# writes a line for each task, so that we can look at them afterwards. A worker has a *hold* of
# 4 seconds: what it has not acknowledged by then goes to others.

# %%
WORKER = """
import json, sys, time
from coopconsume import QueueConsumer
from coopconsume.queue import QueueReplica

name, millis, topic, path, options, replicas = sys.argv[1:]
replicas = [QueueReplica(*replica) for replica in json.loads(replicas)] or None
with open(path, "a") as log, QueueConsumer(json.loads(options), topic, replicas, hold=4) as queue:
    while True:
        for record in queue.poll(max_records=10):
            time.sleep(int(millis) / 1000)
            queue.acknowledge(record)
            task = {"worker": name, "offset": record.offset, "at": time.time()}
            print(json.dumps(task | {"attempt": record.attempt}), file=log, flush=True)
        queue.commit()
"""

options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "kafka.group.id": "workers"}
SPEEDS = {"fast": 10, "medium": 20, "slow": 60}


def start(topic: str, path: Path, replicas: list) -> dict[str, subprocess.Popen]:
    texts = [str(path), json.dumps(options), json.dumps(replicas)]
    return {
        name: subprocess.Popen([sys.executable, "-c", WORKER, name, str(millis), topic, *texts])
        for name, millis in SPEEDS.items()
    }


def tasks(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < give_up, f"no {what} within 300 s"
        time.sleep(0.2)


# %% [markdown]
# ## One worker is killed
#
# When each worker has done something, the medium one is killed in the middle of its work. Nobody
# is told: its records come back when its hold has ended.

# %%
log = Path(folder.name, "tasks.jsonl")
workers = start("tasks", log, [])
wait_for("work of every worker", lambda: len({task["worker"] for task in tasks(log)}) == 3)

workers["medium"].kill()
killed_at = time.time()
status = queue_status(options, "tasks")
status.partitions

# %% [markdown]
# The queue knows who holds which offsets, the dead worker included:

# %%
for hold in status.holds:
    print(f"{hold.holder}: {hold.offsets}, for {hold.seconds:.0f} s")


# %%
def is_done(topic: str, replicas: list) -> bool:
    found = [QueueReplica(*replica) for replica in replicas] or None
    (partition,) = queue_status(options, topic, found).partitions
    return partition.stable_offset == TASKS


def end(workers: dict[str, subprocess.Popen]) -> None:
    for worker in workers.values():
        worker.terminate()
    for worker in workers.values():
        worker.wait()


wait_for("end of the queue", lambda: is_done("tasks", []))
end(workers)

# %% [markdown]
# Each point is a task. The slow worker takes fewer, so nobody waits for it. The tasks that the dead
# worker held at the kill wait for its hold to end; then the others do them, as attempt 2. They have
# a circle. It may have held none: then there is no circle.


# %%
def draw(path: Path, moment: float, label: str) -> None:
    found = tasks(path)
    first = min(task["at"] for task in found)
    _, axes = plt.subplots(figsize=(9, 3.5))
    for name in SPEEDS:
        mine = [task for task in found if task["worker"] == name]
        seconds = [task["at"] - first for task in mine]
        axes.scatter(seconds, [task["offset"] for task in mine], s=8, label=name)
    if again := [task for task in found if task["attempt"] > 1]:
        seconds = [task["at"] - first for task in again]
        axes.scatter(
            seconds, [task["offset"] for task in again], s=60, facecolors="none",
            edgecolors="black", label="delivered again",
        )  # fmt: skip
    axes.axvline(moment - first, color="grey", linestyle="--")
    axes.text(moment - first, TASKS, f" {label}", va="top", color="grey")
    axes.set(xlabel="seconds", ylabel="offset")
    axes.legend(loc="lower right")
    plt.show()


draw(log, killed_at, "medium is killed")

# %%
print(Counter(task["worker"] for task in tasks(log)))
print(Counter(task["attempt"] for task in tasks(log)), "by attempt")
assert {task["offset"] for task in tasks(log)} == set(range(TASKS))

# %% [markdown]
# ## Three replicas, and one is stopped
#
# The holds can be recorded on several clusters: a majority decides. Here are two more brokers, and
# one of the three stops while the workers run. They continue with the other two.

# %%
others = [LocalKafka().start(), LocalKafka().start()]
replicas = [
    ("holds-a", {}),
    ("holds-b", {"kafka.bootstrap.servers": others[0].bootstrap_servers}),
    ("holds-c", {"kafka.bootstrap.servers": others[1].bootstrap_servers}),
]
broker.create_topic("more-tasks", 1)
put("more-tasks")
log = Path(folder.name, "more-tasks.jsonl")
options["kafka.group.id"] = "workers-of-three"
workers = start("more-tasks", log, replicas)
wait_for("work of every worker", lambda: len({task["worker"] for task in tasks(log)}) == 3)

others[0].kill()
stopped_at = time.time()

wait_for("end of the queue", lambda: is_done("more-tasks", replicas))
end(workers)
draw(log, stopped_at, "a replica is stopped")

# %%
found = [QueueReplica(*replica) for replica in replicas]
status = queue_status(options, "more-tasks", found)
for replica in status.replicas:
    print(f"{replica.replica}: {'readable' if replica.is_readable else 'does not answer'}")
assert [replica.is_readable for replica in status.replicas] == [True, False, True]
assert {task["offset"] for task in tasks(log)} == set(range(TASKS))

# %% [markdown]
# ## Spark jobs that share a partition by chunks
#
# Jobs whose handlers need no order share partitions in the same way, with
# `sharing=cooperative`: each acquires the next offsets that nobody else has. Here are three jobs of
# one group, with one slot each. Their chunks have at most 20 offsets, so that you see them move.

# %%
spark = local_session("queue", cores=4)
broker.create_topic("images", 1)
log = Path(folder.name, "images.jsonl")
job_options = {
    "kafka.bootstrap.servers": broker.bootstrap_servers,
    "kafka.group.id": "thumbnails",
    "subscribe": "images",
    "commitTable": f"{folder.name}/commits",
    "sharing": "cooperative",
    "slots": 1,
    "maxOffsetsPerTrigger": 20,
}


def handler(name: str) -> Callable[[Record], None]:
    path, seconds = log, SPEEDS[name] / 1000

    def handle(record: Record) -> None:
        time.sleep(seconds)
        task = {"worker": name, "offset": record.offset, "at": time.time()}
        with path.open("a") as file:
            file.write(json.dumps(task | {"attempt": record.attempt}) + "\n")

    return handle


consumers = {name: CooperativeConsumer(job_options, spark) for name in SPEEDS}
queries: dict[str, CooperativeQuery] = {
    name: consumer.foreach(handler(name), ordering="none", dead_letter=f"{folder.name}/dead")
    .queryName(name)
    .start()
    for name, consumer in consumers.items()
}
wait_for("members", lambda: all(consumer.assignment() for consumer in consumers.values()))
put("images")
wait_for("work of every job", lambda: len({task["worker"] for task in tasks(log)}) == 3)

# %% [markdown]
# The commit table says who holds which offsets:

# %%
create_views(spark, job_options)
spark.table("coopconsume_chunks").show(truncate=False)

# %% [markdown]
# The medium job is stopped. What it has not started goes to the others at once.

# %%
queries["medium"].stop()
stopped_at = time.time()
for name in ("fast", "slow"):
    queries[name].processAllAvailable()
for consumer in consumers.values():
    consumer.close()

draw(log, stopped_at, "medium is stopped")
print(Counter(task["worker"] for task in tasks(log)))
assert sorted(task["offset"] for task in tasks(log)) == list(range(TASKS))

# %% [markdown]
# That is all. `docs/how-to/work-queue` has the other acknowledgements, dead letters and the command
# line; `docs/explanation/queues` explains how replicas decide. `docs/how-to/share-by-chunks` is
# about Spark jobs.

# %%
spark.stop()
for each in [broker, *others]:
    each.close()
folder.cleanup()
