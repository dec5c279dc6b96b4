"""The log of a user's own session: Spark's warning of `kafka.group.id` does not flood it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.support import PATIENCE, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.testing.local import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ROOT = Path(__file__).parents[2]
#: Logs warnings, as Spark does by default.
LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %p %c: %m%n
"""
OWN = """
logger.source.name = org.apache.spark.sql.kafka010.KafkaSourceProvider
logger.source.level = warn
"""
PROGRAM = """
import json, sys
from coopconsume import CooperativeConsumer
from coopconsume.testing.local.session import local_session

options, logging = json.loads(sys.argv[1]), sys.argv[2]
flag = "-Dlog4j2.configurationFile=" + logging
spark = local_session(cores=2, conf={"spark.driver.extraJavaOptions": flag})
given = {name: options[name] for name in ("kafka.bootstrap.servers", "subscribe")}
given["kafka.group.id"] = "a-program-of-the-user"
print("first", spark.read.format("kafka").options(**given).load().count())
with CooperativeConsumer(options, spark) as consumer:
    frame = consumer.poll(600)
    print("rows", frame.count())
    consumer.commit(frame)
    print("more", consumer.poll(0).count())
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_named", [False, True])
def test_the_warning_of_the_group_id_comes_only_where_the_user_has_asked_for_it(
    kafka: LocalKafka,
    topic: Callable[..., str],
    produce: Callable[..., list[int]],
    tmp_path: Path,
    is_named: bool,
) -> None:
    """The program's own read warns once; those of a consumer do if logging names the logger."""
    import json

    name, logging = topic(1), tmp_path / "log4j2.properties"
    produce(name, [(b"k", b"v")] * 5, partition=0)
    logging.write_text(LOGGING + OWN * is_named)
    given = options(kafka, tmp_path, name, slots=2)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(given), logging.as_uri()],
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["first 5", "rows 5", "more 0"], done.stderr[-3_000:]
    warned = [line for line in done.stderr.splitlines() if "KafkaSourceProvider" in line]
    assert all("kafka.group.id" in line for line in warned)
    assert (len(warned) > 1) if is_named else (len(warned) == 1), warned
