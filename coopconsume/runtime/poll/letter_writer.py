"""Writes dead letters for `reject`, which returns within a limit whatever their place does."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Final

from coopconsume.errors import OutputNotWritten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coopconsume.sinks import DeadLetterSink
    from coopconsume.worker.report import DeadLetter

#: Seconds that a call waits: Kafka's default of ``default.api.timeout.ms``.
LIMIT: Final = 60.0
#: Seconds between looks at whether the consumer was closed.
_LOOK_EVERY: Final = 0.2
#: Seconds that `close` waits for the place to disconnect.
_CLOSING: Final = 5.0


class LetterWriter:
    """Writes dead letters in threads of its own, one write at a time.

    Args:
        sink: Where dead letters go.
        place: Its name, for errors.
        check_closed: Raises an error once nobody waits for letters any more.
    """

    def __init__(self, sink: DeadLetterSink, place: str, check_closed: Callable[[], None]) -> None:
        self._sink = sink
        self._place = place
        self._check_closed = check_closed
        self._lock = threading.Lock()

    def write(
        self, letters: Sequence[DeadLetter], topic_ids: Mapping[str, str], commit_id: str
    ) -> None:
        """Writes letters; returns when they are safe.

        What an attempt without an answer leaves behind names a commit id that is never committed.

        Args:
            letters: The letters.
            topic_ids: Kafka's ids of the topics.
            commit_id: The commit that they stand or fall with.

        Raises:
            AlreadyClosed: The consumer was closed meanwhile.
            NotAuthorized: This user may not write there.
            OutputNotWritten: They are not written, or there was no answer for `LIMIT` seconds.
            OutputRefused: The place never takes one of them.
        """
        answer: futures.Future[None] = futures.Future()

        def append() -> None:
            with self._lock:
                # Nobody waits for it any more if an earlier write took too long.
                if answer.set_running_or_notify_cancel():
                    try:
                        self._sink.append(letters, topic_ids, commit_id)
                    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                        answer.set_exception(error)
                    else:
                        answer.set_result(None)

        threading.Thread(target=append, name="coopconsume-letters", daemon=True).start()
        self._wait(answer)

    def _wait(self, answer: futures.Future[None]) -> None:
        until = time.monotonic() + LIMIT
        try:
            while not futures.wait([answer], _LOOK_EVERY).done:
                self._check_closed()
                if time.monotonic() >= until:
                    cause = f"no answer for {LIMIT:g} s"
                    raise OutputNotWritten("dead letters", self._place, cause)
            answer.result()
        finally:
            answer.cancel()

    def close(self) -> None:
        """Disconnects; a write under way ends first, and is waited for only for some seconds."""

        def close() -> None:
            with self._lock:
                self._sink.close()

        closing = threading.Thread(target=close, name="coopconsume-letters", daemon=True)
        closing.start()
        closing.join(_CLOSING)
