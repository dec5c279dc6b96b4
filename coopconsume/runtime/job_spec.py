"""The specification of a job: handler, concurrency, retries, dead letters, outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from coopconsume.decoding import Decoding
from coopconsume.record import RetryPolicy
from coopconsume.worker.report import QueryIds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.options import Options
    from coopconsume.record import OnDead
    from coopconsume.runtime.commit.state_log import StateLog
    from coopconsume.sinks import DeadLetterSink, OutputSink
    from coopconsume.worker.report import Ordering

OutputMode = Literal["append", "merge", "transactional"]


@dataclass(frozen=True)
class HandlerSettings:
    """How a handler is run: the arguments of ``foreach`` and similar, with their defaults.

    The attributes are as they are given; `CooperativeConsumer.foreach` says what they mean, and
    `coopconsume.handler_types` has the types that callers may give.
    """

    concurrency: int = 1
    ordering: Ordering = "key"
    retry: RetryPolicy | None = None
    dead_letter: str | None = None
    on_dead: OnDead = "continue"
    output: Any = None
    output_schema: Any = None
    output_mode: OutputMode = "append"
    output_partition_by: str | Sequence[str] = ()
    value: Any = None
    key: Any = None

    @property
    def decoding(self) -> Decoding | None:
        """How keys and values are decoded; None: handlers get bytes."""
        given = Decoding(self.key, self.value)
        return given if given.declared else None

    @property
    def policy(self) -> RetryPolicy:
        """When failed records are tried again."""
        return self.retry or RetryPolicy()

    def place_of_letters(self, options: Options) -> str | None:
        """Returns where records go that are given up; None: none is."""
        return self.dead_letter or options.dead_letter


@dataclass(frozen=True)
class JobSpec:
    """What a job does with records, and how.

    Attributes:
        handler: A function of a `Record`, or ``module:function``.
        concurrency: Handlers at once in a slot.
        ordering: ``key``, ``partition`` or ``none``.
        policy: When failed records are tried again.
        dead_letters: Where records go that are given up; None: none is.
        park: Whether a record that is given up holds its key back until somebody decides.
        outputs: Where rows go that handlers return; None: they are dropped.
        state: The state that handlers keep per key; None: they have none.
        interval: Seconds between the starts of batches at least.
        available_now: Stop once everything that was there at the start is settled.
        real_time: Seconds of a real-time run; None: there are batches alone.
        query: The query that runs it.
        decoding: How keys and values are decoded for the handler; None: it gets bytes.
        park_undecodable: Whether a record that does not decode holds its key back, whatever holds
            for others.
    """

    handler: Any
    concurrency: int
    ordering: Ordering
    policy: RetryPolicy
    dead_letters: DeadLetterSink | None
    park: bool
    outputs: OutputSink | None
    interval: float = 0.0
    available_now: bool = False
    state: StateLog | None = None
    real_time: float | None = None
    query: QueryIds = field(default_factory=QueryIds)
    decoding: Decoding | None = None
    park_undecodable: bool = False

    @property
    def may_park(self) -> bool:
        """Whether a record may hold its key back until somebody decides."""
        return self.park or self.park_undecodable

    def needs_headers(self, options: Options) -> bool:
        """Whether record headers are read.

        Handlers or spans want them, dead letters are kept whole, or the ordering key is one of
        them.
        """
        is_wanted = options.include_headers or options.trace_handlers
        return is_wanted or options.ordering_key is not None or self.dead_letters is not None

    def close(self) -> None:
        """Closes the sinks; harmless when repeated."""
        for sink in (self.dead_letters, self.outputs, self.state):
            if sink is not None:
                sink.close()
