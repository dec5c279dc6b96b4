"""What failures of Kafka's clients mean for a fenced log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.errors.fenced import AppendRefused, EngineNotUsable
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.kafka.librdkafka import kafka_error
from coopconsume.kafka.security import access

if TYPE_CHECKING:
    from coopconsume.fenced.config import FencedSettings


def doubt_of(settings: FencedSettings, topic: str, error: BaseException) -> EngineDoubt | None:
    """What a failure of a client means; a missing right or a wrong record is a refusal."""
    from kafka import errors

    if not isinstance(error, errors.KafkaError | OSError | AssertionError):
        return None
    text = str(error) or type(error).__name__
    refusal = access.refused(error, settings.kafka, [topic], "WRITE")
    if isinstance(error, errors.MessageSizeTooLargeError | errors.RecordListTooLargeError):
        refusal = AppendRefused(f"the records are too large for {topic}: {text}")
    elif isinstance(error, errors.KafkaConfigurationError):
        refusal = EngineNotUsable("kafka-python", text)
    elif isinstance(error, errors.InvalidRecordError):
        refusal = AppendRefused(f"{topic} does not take the records: {text}")
    of_others = (
        errors.CommitFailedError, errors.FencedInstanceIdError, errors.IllegalGenerationError,
        errors.UnknownMemberIdError,
    )  # fmt: skip
    return EngineDoubt(
        text, refusal, is_out_of_range=isinstance(error, errors.OffsetOutOfRangeError),
        is_of_earlier_generation=isinstance(error, of_others),
    )  # fmt: skip


def doubt_of_confluent(
    settings: FencedSettings, topic: str, error: BaseException
) -> EngineDoubt | None:
    """What a failure of confluent-kafka means; of a broker's error, what it does above."""
    from confluent_kafka import KafkaError, KafkaException

    # A consumer that was closed raises RuntimeError.
    known = (KafkaException, BufferError, SystemError, RuntimeError, OSError)
    if not isinstance(error, known):
        return None
    kind: Any = error.args[0] if error.args else None
    if isinstance(kind, KafkaError):
        return doubt_of(settings, topic, kafka_error(kind))
    return EngineDoubt(str(error))
