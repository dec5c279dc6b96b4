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
# A Kafka partition as a commit log: appends that know what they follow, owners that take turns, and
# on top of that a replicated key-value store, the worked example of KIP-27. All of it on unmodified
# Kafka, and without Spark.
#
# This notebook starts its own Kafka. It needs Java 17 and `pip install 'coopconsume[notebook]'`;
# the first run fetches Kafka's jars.

# %%
import itertools
import json
import subprocess
import sys
import threading
import time

from coopconsume import AccessMode, ExclusiveProducer, FencedWriter, LeaderElection, LocalKafka
from coopconsume.errors import OffsetMismatch, ProducerBusy, ProducerFenced
from coopconsume.fenced import LogReader, LogRecord, MultiLogWriter, Write, audit_logs
from coopconsume.testing.history.linear import NEVER, Operation, check_linear

broker = LocalKafka().start()
options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
for name in ("ledger", "accounts", "orders", "turns", "settings", "seats"):
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
# ## A key-value store of several processes
#
# `coopconsume kv` is a replica of a store whose commit log is a partition. Three of them run here;
# one leads. Three customers book seats by compare-and-set, which must give each seat to one of them
# only. In the middle the leader is killed, as `kill -9` does it.


# %%
class Replica:
    """A process that is asked by lines, and answers by lines of JSON."""

    def __init__(self, name: str) -> None:
        command = ["kv", "seats", "--owner", name, "--lease", "2", "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coopconsume", *command, "-o", servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.name, self.leads, self.answers = name, False, []
        self.has_ended = False
        self.lock, self.answered = threading.Lock(), threading.Condition()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        """Takes in what it says."""
        for line in self.process.stdout:
            said = json.loads(line)
            with self.answered:
                if "event" in said:
                    self.leads = said["event"] == "leads"
                else:
                    self.answers.append(said)
                self.answered.notify_all()
        with self.answered:
            self.leads, self.has_ended = False, True
            self.answered.notify_all()

    def ask(self, command: str) -> dict | None:
        """The answer; None if the process has ended without one."""
        with self.lock, self.answered:
            try:
                self.process.stdin.write(f"{command}\n")
                self.process.stdin.flush()
            except OSError:
                return None
            # A process may take a command while it dies.
            self.answered.wait_for(lambda: self.answers or self.has_ended, timeout=300)
            return self.answers.pop(0) if self.answers else None


servers = f"kafka.bootstrap.servers={broker.bootstrap_servers}"
replicas = [Replica(name) for name in ("one", "two", "three")]


def leading() -> Replica:
    give_up = time.monotonic() + 300
    while time.monotonic() < give_up:
        for replica in replicas:
            if replica.leads:
                return replica
        time.sleep(0.05)
    raise TimeoutError("no replica leads")


print(f"{leading().name} leads")

# %% [markdown]
# Each customer tries to book each seat, and writes down when it asked, when the answer came, and
# what it was. Where a replica does not lead, it says so and does nothing; where it dies, nobody
# knows whether the seat was booked.

# %%
seats = [f"{row}{letter}" for row in range(1, 6) for letter in "ABCD"]
history: list[Operation] = []
booked = threading.Semaphore(0)


def book(customer: str) -> None:
    lives = itertools.count()
    client = customer
    for seat in seats:
        while True:
            replica = leading()
            asked = time.monotonic()
            said = replica.ask(f"cas {seat} - {customer}")
            now = time.monotonic()
            if said is None or said.get("error") == "AppendOutcomeUnknown":
                history.append(Operation(client, "cas", seat, asked, NEVER, customer))
                client = f"{customer}, life {next(lives)}"
            elif "answer" in said:
                done = said["answer"]
                history.append(Operation(client, "cas", seat, asked, now, customer, None, done))
                break
            else:
                time.sleep(0.05)
        booked.release()


customers = [threading.Thread(target=book, args=(name,)) for name in ("anna", "ben", "carl")]
for customer in customers:
    customer.start()
for _ in range(20):
    booked.acquire(timeout=300)

victim = leading()
victim.process.kill()
victim.process.wait()
for customer in customers:
    customer.join(timeout=300)
print(f"{victim.name} was killed, {leading().name} went on")

# %% [markdown]
# Linearisable means: there is one order of all operations, each between its call and its answer, in
# which every answer is right. The checker looks for one, seat by seat.

# %%
assert check_linear(history) is None
print(f"{len(history)} operations, {sum(not o.is_open and o.done for o in history)} seats booked")

with LogReader(options, "seats") as reader:
    log = [(record.seq, record.epoch, record.key, record.value) for record in reader.read()]
assert sorted(key.decode() for _, _, key, _ in log) == sorted(seats)
log[:3]

# %% [markdown]
# That a wrong history is found is easily seen: let one more customer be told that seat 1A is his.

# %%
end = max(operation.called for operation in history) + 1
wrong = [*history, Operation("dora", "cas", "1A", end, end + 1, "dora", None, done=True)]
found = check_linear(wrong)
assert found is not None
print(f"seat {found.key}: {found.stuck[0].client} cannot have been told so")

# %%
for replica in replicas:
    if replica is not victim:
        replica.ask("resign")
        replica.process.stdin.close()
        replica.process.wait(timeout=300)
broker.stop()
