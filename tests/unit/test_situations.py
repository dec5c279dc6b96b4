"""Whatever reads Kafka records has entered itself in the suite of situations."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.situations.parts import PARTS, READERS

ROOT = Path(__file__).parents[2]
#: What makes a reader: the clients' classes, what makes these, and the format of Spark's source.
_CLASSES = {
    "KafkaConsumer", "Consumer", "DeserializingConsumer", "AIOConsumer", "record_consumer",
    "RecordReader",
}  # fmt: skip

#: Makes a consumer that is a member of the group and never reads.
_MEMBERSHIP = "coopconsume/group/member.py"
#: Asks whether Spark has its Kafka source, and never reads.
_DOCTOR = "coopconsume/doctor/driver.py"


def makes_a_reader(tree: ast.AST) -> bool:
    """Return whether code makes a consumer of a client, or reads with Spark's source."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        passed = {getattr(one, "id", getattr(one, "attr", "")) for one in node.args}
        # `connected(KafkaConsumer, …)` makes one, too.
        if _CLASSES & {name, *passed}:
            return True
        if name == "format" and isinstance(called, ast.Attribute) and node.args:
            is_read = getattr(called.value, "attr", "") in {"read", "readStream"}
            if is_read and getattr(node.args[0], "value", "") == "kafka":
                return True
    return False


def test_each_module_that_makes_a_reader_is_entered() -> None:
    """A new reader names the parts whose turns use it; demo and testing read for themselves."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "coopconsume").rglob("*.py")
        if path.relative_to(ROOT).parts[1] not in {"demo", "testing"}
        and path.relative_to(ROOT).as_posix() not in {_MEMBERSHIP, _DOCTOR}
        and makes_a_reader(ast.parse(path.read_text()))
    }
    assert found == set(READERS), "enter it in tests/situations/parts.py"
    assert {name for names in READERS.values() for name in names} == {part.name for part in PARTS}


def test_records_have_one_client() -> None:
    """One function makes its consumers, and one its producers.

    kafka-python's consumer is a member of groups.
    """
    users: dict[str, set[str]] = {}
    for path in (ROOT / "coopconsume").rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name.split("/")[1] in {"demo", "testing"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in {"kafka", "confluent_kafka"}:
                for one in node.names:
                    users.setdefault(f"{node.module}.{one.name}", set()).add(name)
    assert users["kafka.KafkaConsumer"] == {_MEMBERSHIP}
    assert "kafka.KafkaProducer" not in users
    for kind in ("Consumer", "Producer"):
        assert users[f"confluent_kafka.{kind}"] == {"coopconsume/kafka/librdkafka.py"}
