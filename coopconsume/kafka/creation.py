"""Creates topics."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from coopconsume.errors import NotAuthorized, OutputNotWritten, OutputRefused
from coopconsume.kafka.security import access, sasl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.options import Options

_TIMEOUT_MS: Final = 30_000
#: The broker decides.
_REPLICAS_BY_DEFAULT: Final = -1


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

    topic = {
        "num_partitions": partitions, "replication_factor": _REPLICAS_BY_DEFAULT,
        "configs": dict(config),
    }  # fmt: skip
    try:
        with closing(KafkaAdminClient(**options.client_config())) as admin:
            if name in admin.list_topics():
                return
            try:
                admin.create_topics({name: topic})
            except errors.TopicAlreadyExistsError:  # Another member was faster.
                return
            admin.wait_for_topics([name], timeout_ms=_TIMEOUT_MS)
    except (errors.KafkaError, OSError) as error:
        if isinstance(error, errors.TopicAuthorizationFailedError):
            raise NotAuthorized("CREATE", "TOPIC", name, sasl.user(options.kafka)) from None
        refused = access.refused(error, options.kafka, [name])
        if refused is not None:
            raise refused from None
        cause = f"{type(error).__name__}: {error}"
        is_permanent = isinstance(
            error,
            (
                errors.InvalidConfigurationError, errors.InvalidPartitionsError,
                errors.InvalidTopicError, errors.PolicyViolationError,
            ),
        )  # fmt: skip
        kind = OutputRefused if is_permanent else OutputNotWritten
        raise kind(what, f"topic {name!r}, which is to be created", cause) from error
