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
# # A log with one writer at a time
#
# A Kafka partition as a commit log: appends that know what they follow (KIP-27), owners that take
# turns, and a leader whose state is in the log. All of it on unmodified Kafka, and without Spark.
#
# This notebook starts its own Kafka. It needs Java 17 and `pip install '.[notebook]'`;
# the first run fetches Kafka's jars.

# %%
from coopconsume import AccessMode, ExclusiveProducer, FencedWriter, LeaderElection, LocalKafka
from coopconsume.errors import OffsetMismatch, ProducerBusy, ProducerFenced
from coopconsume.fenced import LogReader, LogRecord, MultiLogWriter, Write, audit_logs

broker = LocalKafka().start()
options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
for name in ("ledger", "accounts", "orders", "turns", "settings"):
    broker.create_topic(name, 1)

# %% [markdown]
# ## Append only where it is expected
#
# Two writers share a log. Each appends on the condition that nothing came in between; the one that
# is too late gets both numbers, and nothing of its append is in the log.

# %%
first = FencedWriter(options, "ledger", shared=True, owner="first").acquire()
second = FencedWriter(options, "ledger", shared=True, owner="second").acquire()

print(first.append([b"opening balance: 100"], expected_seq=0))
try:
    second.append([b"opening balance: 200"], expected_seq=0)
except OffsetMismatch as mismatch:
    print(f"expected {mismatch.expected}, but next is {mismatch.actual}")
assert second.append([b"withdrawn: 30"], expected_seq=1).first_seq == 1

first.close()
second.close()

# %% [markdown]
# ## Look without taking
#
# `peek` returns where a log ends and who owns it. `acquire`, or a `with` block, takes the log and
# fences its owner, unless you set `fence_owner=False`.

# %%
with FencedWriter(options, "ledger", owner="owner") as owner:
    head = FencedWriter.peek(options, "ledger")
    assert (head.owner, head.epoch, head.next_seq) == ("owner", owner.epoch, owner.next_seq)
    owner.append([b"still the owner"])
head

# %% [markdown]
# ## Conditions by key
#
# Entities that are independent of each other share a log: an append expects the last record of its
# key, whatever others write. An append with a `batch_id` is in the log once, however often it is
# repeated.

# %%
with FencedWriter(options, "orders") as orders:
    created = orders.append([(b"order-7", b"created")], expected_key_seq={b"order-7": None})
    orders.append([(b"order-8", b"created")], expected_key_seq={b"order-8": None})
    paid = [(b"order-7", b"paid")]
    done = orders.append(paid, expected_key_seq=created.last_seq, batch_id="payment-1")
    assert orders.append(paid, expected_key_seq=created.last_seq, batch_id="payment-1") == done
    try:
        orders.append([(b"order-7", b"cancelled")], expected_key_seq=created.last_seq)
        raise AssertionError("nothing was expected")
    except OffsetMismatch as mismatch:
        print(mismatch)

# %% [markdown]
# ## Several logs at once
#
# One append to several logs: to all of them or to none, each on its own condition.

# %%
logs = [("accounts", 0), ("orders", 0)]
with MultiLogWriter(options, logs) as several:
    several.append(
        {
            ("accounts", 0): Write([(b"anna", b"-30")], expected_seq=0),
            ("orders", 0): Write([(b"order-8", b"paid")], expected_key_seq={b"order-8": 1}),
        },
        batch_id="payment-2",
    )
    try:
        several.append({log: Write([b"late"], expected_seq=1) for log in logs})
        raise AssertionError("one of the logs has more records")
    except OffsetMismatch as mismatch:
        print(mismatch)
assert audit_logs(options, logs).whole == 1

# %% [markdown]
# ## Take turns
#
# An exclusive producer has the log alone. Others are refused, or wait for their turn; the registry
# keeps who is next, and the log itself fences whoever's turn is over.

# %%
anna = ExclusiveProducer(options, "turns", mode=AccessMode.EXCLUSIVE, owner="anna").acquire()
anna.append([b"anna writes"])

ben = ExclusiveProducer(options, "turns", mode=AccessMode.WAIT_FOR_EXCLUSIVE, owner="ben")
try:
    ben.acquire(timeout=0.5)
except ProducerBusy as busy:
    print(busy)

anna.close()
ben.acquire()
ben.append([b"ben writes"])
print(f"epoch {anna.epoch}, then epoch {ben.epoch}")

# %% [markdown]
# `EXCLUSIVE_WITH_FENCING` takes the log at once. Ben is not told; he learns it when he writes.

# %%
carl = ExclusiveProducer(
    options, "turns", mode=AccessMode.EXCLUSIVE_WITH_FENCING, owner="carl"
).acquire()
try:
    ben.append([b"ben was asleep"])
    raise AssertionError("nobody was fenced")
except ProducerFenced as fenced:
    print(fenced)

ben.close()
carl.close()
with LogReader(options, "turns") as reader:
    turns = [(record.epoch, record.value.decode()) for record in reader.read()]
assert [value for _, value in turns] == ["anna writes", "ben writes"]
turns

# %% [markdown]
# ## Lead
#
# A leader has seen all of the log before it writes, and what it writes is applied when it is in the
# log. This is PIP-68's example: a state, and the log ahead of it.

# %%
settings: dict[bytes, bytes] = {}


def apply(record: LogRecord) -> None:
    settings[record.key] = record.value


with LeaderElection(options, "settings", apply=apply, owner="one") as election:
    leader = election.lead(timeout=300)
    leader.append([(b"colour", b"green"), (b"size", b"large")])
    leader.append([(b"colour", b"blue")])

before = dict(settings)
settings.clear()
with LeaderElection(options, "settings", apply=apply, owner="two") as election:
    print(f"epoch {election.lead(timeout=300).epoch}: {settings}")
assert settings == before == {b"colour": b"blue", b"size": b"large"}

# %% [markdown]
# A replicated key-value store on such a log, the worked example of KIP-27, is a page of the
# documentation: `docs/fenced-log/key-value-store.md`. Its replicas are processes of their own, and
# the one that leads is killed.

# %%
broker.stop()
