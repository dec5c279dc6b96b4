"""Confluent's Parallel Consumer as a peer: its jars by Ivy, a small Java program by the JDK."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coopconsume._ivy import Dependency
from coopconsume.errors import CoopConsumeError
from coopconsume.jars import JarSet, ensure
from coopconsume.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.ground import Ground

_SOURCE = Path(__file__).with_name("ParallelConsumerBench.java")
_JARS = (
    Dependency("io.confluent.parallelconsumer", "parallel-consumer-core", "0.5.3.3"),
    Dependency("org.slf4j", "slf4j-nop", "2.0.17", transitive=False),
)
_TIMEOUT = 600


@dataclass(frozen=True)
class ParallelConsumer:
    """A peer that is ready to run."""

    ground: Ground
    java: str
    class_path: str

    def seconds(self, topic: str, records: int, work: str, concurrency: int) -> float:
        """From the first handler's start to the last commit, in the order of each key."""
        group = self.ground.path("parallel-consumer").name
        ran = subprocess.run(
            [
                self.java, "-cp", self.class_path, "ParallelConsumerBench",
                self.ground.broker.bootstrap_servers, group, topic, work, str(records),
                str(concurrency),
            ],
            capture_output=True, text=True, timeout=_TIMEOUT, check=False,
        )  # fmt: skip
        lines = [line for line in ran.stdout.splitlines() if line.startswith("nanoseconds ")]
        if not lines:
            raise AssertionError(f"Parallel Consumer did not end: {ran.stderr[-2_000:]}")
        return int(lines[-1].split()[1]) / 1e9


def parallel_consumer(ground: Ground, say: Callable[[str], None]) -> ParallelConsumer | None:
    """The peer; None, and a word why, where its jars or a Java compiler are not to be had."""
    javac = shutil.which("javac")
    if javac is None:
        say("  no javac: Parallel Consumer is left out")
        return None
    try:
        java = find_java().path
        jars = ensure(JarSet("parallel-consumer", "Parallel Consumer", _JARS, 12))
    except CoopConsumeError as error:
        say(f"  Parallel Consumer is left out: {error}")
        return None
    classes = ground.path("classes")
    class_path = os.pathsep.join([*map(str, jars), str(classes)])
    classes.mkdir()
    subprocess.run(
        [javac, "--release", "17", "-d", str(classes), "-cp", class_path, str(_SOURCE)], check=True
    )
    return ParallelConsumer(ground, str(java), class_path)
