"""Options of the fenced writer: Kafka's settings, and which topics are checked."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import InvalidOption, MissingOption, UnknownOption
from coopconsume.kafka.settings import (
    KNOWN_KAFKA_SETTINGS,
    client_config,
    complete,
    is_harmless,
    kafka_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Settings of producers that may be given; the others are the writer's own business.
PRODUCER_SETTINGS: Final = {
    "compression.type": str,
    "max.request.size": int,
    "transaction.timeout.ms": int,
}
CHECK: Final = "check.expected.offsets"
_OURS: Final = {
    "acks": "it is always all",
    "enable.idempotence": "it is always on",
    "isolation.level": "the reader of each log knows it",
    "linger.ms": "an append is one batch",
    "transactional.id": "it belongs to the log",
}


@dataclass(frozen=True)
class Settings:
    """The checked options of a writer or reader. Build it with `Settings.parse`.

    Attributes:
        kafka: Settings in Kafka's words, without ``kafka.``.
        checked: Whether expected offsets are looked at: in all topics, in none, or in these.
    """

    kafka: Mapping[str, str] = field(repr=False)
    checked: bool | frozenset[str] = True

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Settings:
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
                _check(setting)
                kafka[setting] = str(value)
            else:
                raise UnknownOption(name, _closest(name, 0.5))
        if not kafka.get("bootstrap.servers", "").strip():
            raise MissingOption("kafka.bootstrap.servers")
        for setting, kind in PRODUCER_SETTINGS.items():
            _read(kafka, setting, kind)
        return cls(complete(kafka), checked)

    def checks(self, topic: str) -> bool:
        """Whether expected offsets are looked at in a topic."""
        return self.checked if isinstance(self.checked, bool) else topic in self.checked

    def client_config(self) -> dict[str, Any]:
        """The settings in kafka-python's words, for its admin client and its consumer."""
        return client_config(self.kafka)

    def producer_config(self) -> dict[str, Any]:
        """Those settings, and those of producers that were given."""
        given = {
            name.replace(".", "_"): _read(self.kafka, name, kind)
            for name, kind in PRODUCER_SETTINGS.items()
            if name in self.kafka
        }
        return self.client_config() | given

    def __str__(self) -> str:
        shown = {name: value if is_harmless(name) else "***" for name, value in self.kafka.items()}
        return f"{shown}, {CHECK}: {self.checked}"


def _checked(value: Any) -> bool | frozenset[str]:
    if isinstance(value, bool):
        return value
    names = value.split(",") if isinstance(value, str) else list(value)
    topics = frozenset(str(name).strip() for name in names)
    if not all(topics) or not topics:
        raise InvalidOption(CHECK, repr(value), "give true, false, or topics separated by commas")
    lowered = {topic.lower() for topic in topics}
    return lowered == {"true"} if lowered <= {"true", "false"} else topics


def _check(setting: str) -> None:
    if setting in _OURS:
        raise InvalidOption(f"kafka.{setting}", "given", f"leave it out: {_OURS[setting]}")
    if setting not in KNOWN_KAFKA_SETTINGS and setting not in PRODUCER_SETTINGS:
        # Plug-ins bring settings of their own; only what looks like a slip of the pen is refused.
        closest = _closest(f"kafka.{setting}", 0.85)
        if closest:
            raise UnknownOption(f"kafka.{setting}", closest)


def _closest(name: str, cutoff: float) -> str | None:
    known = [
        CHECK,
        *(f"kafka.{n}" for n in sorted(KNOWN_KAFKA_SETTINGS | PRODUCER_SETTINGS.keys())),
    ]
    found = difflib.get_close_matches(name.lower(), known, n=1, cutoff=cutoff)
    return found[0] if found else None


def _read(kafka: Mapping[str, str], name: str, kind: type) -> Any:
    try:
        return kind(kafka[name]) if name in kafka else None
    except ValueError:
        raise InvalidOption(f"kafka.{name}", repr(kafka[name]), "give a number") from None
