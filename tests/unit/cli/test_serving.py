"""Commands that serve something until they are interrupted."""

from __future__ import annotations

import io
import signal
from contextlib import redirect_stdout
from dataclasses import dataclass

from coopconsume.cli.exit_codes import INTERRUPTED, OK
from coopconsume.cli.serving import serve


@dataclass
class _Server:
    is_open: bool = True


class _Reader(io.StringIO):
    """Interrupts the command as soon as it has read a line."""

    def write(self, text: str) -> int:
        signal.raise_signal(signal.SIGINT)
        return len(text)


def test_who_has_read_the_address_may_end_it_at_once() -> None:
    """It ends in order by then, as it does later."""
    with redirect_stdout(_Reader()):
        try:
            code = serve(_Server(), "metrics: http://127.0.0.1:1/metrics")
        except KeyboardInterrupt:  # It would end all tests.
            code = INTERRUPTED
    assert code == OK
