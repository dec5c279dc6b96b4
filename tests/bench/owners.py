"""How long a log is without a writer: after a clean release, and after kill -9."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from coopconsume import AccessMode, ExclusiveProducer
from coopconsume.fenced.exclusive import GROUP
from coopconsume.fenced.ownership import KafkaStore
from tests.bench.figures import Ratio, Report, seconds_of, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

_RELEASE = "clean release to the next owner's first write"
_BARE = "bare init_transactions and first transaction"
_KILL = "kill -9 to the next owner's first write, less the lease"
_LEASE = 2.0
_PATIENCE = 60.0
# A process that owns a log until it is killed.
_OWNER = """
import sys
from coopconsume import ExclusiveProducer
from coopconsume.fenced.ownership import KafkaStore
servers, topic, registry, lease = sys.argv[1:]
options = {"kafka.bootstrap.servers": servers}
owner = ExclusiveProducer(options, topic, store=KafkaStore(options, registry), lease=float(lease))
owner.acquire().append([b"owner"])
print("owns", flush=True)
sys.stdin.read()
"""


def owners(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Milliseconds from the end of an owner to the first acknowledged write of the next one."""
    log = _Log(harness)
    sides: dict[str, Callable[[int], float]] = {
        _RELEASE: lambda _: log.released(),
        _BARE: lambda _: log.bare(),
        _KILL: lambda _: log.killed(),
    }
    report = Report(
        "A log changes hands",
        "The next owner waits in the queue of the registry, a Kafka log, and then appends one "
        "record in a transaction. Released: from the call of `close`. Killed: from the signal to "
        f"the owner's process, less its lease of {_LEASE:g} s. The bare side is kafka-python's "
        "`init_transactions` on a new producer that is made before, with retry_backoff_ms=5, and "
        "a transaction of one record.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "ms")
    report.ratios = [Ratio("clean release / bare", _RELEASE, _BARE)]
    report.notes.append(
        "Wanted: at most 150 ms after a clean release, at most the lease and 1,000 ms after kill "
        "-9. As an owner gives signs of life four times a lease, and the lease counts from the "
        "last one, the value after kill -9 may be below 0."
    )
    return [report]


class _Log:
    """A log and its registry."""

    def __init__(self, harness: Harness) -> None:
        self._servers = harness.broker.bootstrap_servers
        self._options = {"kafka.bootstrap.servers": self._servers}
        self._topic = f"owners-{uuid.uuid4().hex[:8]}"
        self._registry = f"{self._topic}-registry"
        harness.broker.create_topic(self._topic, 1)

    def released(self) -> float:
        """An owner closes while another one waits."""
        owner = self._producer(AccessMode.EXCLUSIVE).acquire()
        waiter = _Waiter(self._producer(AccessMode.WAIT_FOR_EXCLUSIVE), self._topic)
        began = time.perf_counter()
        owner.close()
        return 1000 * (waiter.wrote_at() - began)

    def killed(self) -> float:
        """An owner's process is killed while another one waits."""
        words = [self._servers, self._topic, self._registry, str(_LEASE)]
        with subprocess.Popen(
            [sys.executable, "-c", _OWNER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"owns\n"
            waiter = _Waiter(self._producer(AccessMode.WAIT_FOR_EXCLUSIVE), self._topic)
            began = time.perf_counter()
            process.kill()
        return 1000 * (waiter.wrote_at() - began - _LEASE)

    def bare(self) -> float:
        """What the client itself takes, without anybody's turn."""
        from kafka import KafkaProducer

        producer: Any = KafkaProducer(
            bootstrap_servers=self._servers, transactional_id=f"bare-{self._topic}",
            retry_backoff_ms=5,
        )  # fmt: skip

        def steps() -> None:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(f"{self._topic}", b"bare", partition=0).get(_PATIENCE)
            producer.commit_transaction()

        took = 1000 * seconds_of(steps)
        producer.close(timeout=5)
        return took

    def _producer(self, mode: AccessMode) -> ExclusiveProducer:
        store = KafkaStore(self._options, self._registry)
        return ExclusiveProducer(self._options, self._topic, mode=mode, store=store, lease=_LEASE)


class _Waiter:
    """Waits for its turn in a thread, then writes, then goes."""

    def __init__(self, producer: ExclusiveProducer, topic: str) -> None:
        self._producer = producer
        self._wrote_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        resource = f"{topic}-0"
        until = time.monotonic() + _PATIENCE
        while not producer.registry.show(GROUP, resource).waiters:
            if time.monotonic() > until:
                raise TimeoutError("nobody waits")
            time.sleep(0.01)

    def wrote_at(self) -> float:
        """When its first write was acknowledged."""
        self._thread.join(_PATIENCE)
        if not self._wrote_at:
            raise TimeoutError("the next owner did not write")
        return self._wrote_at

    def _run(self) -> None:
        self._producer.acquire().append([b"next"])
        self._wrote_at = time.perf_counter()
        self._producer.close()
