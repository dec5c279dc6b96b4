"""The options of a consumer: each is declared once, as a field of `Options`.

A declaration has the default, the values that are accepted and the meaning. The parser, the
documentation and the command line use it.

Names are Kafka's (``kafka.*``) and Spark's (``subscribe``, ``startingOffsets``, …) where they have
one, and compared without regard to case as Spark does. The same ``kafka.*`` settings serve
Spark's source and kafka-python; `Options.client_config` is the one place that translates.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from commits.sharing import COOPERATIVE
from coopconsume.errors import InvalidOption, MissingOption
from coopconsume.filters import KEY_ENCODINGS, RecordFilter, checked_expression, parse_filter
from coopconsume.kafka.security.secrets import keep_out_of_logs
from coopconsume.kafka.settings import MEMBER_SETTINGS, check_setting, client_config, complete
from coopconsume.option_declaration import declare, declared
from coopconsume.option_names import (
    CLIENT_SETTINGS,
    REFUSED_SETTINGS,
    WITHOUT_EFFECT,
    check_names,
    client_setting,
    shown_value,
)
from coopconsume.option_values import (
    DESTINATION,
    EXPRESSION,
    FILE,
    FLAG,
    FOLDER,
    HEADERS,
    KEYS,
    PATTERN,
    PLACE,
    RATE,
    SETTINGS,
    STARTING,
    TOPICS,
    WORDS,
    commit_interval_of,
    one_of,
    seconds,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_REQUIRED_KAFKA = ("bootstrap.servers", "group.id")


@dataclass(frozen=True)
class Options:
    """The checked options of a consumer. Build it with `Options.parse`."""

    kafka: Mapping[str, str] = field(repr=False)
    subscribe: tuple[str, ...] | None = declare(
        None, TOPICS, "The topics.",
    )  # fmt: skip
    subscribe_pattern: str | None = declare(
        None, PATTERN,
        "Topics whose whole names match the expression; topics that are created later are added.",
    )  # fmt: skip
    starting_offsets: str | dict[str, dict[int, int]] = declare(  # noqa: RUF009 - a field
        "earliest", STARTING,
        "Where a partition without a commit starts. Partitions that are added while the group "
        "exists start at earliest.",
    )  # fmt: skip
    fail_on_data_loss: bool = declare(
        True, FLAG,
        "Stop if records were deleted before they were done; false: report the loss and continue.",
    )  # fmt: skip
    on_missing_topic: str = declare(
        "fail", one_of("fail", "wait"),
        "If a topic does not exist yet, or is deleted: fail, or continue with the other topics "
        "until it exists.",
    )  # fmt: skip
    max_offsets_per_trigger: int | None = declare(
        None, whole(1), "Offsets that a batch may span, over all partitions.",
    )  # fmt: skip
    min_partitions: int | None = declare(
        None, whole(1, 10_000),
        "Slices in which a batch is read, at least; default: slots.",
    )  # fmt: skip
    keep_failed_keys: bool = declare(
        True, FLAG,
        "Keep the first 64 characters of the key of a failed record in the commit table, until the "
        "record is done; false: what shows the key reads it from Kafka.",
    )  # fmt: skip
    include_headers: bool = declare(
        False, FLAG, "Pass record headers to handlers and frames.",
    )  # fmt: skip
    commit_table: str = declare(
        None, PLACE,
        "The Delta table of the commits: its path, or its name in a catalog. Required.",
    )  # fmt: skip
    slots: int | None = declare(
        None, whole(1, 10_000),
        "Spark tasks side by side; default: the cores that Spark has, in real time all but one.",
    )  # fmt: skip
    assignor: str = declare(
        "sticky", one_of("sticky", "range", "roundrobin"),
        "How the members of a group share the topics; the group uses the one that most members "
        "ask for and all of them know.",
    )  # fmt: skip
    sharing: str = declare(
        "keyRanges", one_of("keyRanges", COOPERATIVE),
        "How the members of a group share partitions: each has key ranges of its own, or all of "
        "them acquire chunks of offsets (KIP-X's cooperative fetch), for handlers with "
        '`ordering="none"`.',
    )  # fmt: skip
    allow_key_share: bool = declare(
        True, FLAG,
        "Whether this member takes parts of partitions (KIP-X); if not, it gets whole partitions "
        "only.",
    )  # fmt: skip
    command_place: str | None = declare(
        None, WORDS,
        "How next commands name the cluster and the commit table; default: by their options.",
        is_listed=False,
    )  # fmt: skip
    allow_individual_commit: bool = declare(
        True, FLAG,
        "Whether this member commits record by record (KIP-X); only true is accepted.",
        name="allow.individual.commit", is_listed=False,
    )  # fmt: skip
    max_bytes_key_range_hashing: int = declare(
        64 << 20, whole(0),
        "Bytes of records that the fetch server of a host keeps in real time (KIP-X), at most: "
        "it reads the brokers once for all slots of the host. 0: each slot reads for itself.",
        name="max.bytes.key.range.hashing",
    )  # fmt: skip
    key_range_hashing_content: str = declare(
        "record", one_of("record", "key"),
        "What the fetch server of a host keeps of a record (KIP-X): all of it, or no value and no "
        "headers. With `key` each slot reads these of its own records from the brokers, by offset.",
        name="key.range.hashing.content",
    )  # fmt: skip
    max_num_ranges_to_commit: int = declare(
        10_000, whole(1),
        "Ranges in one commit (KIP-X): with so many to commit, a commit is written early, and a "
        "larger one is written as several rows. `maxNumRanges` is for all ranges of a partition.",
        name="max.num.ranges.to.commit",
    )  # fmt: skip
    max_num_ranges: int = declare(
        1_000_000, whole(1),
        "Committed ranges of a partition above its stable offset. From 80 % of it on no new "
        "records are read. What was read is committed also above it; what users commit by name is "
        "not.",
    )  # fmt: skip
    batch_time: float = declare(
        10.0, seconds(0.05),
        "Time after which a batch starts no further handler.",
    )  # fmt: skip
    handler_timeout: float = declare(
        60.0, seconds(0.05),
        "Time for running handlers beyond batchTime; then their worker is ended.",
    )  # fmt: skip
    lease_grace: float = declare(
        7.0, seconds(0.05),
        "Time after the end of a slot's lease in which its driver must be there again, while "
        "handlers run; then its worker is ended, and no attempt is charged. The next owners wait "
        "for lease + leaseGrace after a crash.",
    )  # fmt: skip
    drain_timeout: float = declare(
        10.0, seconds(0),
        "Time for running handlers before a share moves to a new owner.",
    )  # fmt: skip
    max_poll_interval: float = declare(
        300.0, seconds(0.1),
        "Time between two calls of poll, commit, retry or reject, at most. Then a subscribed "
        "consumer without a running query leaves the group, as in Kafka; what was polled and not "
        "committed comes again, and the next call of poll joins again.",
    )  # fmt: skip
    commit_interval: float = declare(
        None, seconds(0, 60),
        "Time between two appends to the commit table while a job works, at least; a stop and a "
        "hand-over do not wait. By default 0.04 on a local disk and 0.2 elsewhere; appends that "
        "take much of a processor make it longer, up to 0.2. A longer one repeats more after a "
        "crash.",
    )  # fmt: skip
    channel_port: int = declare(
        0, whole(0, 65_535),
        "Port of the driver to which running slots connect (see spark.driver.host); 0: any.",
    )  # fmt: skip
    ui_port: int = declare(
        0, whole(0, 65_535),
        "Port of the live page that `query.ui_url` starts at localhost; 0: any.",
    )  # fmt: skip
    show_waiting: bool = declare(
        True, FLAG,
        "Write what a job waits for to standard error, in one line, if it still does ten seconds "
        "later; `coopconsume run` has a status line instead.",
    )  # fmt: skip
    show_handler_lines: int = declare(
        0, whole(0, 1_000),
        "How many lines of what handlers log and print the driver shows in a second, with their "
        "records; 0: none.",
    )  # fmt: skip
    max_pending: int = declare(
        100_000, whole(1),
        "Pending records of a partition, and records that wait behind them, at which no new "
        "records are read.",
    )  # fmt: skip
    max_records_per_second: float | None = declare(
        None, RATE, "Records that may start in a second; each slot has its part of it.",
    )  # fmt: skip
    max_records_per_second_per_share: float | None = declare(
        None, RATE, "Most records of one partition that a slot starts in a second.",
    )  # fmt: skip
    max_records_per_second_per_key: float | None = declare(
        None, RATE, "Records of one key that may start in a second, within a batch.",
    )  # fmt: skip
    circuit_breaker: int | None = declare(
        None, whole(1, 1_000_000),
        "Failures in a row in a slot after which the job pauses; Retry and Reject do not count.",
    )  # fmt: skip
    circuit_breaker_pause: float = declare(
        30.0, seconds(0.05),
        "Length of the first pause; each failed trial doubles it, up to ten times.",
    )  # fmt: skip
    on_external_reset: str = declare(
        "fail", one_of("fail", "honour"),
        "If another client changed the group's offset in Kafka: fail, or continue from there.",
    )  # fmt: skip
    handler_log_lines: int = declare(
        0, whole(0, 100),
        "The last lines that a handler has logged and printed in a call, which dead letters and "
        "the log of failures have with the trace of its error; 0: none.",
    )  # fmt: skip
    trace_handlers: bool = declare(
        False, FLAG, "Make an OpenTelemetry span of each handler call, in its record's trace.",
    )  # fmt: skip
    emit_lineage: bool = declare(
        False, FLAG, "Send the inputs and outputs of a query as events of OpenLineage.",
    )  # fmt: skip
    dead_letter: str | None = declare(
        None, DESTINATION,
        "The destination of records that are given up: a Delta table or a topic.",
    )  # fmt: skip
    dead_letter_partitions: int = declare(
        0, whole(0, 100_000),
        "Partitions of the topic of `deadLetter`, which is created with the first dead letter; 0: "
        "it is not created.",
    )  # fmt: skip
    dead_letter_topic_config: dict[str, str] | None = declare(  # noqa: RUF009 - a field
        None, SETTINGS,
        "Settings of a topic that `deadLetterPartitions` creates, such as "
        '`{"retention.ms": "-1"}`.',
    )  # fmt: skip
    purgatory: str | None = declare(
        None, FOLDER, "Folder of the Delta tables in which rows of transactional outputs wait.",
    )  # fmt: skip
    max_outputs_waiting: int = declare(
        1_000_000, whole(1),
        "Records of a partition whose transactional outputs wait above its stable offset. At this "
        "number no new records are read.",
    )  # fmt: skip
    ordering_key: str | None = declare(
        None, EXPRESSION,
        "A Spark SQL expression over the columns of Spark's Kafka source, a string or binary. Its "
        "value takes the place of the record's key in dealing, order, state and dead letters; "
        "null means none. It depends on the record alone, and is the same for the whole group.",
    )  # fmt: skip
    where: str | None = declare(
        None, EXPRESSION,
        "Filter: a condition over the columns of Spark's Kafka source, evaluated before anything "
        "else sees the record; null means false. It depends on the record alone.",
    )  # fmt: skip
    allow_keys: tuple[str, ...] | None = declare(
        None, KEYS,
        "Filter: only records with one of these keys pass. With allowKeysFile and "
        "allowKeyPrefixes, it is enough if one of the three has the key.",
    )  # fmt: skip
    allow_keys_file: str | None = declare(
        None, FILE,
        "As allowKeys, from a file with one key a line, which is read at the start.",
    )  # fmt: skip
    allow_key_prefixes: tuple[str, ...] | None = declare(
        None, KEYS, "As allowKeys, for keys that begin with one of these.",
    )  # fmt: skip
    deny_keys: tuple[str, ...] | None = declare(
        None, KEYS,
        "Filter: records with one of these keys do not pass, even if they are allowed.",
    )  # fmt: skip
    deny_keys_file: str | None = declare(
        None, FILE,
        "As denyKeys, from a file with one key a line, which is read at the start.",
    )  # fmt: skip
    deny_key_prefixes: tuple[str, ...] | None = declare(
        None, KEYS, "As denyKeys, for keys that begin with one of these.",
    )  # fmt: skip
    key_encoding: str = declare(
        "text", one_of(*KEY_ENCODINGS),
        "How the keys and prefixes of filters are written; text is UTF-8.",
    )  # fmt: skip
    min_record_bytes: int | None = declare(
        None, whole(1),
        "Filter: the least size of a record's key and value together.",
    )  # fmt: skip
    max_record_bytes: int | None = declare(
        None, whole(0),
        "Filter: the largest size of a record's key and value together.",
    )  # fmt: skip
    header_equals: tuple[tuple[str, str], ...] = declare(
        (), HEADERS,
        "Filter: for each name a header of the record has the value, as UTF-8.",
    )  # fmt: skip
    #: What the options named Filter come to.
    record_filter: RecordFilter = field(default_factory=RecordFilter)
    #: The settings of the session that `where` and `orderingKey` depend on, as text; None without
    #: both. See `coopconsume.runtime.read.session_settings`.
    expression_settings: str | None = None
    #: The given settings of Kafka's clients that change nothing here, without ``kafka.``.
    without_effect: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        options: Mapping[str, Any],
        *,
        group: bool = True,
        topics: bool = False,
        table: bool = True,
    ) -> Options:
        """Check options as a user gives them.

        Args:
            options: Names and values.
            group: Whether ``kafka.group.id`` is needed; an operator's calls may be about no group.
            topics: Whether ``subscribe`` or ``subscribePattern`` is needed.
            table: Whether ``commitTable`` is needed; a queue has no commit table.

        Raises:
            UnknownOption: No such option; names all that are unknown, and the closest ones.
            InvalidOption: A value of the wrong type or out of range, two that exclude each
                other, or a setting of security that Spark or kafka-python cannot follow.
            MissingOption: ``kafka.bootstrap.servers``, ``kafka.group.id``, ``commitTable`` or the
                topics; it names all that are missing.
        """
        kafka: dict[str, str] = {}
        values = {option.attribute: option.default for option in TABLE}
        check_names(options, _BY_NAME, _LISTED)
        for name, value in options.items():
            setting = client_setting(name)
            if setting is None:
                option = _BY_NAME[name.lower()]
                values[option.attribute] = option.read(value)
            else:
                check_setting(setting, REFUSED_SETTINGS, CLIENT_SETTINGS)
                kafka[setting] = str(value)
        without_effect = tuple(name for name in kafka if name in WITHOUT_EFFECT)
        for name in without_effect:
            del kafka[name]
        if values["subscribe"] and values["subscribe_pattern"]:
            raise InvalidOption("subscribePattern", "given beside subscribe", "give one of the two")
        if missing := [*_missing(kafka, values, group=group, topics=topics, table=table)]:
            raise MissingOption(*missing)
        if not values["allow_individual_commit"]:
            raise InvalidOption(
                "allow.individual.commit",
                "false",
                "this consumer knows no other commits; leave it true, or use Spark's own source",
            )
        values["ordering_key"] = checked_expression(
            "orderingKey", values["ordering_key"], "has the same key again"
        )
        if values["commit_interval"] is None:
            values["commit_interval"] = commit_interval_of(values["commit_table"])
        return cls(
            kafka=_complete(kafka),
            record_filter=parse_filter(values),
            without_effect=without_effect,
            **values,
        )

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
    def uses_chunks(self) -> bool:
        """Whether members acquire chunks of whole partitions (`sharing=cooperative`)."""
        return self.sharing == COOPERATIVE

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
            "max.poll.records": "10000",  # of one call of Java's consumer; it limits no batch
            "max.partition.fetch.bytes": str(8 << 20),
            "fetch.max.bytes": str(64 << 20),
        }
        fetching = {k: v for k, v in self.kafka.items() if k not in MEMBER_SETTINGS}
        return {f"kafka.{name}": value for name, value in (tuned | fetching).items()}

    def redacted(self) -> dict[str, Any]:
        """All options for logs and people, secrets hidden."""
        given = {f"kafka.{name}": value for name, value in self.kafka.items()}
        given |= {option.name: getattr(self, option.attribute) for option in TABLE}
        return {name: shown_value(name, value) for name, value in given.items()}

    def __str__(self) -> str:
        return str(self.redacted())


#: All options, in the order of their declarations.
TABLE = tuple(declared(each) for each in fields(Options) if each.metadata)
_BY_NAME = {option.name.lower(): option for option in TABLE}
_LISTED = [
    *(option.name for option in TABLE if option.is_listed),
    *(f"kafka.{setting}" for setting in sorted(CLIENT_SETTINGS)),
]


def _missing(
    kafka: Mapping[str, str], values: Mapping[str, Any], *, group: bool, topics: bool, table: bool
) -> Iterator[str]:
    for setting in _REQUIRED_KAFKA:
        is_needed = setting != "group.id" or group or setting in kafka
        if is_needed and not kafka.get(setting, "").strip():
            yield f"kafka.{setting}"
    if topics and not (values["subscribe"] or values["subscribe_pattern"]):
        yield "subscribe"
    if table and not values["commit_table"]:
        yield "commitTable"


def _complete(kafka: dict[str, str]) -> dict[str, str]:
    level = kafka.setdefault("isolation.level", "read_committed")
    if level not in ("read_committed", "read_uncommitted"):
        remedy = "give read_committed or read_uncommitted"
        raise InvalidOption("kafka.isolation.level", repr(level), remedy)
    return complete(kafka)
