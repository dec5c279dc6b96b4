"""Java peers, by small programs that the JDK compiles: Parallel Consumer and a share group."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coopconsume.errors import CoopConsumeError
from coopconsume.testing.local.ivy import Dependency
from coopconsume.testing.local.jars import JarSet, ensure
from coopconsume.testing.local.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

#: Of Confluent; in the order of each key.
PARALLEL_CONSUMER = "Parallel Consumer"
#: Of Kafka (KIP-932), a preview in 4.1; in no order.
SHARE_GROUP = "share group, no order"
_JARS = (
    Dependency("io.confluent.parallelconsumer", "parallel-consumer-core", "0.5.3.3"),
    Dependency("org.slf4j", "slf4j-nop", "2.0.17", transitive=False),
)
_TIMEOUT = 600


@dataclass(frozen=True)
class Peer:
    """A peer that is ready to run.

    Attributes:
        name: What it is called in tables.
        program: The class that runs it.
    """

    name: str
    harness: Harness
    java: str
    class_path: str
    program: str

    def seconds(self, topic: str, records: int, work: str, concurrency: int) -> float:
        """From the first handler's start to the last commit."""
        group = self.harness.path("peer").name
        ran = subprocess.run(
            [
                self.java, "-cp", self.class_path, self.program,
                self.harness.broker.bootstrap_servers, group, topic, work, str(records),
                str(concurrency),
            ],
            capture_output=True, text=True, timeout=_TIMEOUT, check=False,
        )  # fmt: skip
        lines = [line for line in ran.stdout.splitlines() if line.startswith("nanoseconds ")]
        if not lines:
            raise AssertionError(f"{self.name} did not end: {ran.stderr[-2_000:]}")
        return int(lines[-1].split()[1]) / 1e9

    def stamps(self, topic: str, records: int, concurrency: int, send: Callable[[], object]) -> str:
        """Notes when handlers are called, as `Stamps` does, of a record and of those then sent.

        Args:
            topic: The topic, which has one record.
            records: How many there will be.
            concurrency: Handlers that run side by side.
            send: Sends the others; called once the first one was handled.
        """
        file = self.harness.path("stamps")
        process = subprocess.Popen(
            [
                self.java, "-cp", self.class_path, self.program,
                self.harness.broker.bootstrap_servers, self.harness.path("peer").name, topic,
                f"stamps:{file}", str(records), str(concurrency),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            try:
                if process.stdout.readline() != "begun\n":
                    raise AssertionError(f"{self.name} did not begin")
                send()
                process.wait(_TIMEOUT)
            finally:
                process.kill()
        return file.read_text()


def java_peers(harness: Harness, say: Callable[[str], None]) -> list[Peer]:
    """The peers; without its jars or compiler a peer is missing, and the output says why."""
    javac = shutil.which("javac")
    if javac is None:
        say("  no javac: Parallel Consumer and share groups are left out")
        return []
    found = []
    for name, program, jars in (
        (PARALLEL_CONSUMER, "ParallelConsumerBench", _parallel_consumer_jars),
        (SHARE_GROUP, "ShareGroupBench", lambda: harness.broker.jars),
    ):
        try:
            found.append(_compiled(harness, javac, name, program, jars()))
        except CoopConsumeError as error:
            say(f"  {name} is left out: {error}")
    return found


def _parallel_consumer_jars() -> list[Path]:
    return ensure(JarSet("parallel-consumer", "Parallel Consumer", _JARS, 12))


def _compiled(harness: Harness, javac: str, name: str, program: str, jars: list[Path]) -> Peer:
    classes = harness.path("classes")
    class_path = os.pathsep.join([*map(str, jars), str(classes)])
    source = Path(__file__).with_name(f"{program}.java")
    classes.mkdir()
    subprocess.run(
        [javac, "--release", "17", "-d", str(classes), "-cp", class_path, str(source)], check=True
    )
    return Peer(name, harness, str(find_java().path), class_path, program)
