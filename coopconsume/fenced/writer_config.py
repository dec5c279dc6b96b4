"""How a writer of a fenced log writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coopconsume.errors import InvalidOption
from coopconsume.fenced.reader import ReaderOptions
from coopconsume.fenced.stamp import VISIBILITIES, Visibility

if TYPE_CHECKING:
    from coopconsume.fenced.kafka_engine import Engine
    from coopconsume.fenced.log import LogId

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


class WriterOptions(ReaderOptions, total=False):
    """Keyword arguments of the classes that write: see `WriterConfig`."""

    visibility: Visibility
    owner: str | None
    epochs: EpochSource | None
    shared: bool
    fence_owner: bool | None
    session: str | None
    epoch: int | None
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
        engine: An engine of your own. The name of a client has no effect, and is deprecated: one
            client writes and reads all logs.
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
    engine: str | Engine | None = None
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
