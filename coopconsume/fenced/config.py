"""Configuration of fenced logs: Kafka's settings, and how a writer writes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from coopconsume.errors import InvalidOption, MissingOption, UnknownOption
from coopconsume.fenced.stamp import VISIBILITIES
from coopconsume.kafka.settings import (
    KNOWN_KAFKA_SETTINGS,
    check_setting,
    client_config,
    closest,
    complete,
    kafka_name,
    read_setting,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.fenced.engine import Engine
    from coopconsume.fenced.log import LogId
    from coopconsume.fenced.stamp import Visibility


_LONGEST_SESSION: Final = 200


class EpochSource:
    """Gives an owner its epoch; without a registry, the last one to acquire a log owns it.

    A subclass decides who may have the log, and raises `ProducerFenced` if another owner has it.
    Safety does not depend on it, but on the ``open`` records of the log.
    """

    def next_epoch(self, log: LogId, last: int) -> int:
        """Returns the epoch to open a log under, above the highest one in it (``last``, or 0).

        It is called after all earlier owners were fenced and the log was read to its end, and again
        if the log has grown meanwhile.
        """
        del log
        return last + 1

    def join(self, log: LogId) -> None:
        """Checks that this writer may write beside others.

        A writer with shared access calls it after it has read the log to its end. An exclusive
        owner that takes the log after this call opens it behind that end, where the writer sees it.
        """

    def check(self, log: LogId, epoch: int) -> None:
        """Checks that the log still belongs to the owner with an epoch, before it reconnects."""


class WriterOptions(TypedDict, total=False):
    """Keyword arguments of the classes that write: see `WriterConfig`."""

    visibility: Visibility
    owner: str | None
    epochs: EpochSource | None
    engine: str | Engine
    shared: bool
    fence_owner: bool | None
    session: str | None
    epoch: int | None
    compacted: bool | None
    timeout: float
    checkpoint_every: float | None


@dataclass(frozen=True, kw_only=True)
class WriterConfig:
    """How a writer writes to its log.

    Attributes:
        visibility: Who sees what counts. ``read_committed``: every consumer that reads committed
            records, as each append is a transaction. ``filter``: readers that check the records'
            headers, such as this library's; an append is one send, and a late append of a former
            owner does not count.
        owner: Name of the owner, for people; host and process by default.
        epochs: Where the epoch comes from, as from a claim in a registry; by default the last one
            to acquire the log owns it.
        engine: ``kafka-python``; ``confluent-kafka``, if installed; or an engine of your own.
        shared: Write beside others that share the log, and fence nobody; an owner that acquires the
            log fences all of them. An append is tried again where another one came first.
        fence_owner: What `acquire` does if the log has another owner. A log does not show whether
            its owner is alive. True: fences it. False: raises `ProducerBusy`, and leaves it alone;
            ``acquire(replaces_epoch=…)`` then takes the log from an owner that is known to be gone.
            None: fences it, and logs a warning that names it.
        session: Id of a session to continue, of 1 to 200 characters: a writer's `session`, or a
            name of your own. While the log is still the session's, it is acquired again under its
            epoch, by one writer at a time; else under the next one. By default a new session.
        epoch: The epoch that the session had, or that a registry granted to it, above 0: an owner
            that has opened the log since then, or under a higher one, fences this writer.
        compacted: Whether the topic is compacted; by default Kafka is asked.
        timeout: Seconds that any call may take, above 0.
        checkpoint_every: Seconds without an append, above 0, after which a thread writes a
            checkpoint; None: never. If it is less than the topic's retention and Kafka's
            ``transactional.id.expiration.ms`` (7 days), it keeps the numbers of an idle log.

    Raises:
        InvalidOption: A value makes no sense.
    """

    visibility: Visibility = "read_committed"
    owner: str | None = None
    epochs: EpochSource | None = None
    engine: str | Engine = "kafka-python"
    shared: bool = False
    fence_owner: bool | None = None
    session: str | None = None
    epoch: int | None = None
    compacted: bool | None = None
    timeout: float = 30.0
    checkpoint_every: float | None = None

    def __post_init__(self) -> None:
        session, epoch, every = self.session, self.epoch, self.checkpoint_every
        length = 1 if session is None else len(session)
        alone = "writers that share a log have none and fence nobody: leave it out"
        for name, is_right, remedy in (
            ("visibility", self.visibility in VISIBILITIES, f"give one of {VISIBILITIES}"),
            ("timeout", self.timeout > 0, "give seconds above 0"),
            ("checkpoint_every", every is None or every > 0, "give seconds above 0, or None"),
            ("session", 0 < length <= _LONGEST_SESSION, "give 1 to 200 characters"),
            ("epoch", epoch is None or (epoch > 0 and session), "give one above 0, of a session"),
            ("session", not self.shared or session is None, alone),
            ("fence_owner", not self.shared or self.fence_owner is None, alone),
        ):
            if not is_right:
                raise InvalidOption(name, repr(getattr(self, name)), remedy)


#: Settings of producers that may be given; the others are the writer's own business.
PRODUCER_SETTINGS: Final = {
    "compression.type": str,
    "max.request.size": int,
    "transaction.timeout.ms": int,
}
_KNOWN: Final = KNOWN_KAFKA_SETTINGS | PRODUCER_SETTINGS.keys()
CHECK: Final = "check.expected.offsets"
_OURS: Final = {
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
                check_setting(setting, _OURS, _KNOWN)
                kafka[setting] = str(value)
            else:
                known = [CHECK, *(f"kafka.{setting}" for setting in sorted(_KNOWN))]
                raise UnknownOption(name, closest(name, known))
        if not kafka.get("bootstrap.servers", "").strip():
            raise MissingOption("kafka.bootstrap.servers")
        for setting, kind in PRODUCER_SETTINGS.items():
            read_setting(kafka, setting, kind)
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
            name.replace(".", "_"): read_setting(self.kafka, name, kind)
            for name, kind in PRODUCER_SETTINGS.items()
            if name in self.kafka
        }
        return self.client_config() | given


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
