"""How the JVMs of a test run start.

``python -m tests.jvm``, which ``make setup`` runs, writes a class-data archive of Kafka. With it,
brokers and Kafka's tools need about half the processor time to start. Local sessions of Spark have
an archive of their own.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from coopconsume.testing.local.broker import LocalKafka
from coopconsume.testing.local.jars import KAFKA_VERSION

#: Those that live for seconds or minutes take longer to optimise what they run than it saves. The
#: cache for compiled code is small then by default, and Spark 4.2 with Delta fills it.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_ARCHIVE = Path(sys.prefix, "share", "coopconsume", f"kafka-{KAFKA_VERSION}.jsa")


def _options() -> str:
    """With the archive if it is there; a JVM that cannot use it starts without and is silent."""
    used = f' "-XX:SharedArchiveFile={_ARCHIVE}" {_QUIET}' if _ARCHIVE.is_file() else ""
    return _OPTIONS + used


JVM_OPTIONS = _options()


def write_archive() -> bool:
    """Write the archive, unless it is there; return whether it is."""
    if _ARCHIVE.is_file():
        return True
    _ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_ARCHIVE.parent) as folder:
        written = Path(folder, _ARCHIVE.name)
        os.environ["JDK_JAVA_OPTIONS"] = f'{_OPTIONS} {_QUIET} "-XX:ArchiveClassesAtExit={written}"'
        with LocalKafka() as broker:
            _work(broker)
            broker.stop(timeout=300)
        if written.is_file():
            written.rename(_ARCHIVE)
    return _ARCHIVE.is_file()


def _work(broker: LocalKafka) -> None:
    """Have a broker load what it loads in tests: for topics, transactions and groups."""
    from kafka import KafkaConsumer, KafkaProducer

    servers = broker.bootstrap_servers
    broker.create_topic("t")
    with closing(KafkaProducer(bootstrap_servers=servers, transactional_id="t")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"value")
        producer.commit_transaction()
    first = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with closing(KafkaConsumer("t", bootstrap_servers=servers, **first)) as consumer:
        next(consumer)
        consumer.commit()


if __name__ == "__main__":
    if not write_archive():
        sys.stderr.write("This Java writes no class-data archive: brokers of tests start slower.\n")
