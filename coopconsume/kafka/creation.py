"""Creates topics."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import OutputNotWritten, OutputRefused
from coopconsume.kafka.security import access

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.options import Options

_TIMEOUT_MS: Final = 30_000
#: The broker decides.
_REPLICAS_BY_DEFAULT: Final = -1
#: The settings of a topic whose records stay until they are deleted.
WITHOUT_RETENTION: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}


def make_topic(
    admin: Any,
    name: str,
    partitions: int,
    config: Mapping[str, str],
    replicas: int | None = None,
) -> None:
    """Creates a topic, unless another process is faster.

    Args:
        admin: kafka-python's admin client, whose errors this function raises.
        name: The topic.
        partitions: The number of its partitions.
        config: Kafka's topic settings.
        replicas: The number of replicas; None for the brokers' default.
    """
    from kafka.admin import NewTopic
    from kafka.errors import TopicAlreadyExistsError

    copies = _REPLICAS_BY_DEFAULT if replicas is None else replicas
    with suppress(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(name, partitions, copies, topic_configs=dict(config))])


def create_topic(
    options: Options, name: str, partitions: int, config: Mapping[str, str], what: str
) -> None:
    """Creates a topic with the broker's default number of replicas, unless it exists.

    Args:
        options: The options of the consumer.
        name: The topic.
        partitions: The number of its partitions.
        config: Kafka's topic settings.
        what: The kind of the records that are to be written, for errors.

    Raises:
        AuthenticationFailed: The cluster does not let this user in.
        NotAuthorized: This user may not create the topic.
        OutputNotWritten: It cannot be created now.
        OutputRefused: The broker refuses the name, the number or a setting.
    """
    from kafka import errors
    from kafka.admin import KafkaAdminClient

    try:
        with closing(KafkaAdminClient(**options.client_config())) as admin:
            if name in admin.list_topics():
                return
            make_topic(admin, name, partitions, config)
            admin.wait_for_topics([name], timeout_ms=_TIMEOUT_MS)
    except (errors.KafkaError, OSError) as error:
        refused = access.refused(error, options.kafka, [name], "CREATE")
        if refused is not None:
            raise refused from None
        cause = f"{type(error).__name__}: {error}"
        is_permanent = isinstance(
            error,
            (
                errors.InvalidConfigurationError,
                errors.InvalidPartitionsError,
                errors.InvalidTopicError,
                errors.PolicyViolationError,
            ),
        )
        kind = OutputRefused if is_permanent else OutputNotWritten
        raise kind(what, f"topic {name!r}, which is to be created", cause) from error
