"""Every option in one table: its type, default, range and meaning; checked once, at once.

Names are Kafka's (``kafka.*``) and Spark's (``subscribe``, ``startingOffsets``, …) where they have
one, and compared without regard to case as Spark does. The same ``kafka.*`` settings serve
Spark's source and kafka-python; `Options.client_config` is the one place that translates.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coopconsume.errors import InvalidOption, MissingOption, UnknownOption
from coopconsume.kafka.security.secrets import keep_out_of_logs
from coopconsume.kafka.settings import (
    KNOWN_KAFKA_SETTINGS,
    MEMBER_SETTINGS,
    client_config,
    complete,
    is_harmless,
    kafka_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0,
}  # fmt: skip


def parse_seconds(text: float | str) -> float:
    """Seconds from a number or a text such as ``10``, ``"10 seconds"``, ``"500ms"``.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    unit = found.group(2).lower() or "s" if found else ""
    if unit not in _UNITS:
        unit = unit.removesuffix("s")
    if not found or unit not in _UNITS:
        raise ValueError("give seconds, or a text such as '10 seconds' or '500ms'")
    return float(found.group(1)) * _UNITS[unit]


def _seconds(low: float, high: float = 86_400.0) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        seconds = parse_seconds(value)
        if not low <= seconds <= high:
            raise ValueError(f"give {low:g} to {high:g} seconds")
        return seconds

    return parse


def _whole(low: int, high: int = 2**63 - 1) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        number = int(str(value))
        if not low <= number <= high:
            raise ValueError(f"give a whole number from {low} to {high}")
        return number

    return parse


def _rate(value: Any) -> float:
    rate = float(value)
    if not 0 < rate < float("inf"):
        raise ValueError("give a number above 0")
    return rate


