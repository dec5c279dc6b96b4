"""Chooses the Kafka client of a fenced log by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coopconsume.errors.fenced import EngineNotUsable

if TYPE_CHECKING:
    from coopconsume.fenced.engine import Engine
    from coopconsume.fenced.settings import Settings

ENGINES: Final = ("kafka-python", "confluent-kafka")


def open_engine(engine: str | Engine, settings: Settings, timeout: float) -> Engine:
    """Returns an engine.

    Args:
        engine: ``kafka-python``, ``confluent-kafka``, or an engine, which is returned as it is.
        settings: How to reach Kafka.
        timeout: Seconds that a request may take.

    Raises:
        EngineNotUsable: There is no such engine, or it is not installed.
    """
    if not isinstance(engine, str):
        return engine
    if engine == "kafka-python":
        from coopconsume.fenced.kafka_engine import KafkaPythonEngine

        return KafkaPythonEngine(settings, timeout)
    if engine == "confluent-kafka":
        from coopconsume.fenced.confluent_engine import ConfluentEngine

        return ConfluentEngine(settings, timeout)
    raise EngineNotUsable(engine, f"there is no such engine; give one of {', '.join(ENGINES)}")
