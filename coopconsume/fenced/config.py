"""Kafka's settings of fenced logs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import InvalidOption, MissingOption, UnknownOption
from coopconsume.kafka.settings import (
    KNOWN_KAFKA_SETTINGS,
    check_foreign,
    check_setting,
    client_config,
    closest,
    complete,
    kafka_name,
    read_setting,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Settings of producers that may be given; the others are the writer's own business.
PRODUCER_SETTINGS: Final = {
    "compression.type": str,
    "max.request.size": int,
    "transaction.timeout.ms": int,
}
_KNOWN: Final = KNOWN_KAFKA_SETTINGS | PRODUCER_SETTINGS.keys()
CHECK: Final = "check.expected.offsets"
REFUSED_SETTINGS: Final = {
    "acks": "it is always all",
    "enable.idempotence": "it is always on",
    "isolation.level": "the reader of each log knows it",
    "linger.ms": "an append is one batch",
    "transactional.id": "it belongs to the log",
}


@dataclass(frozen=True)
class FencedSettings:
    """The checked options of a writer or reader. Build it with `FencedSettings.parse`.

    Attributes:
        kafka: Settings in Kafka's words, without ``kafka.``.
        checked: Whether expected offsets are looked at: in all topics, in none, or in these.
    """

    kafka: Mapping[str, str] = field(repr=False)
    checked: bool | frozenset[str] = True

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> FencedSettings:
        """Check options as a user gives them.

        Args:
            options: ``kafka.*`` as for a consumer, of producers ``kafka.compression.type``,
                ``kafka.max.request.size`` and ``kafka.transaction.timeout.ms``; and KIP-27's
                ``check.expected.offsets``: true (the default), false, or topics with commas.

        Raises:
            UnknownOption: No such option; names the closest one.
            InvalidOption: A value that makes no sense, or a setting of security that Python's
                clients cannot follow.
            MissingOption: ``kafka.bootstrap.servers``.
        """
        kafka: dict[str, str] = {}
        checked: bool | frozenset[str] = True
        for name, value in options.items():
            if name.lower() == CHECK:
                checked = _checked(value)
            elif name.lower().startswith("kafka."):
                setting = kafka_name(name[len("kafka.") :])
                check_setting(setting, REFUSED_SETTINGS, _KNOWN)
                kafka[setting] = str(value)
            else:
                known = [CHECK, *(f"kafka.{setting}" for setting in sorted(_KNOWN))]
                check_foreign(name)
                raise UnknownOption(name, closest(name, known))
        if not kafka.get("bootstrap.servers", "").strip():
            raise MissingOption("kafka.bootstrap.servers")
        for setting, kind in PRODUCER_SETTINGS.items():
            read_setting(kafka, setting, kind)
        return cls(complete(kafka), checked)

    def checks(self, topic: str) -> bool:
        """Whether expected offsets are looked at in a topic."""
        return self.checked if isinstance(self.checked, bool) else topic in self.checked

    @property
    def max_request_size(self) -> int:
        """Bytes that a request may have."""
        return int(self.kafka.get("max.request.size", 1 << 20))

    def client_config(self) -> dict[str, Any]:
        """The settings in kafka-python's words, for its admin client."""
        return client_config(self.kafka)


def check_name(option: str, name: str) -> None:
    """Checks the name of a job or of a list, with which ids of batches begin."""
    if re.fullmatch(r"[A-Za-z0-9._-]{1,40}", name) is None:
        raise InvalidOption(option, repr(name), "give 1 to 40 letters, digits or ._-")


def _checked(value: Any) -> bool | frozenset[str]:
    if isinstance(value, bool):
        return value
    names = value.split(",") if isinstance(value, str) else list(value)
    topics = frozenset(str(name).strip() for name in names)
    if not all(topics) or not topics:
        raise InvalidOption(CHECK, repr(value), "give true, false, or topics separated by commas")
    lowered = {topic.lower() for topic in topics}
    return lowered == {"true"} if lowered <= {"true", "false"} else topics