def _flag(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("give true or false")
    return text == "true"


def _one_of(*names: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        for name in names:
            if str(value).lower() == name.lower():
                return name
        raise ValueError(f"give one of {', '.join(names)}")

    return parse


def _text(value: Any) -> str:
    if not str(value).strip():
        raise ValueError("give a text that is not empty")
    return str(value)


def _pattern(value: Any) -> str:
    try:
        re.compile(_text(value))
    except re.error as error:
        raise ValueError(f"give a regular expression that Python knows: {error}") from None
    return str(value)


def _place(value: Any) -> str:
    from commits.secrets import SecretUri

    return SecretUri(_text(value))


def _topics(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else list(value)
    topics = tuple(dict.fromkeys(str(name).strip() for name in names))
    if not topics or not all(topics):
        raise ValueError("give topic names separated by commas")
    return topics


def _starting(value: Any) -> str | dict[str, dict[int, int]]:
    if str(value).lower() in ("earliest", "latest"):
        return str(value).lower()
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        starting = {str(t): {int(p): int(o) for p, o in ps.items()} for t, ps in parsed.items()}
    except (ValueError, AttributeError, TypeError):
        starting = {}
    if not starting or any(o < -2 for ps in starting.values() for o in ps.values()):  # noqa: PLR2004
        raise ValueError(
            'give earliest, latest or JSON such as {"topic": {"0": 23, "1": -2}} '
            "(-2 earliest, -1 latest)"
        )
    return starting


@dataclass(frozen=True)
class Option:
    """One row of the table: its name, default, how a value is read, and what it means."""

    name: str
    default: Any
    parse: Callable[[Any], Any]
    doc: str

    def read(self, value: Any) -> Any:
        """The value of a text or number that a user gave; None stands for the default.

        Raises:
            InvalidOption: It is of the wrong type or out of its range.
        """
        if value is None:
            return self.default
        try:
            return self.parse(value)
        except (ValueError, TypeError) as error:
            hint = "give a whole number" if "invalid literal" in str(error) else str(error)
            raise InvalidOption(self.name, repr(value), hint) from None

    @property
    def attribute(self) -> str:
        """Name of the field of `Options`."""
        return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", self.name.replace(".", "_")).lower()


TABLE: tuple[Option, ...] = (
    Option("subscribe", None, _topics, "Topics, separated by commas."),
    Option("subscribePattern", None, _pattern,
           "Topics whose whole names match a regular expression (Python's); topics that are "
           "created later are taken up."),
    Option("startingOffsets", "earliest", _starting,
           "Where a partition starts that nobody has committed: earliest, latest or JSON. "
           "Partitions that are added while the group exists start at earliest."),
    Option("failOnDataLoss", True, _flag,
           "Stop when records were deleted before they were done; false: report them and go on."),
    Option("onMissingTopic", "fail", _one_of("fail", "wait"),
           "When a topic does not exist yet, or is deleted: fail, or go on with the other topics "
           "until it is there."),
    Option("maxOffsetsPerTrigger", None, _whole(1),
           "Offsets a batch may span at most, over all partitions."),
    Option("minPartitions", None, _whole(1, 10_000),
           "Slices a batch is read in at least; default: slots."),
    Option("includeHeaders", False, _flag, "Hand record headers to handlers and frames."),
    Option("commitTable", None, _place,
           "Delta table that keeps the commits: its path, or its name in a catalog. Required."),
    Option("slots", None, _whole(1, 10_000),
           "Spark tasks side by side; default: the cores Spark has."),
    Option("assignor", "sticky", _one_of("sticky", "range", "roundrobin"),
           "How the members of a group share the topics; the most wanted that all know is taken."),
    Option("allowKeyShare", True, _flag,
           "Whether this member takes parts of partitions (KIP-X); if not, it is given whole ones "
           "alone."),
    Option("allow.individual.commit", True, _flag,
           "Whether this member commits record by record (KIP-X)."),
    Option("max.num.ranges.to.commit", 10_000, _whole(1),
           "Commit early when so many offset ranges have gathered (KIP-X); a commit of more has "
           "several rows."),
    Option("maxNumRanges", 1_000_000, _whole(1),
           "Committed ranges above the stable offset a partition may have; at 80 % nothing new."),
    Option("batchTime", 10.0, _seconds(0.05),
           "Seconds after which a batch starts no further handler."),
    Option("handlerTimeout", 60.0, _seconds(0.05),
           "Seconds running handlers get beyond batchTime before their worker is ended."),
    Option("drainTimeout", 10.0, _seconds(0),
           "Seconds to wait for running handlers before a share moves to a new owner."),
    Option("commitInterval", 0.2, _seconds(0, 60.0),
           "Seconds between two appends to the commit table while a job works, at least; a stop "
           "and a hand-over do not wait. A longer one repeats more after a crash."),
    Option("channelPort", 0, _whole(0, 65_535),
           "Port of the driver to which running slots connect (see spark.driver.host); 0: any."),
    Option("maxPending", 100_000, _whole(1),
           "Pending records of a partition at which no new ones are taken."),
    Option("maxRecordsPerSecond", None, _rate,
           "Records a second that may start in all; each slot has its part of it."),
    Option("maxRecordsPerSecondPerShare", None, _rate,
           "Records a second that may start of one partition in one slot."),
    Option("maxRecordsPerSecondPerKey", None, _rate,
           "Records a second that may start of one key, within a batch."),
    Option("circuitBreaker", None, _whole(1, 1_000_000),
           "Failures in a row in a slot after which the job pauses; Retry and Reject are none."),
    Option("circuitBreakerPause", 30.0, _seconds(0.05),
           "Seconds of the first pause; each failed trial doubles it, up to ten times."),
    Option("onExternalReset", "fail", _one_of("fail", "honour"),
           "When somebody else moved the group's offset in Kafka."),
    Option("deadLetter", None, _place,
           "Where records go that are given up: path of a Delta table, or `kafka:` and a topic."),
    Option("purgatory", None, _place,
           "Folder of the Delta tables in which rows of transactional outputs wait."),
    Option("maxOutputsWaiting", 1_000_000, _whole(1),
           "Records of a partition whose transactional outputs wait above its stable offset; from "
           "there on nothing new."),
)  # fmt: skip

_BY_NAME = {option.name.lower(): option for option in TABLE}
_REQUIRED_KAFKA = ("bootstrap.servers", "group.id")
#: Settings that the library sets itself, with why a user's own value is refused.
_OURS = {
    "enable.auto.commit": "records are committed one by one, into commitTable",
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "values are bytes",
    "partition.assignment.strategy": "use assignor",
}


@dataclass(frozen=True)
class Options:
    """The checked options of a consumer. Build it with `Options.parse`."""

    kafka: Mapping[str, str] = field(repr=False)
    subscribe: tuple[str, ...] | None
    subscribe_pattern: str | None
    starting_offsets: str | dict[str, dict[int, int]]
    fail_on_data_loss: bool
    on_missing_topic: str
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    include_headers: bool
    commit_table: str
    slots: int | None
    assignor: str
    allow_key_share: bool
    allow_individual_commit: bool
    max_num_ranges_to_commit: int
    max_num_ranges: int
    batch_time: float
    handler_timeout: float
    drain_timeout: float
    commit_interval: float
    channel_port: int
    max_pending: int
    max_records_per_second: float | None
    max_records_per_second_per_share: float | None
    max_records_per_second_per_key: float | None
    circuit_breaker: int | None
    circuit_breaker_pause: float
    on_external_reset: str
    dead_letter: str | None
    purgatory: str | None
    max_outputs_waiting: int

    @classmethod
    def parse(cls, options: Mapping[str, Any], *, group: bool = True) -> Options:
        """Check options as a user gives them.

        Args:
            options: Names and values.
            group: Whether ``kafka.group.id`` is needed; an operator's calls may be about no group.

        Raises:
            UnknownOption: No such option; names the closest one.
            InvalidOption: A value of the wrong type or out of range, two that exclude each
                other, or a setting of security that Spark or kafka-python cannot follow.
            MissingOption: ``kafka.bootstrap.servers``, ``kafka.group.id`` or ``commitTable``.
        """
        kafka: dict[str, str] = {}
        values = {option.attribute: option.default for option in TABLE}
        for name, value in options.items():
            if name.lower().startswith("kafka."):
                setting = kafka_name(name[len("kafka.") :])
                _check_kafka(setting)
                kafka[setting] = str(value)
            else:
                option = _BY_NAME.get(name.lower())
                if option is None:
                    raise UnknownOption(name, _closest(name, _known_names()))
                values[option.attribute] = option.read(value)
        if values["subscribe"] and values["subscribe_pattern"]:
            raise InvalidOption("subscribePattern", "given beside subscribe", "give one of the two")
        if not values["commit_table"]:
            raise MissingOption("commitTable")
        if not values["allow_individual_commit"]:
            raise InvalidOption(
                "allow.individual.commit",
                "false",
                "this consumer knows no other commits; leave it true, or use Spark's own source",
            )
        return cls(kafka=_complete(kafka, group=group), **values)

    @property
    def group_id(self) -> str:
        """``kafka.group.id``.

        Raises:
            MissingOption: It was not needed, and not given.
        """
        if "group.id" not in self.kafka:
            raise MissingOption("kafka.group.id")
        return self.kafka["group.id"]

    @property
    def read_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out."""
        return self.kafka["isolation.level"] == "read_committed"

    @property
    def outlives_topics(self) -> bool:
        """Whether the deletion of a topic whose records are done leaves a consumer running."""
        may_wait = self.on_missing_topic == "wait" or self.subscribe_pattern is not None
        return may_wait or not self.fail_on_data_loss

    @property
    def batch_life(self) -> float:
        """Seconds after which no handler of a batch runs any more."""
        return self.batch_time + self.handler_timeout

    def client_config(self) -> dict[str, Any]:
        """The same Kafka settings in kafka-python's words, for its admin client and its consumer.

        What concerns only fetching and grouping is left out.

        Raises:
            InvalidOption: A PEM file cannot be used; anything else was found when parsing.
        """
        return client_config(self.kafka)

    def source_options(self) -> dict[str, str]:
        """The same Kafka settings for Spark's source, with a fetch tuned for throughput.

        Secrets are in it, and do not show in its representation, nor in py4j's logs from now on.
        """
        keep_out_of_logs()
        tuned = {
            # What a batch reads is there. A consumer asks for more ahead, and where that is the
            # end of the log, its next read would wait for the answer.
            "fetch.max.wait.ms": "10",
            "max.poll.records": "10000",
            "max.partition.fetch.bytes": str(8 << 20),
            "fetch.max.bytes": str(64 << 20),
        }
        fetching = {k: v for k, v in self.kafka.items() if k not in MEMBER_SETTINGS}
        return {f"kafka.{name}": value for name, value in (tuned | fetching).items()}

    def redacted(self) -> dict[str, Any]:
        """All options for logs and people, secrets hidden."""
        shown: dict[str, Any] = {
            f"kafka.{name}": value if is_harmless(name) else "***"
            for name, value in self.kafka.items()
        }
        from commits.secrets import hidden_in

        return shown | {option.name: hidden_in(getattr(self, option.attribute)) for option in TABLE}

    def __str__(self) -> str:
        return str(self.redacted())


def _complete(kafka: dict[str, str], *, group: bool) -> dict[str, str]:
    for setting in _REQUIRED_KAFKA:
        if setting == "group.id" and not group and setting not in kafka:
            continue
        if not kafka.get(setting, "").strip():
            raise MissingOption(f"kafka.{setting}")
    level = kafka.setdefault("isolation.level", "read_committed")
    if level not in ("read_committed", "read_uncommitted"):
        remedy = "give read_committed or read_uncommitted"
        raise InvalidOption("kafka.isolation.level", repr(level), remedy)
    return complete(kafka)


def _known_names() -> list[str]:
    return [o.name for o in TABLE] + [f"kafka.{name}" for name in KNOWN_KAFKA_SETTINGS]


def _closest(name: str, known: list[str], cutoff: float = 0.5) -> str | None:
    by_lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def _check_kafka(setting: str) -> None:
    if setting in _OURS:
        raise InvalidOption(f"kafka.{setting}", "given", f"leave it out: {_OURS[setting]}")
    if setting not in KNOWN_KAFKA_SETTINGS:
        # Plug-ins bring settings of their own; only what looks like a slip of the pen is refused.
        closest = _closest(setting, sorted(KNOWN_KAFKA_SETTINGS), cutoff=0.85)
        if closest:
            raise UnknownOption(f"kafka.{setting}", f"kafka.{closest}")
