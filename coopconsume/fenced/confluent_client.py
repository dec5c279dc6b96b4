"""librdkafka's errors, as the writer's engine on confluent-kafka needs them."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coopconsume.errors import NotAuthorized
from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.kafka.security import sasl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.errors import CoopConsumeError
    from coopconsume.fenced.settings import Settings


@contextmanager
def as_doubts(settings: Settings, topic: str) -> Iterator[None]:
    """Raises errors of the client as `EngineDoubt`."""
    try:
        yield
    except Exception as error:
        from confluent_kafka import KafkaException

        known = (KafkaException, BufferError, SystemError, FutureTimeoutError, OSError)
        if not isinstance(error, known):
            raise
        refusal = _refusal(error, settings, topic)
        raise EngineDoubt(str(error), refusal, is_out_of_range=_is_gone(error)) from error


def _is_gone(error: BaseException) -> bool:
    """Whether the brokers do not have an offset that was to be read."""
    from confluent_kafka import KafkaError

    kind = error.args[0] if error.args else None
    gone = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001
    return isinstance(kind, KafkaError) and kind.code() in gone


def _refusal(error: BaseException, settings: Settings, topic: str) -> CoopConsumeError | None:
    from confluent_kafka import KafkaError

    kind = error.args[0] if error.args else None
    if not isinstance(kind, KafkaError):
        return None
    user = sasl.user(settings.kafka)
    if kind.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return NotAuthorized("WRITE", "TOPIC", topic, user)
    if kind.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return NotAuthorized("WRITE", "TRANSACTIONAL_ID", "", user)
    if kind.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
        return AppendRefused(f"{topic} does not take the records: {kind.str()}")
    return None
