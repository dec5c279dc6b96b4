"""The report of a slot whose worker ends itself, for the second attempt of its task.

If the library's own code fails in a worker, a handler may have damaged the worker, and whatever
runs in it next would fail, too. So the worker leaves the report in a file, beside the crash
journal, and ends. Spark's second attempt of the task runs in another worker: it finds the report if
it is on the same host, and knows that no handler of the first one runs. The second attempt of a job
that was cancelled never runs: what it would have taken is removed after a day. Task-side code.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from functools import cache
from os import _exit
from pathlib import Path
from pickle import dumps, loads
from typing import TYPE_CHECKING

from coopconsume.worker.crash_journal import has_ended, place_of_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from coopconsume.worker.report import SlotReport

#: Exit status of a worker in which the library's own code has failed.
DAMAGED = 71
#: Seconds after which nobody takes a report.
_KEPT = 24 * 3600.0
_REPORT = re.compile(r"coopconsume-.+-\d+-\d+\.(report|part)")


def end_worker_with(
    report: SlotReport, journal: Path | None, end: Callable[[int], NoReturn] = _exit
) -> NoReturn:
    """Leaves a report to the second attempt of a task, and ends this worker.

    Args:
        report: Of the slot.
        journal: The path of its crash journal; None: nothing is kept for a second attempt.
        end: Ends this process at once, with an exit status.
    """
    try:
        if journal is not None:
            path = _beside(journal)
            part = path.with_suffix(".part")
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(file, "wb") as to:
                to.write(dumps((os.getpid(), place_of_process(), report)))
            part.replace(path)  # The disk may be full: half a report does not count.
    finally:
        end(DAMAGED)


def take_left_report(journal: Path | None) -> SlotReport | None:
    """Returns the report that the worker of the first attempt has left, and removes it.

    Returns:
        None without one, or if that worker may still run.
    """
    if journal is None:
        return None
    path = _beside(journal)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            pid, place, report = loads(file.read())  # noqa: S301 - of this user's own worker
    except Exception:  # noqa: BLE001 - whatever is in it, it cannot be read
        return None
    if place != place_of_process() or not has_ended(pid):
        return None
    for left in (path, journal):
        with suppress(OSError):
            left.unlink()
    return report  # type: ignore[no-any-return]


@cache
def remove_old_reports() -> None:
    """Removes reports of this user that nobody has taken, with their journals; once a process."""
    left: list[Path] = []
    with suppress(OSError):
        paths = Path(tempfile.gettempdir()).iterdir()
        left = [path for path in paths if _REPORT.fullmatch(path.name)]
    for path in left:
        with suppress(OSError):
            found = path.lstat()
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > _KEPT:
                path.unlink()
                path.with_suffix("").unlink(missing_ok=True)


def _beside(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.report")
