"""The embedded broker's folder: whose it is, how it is made, and the end of its log."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coopconsume.errors import BrokerStartFailed
from coopconsume.testing.local import config as broker_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TAIL_BYTES: Final = 256 * 1024


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Lock a data folder for the broker that is being started, which inherits the lock.

    Kafka's own lock comes too late: by then a second broker has written into the first one's
    metadata.

    Yields:
        The descriptor that holds the lock.

    Raises:
        BrokerStartFailed: Another broker has it.
    """
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BrokerStartFailed(
                f"another broker runs on the data in {folder}; stop that one or choose another "
                "data_dir"
            ) from None
        yield file.fileno()


def format_storage(
    folder: Path, jvm: Sequence[str], values: Mapping[str, str], timeout: float
) -> None:
    """Make the broker's storage as ``folder/log``; it appears whole or not at all.

    Args:
        folder: The broker's folder.
        jvm: Command line of a JVM with Kafka on its class path.
        values: The broker's settings.
        timeout: Seconds it may take.

    Raises:
        BrokerStartFailed: Kafka refused, most likely because of a setting.
        subprocess.TimeoutExpired: It took too long.
        OSError: The folder cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix=".formatting-", dir=folder) as scratch:
        file = Path(scratch, "format.properties")
        shaped = {**values, "log.dirs": f"{scratch}/log"}
        file.write_text(broker_config.as_properties(shaped), encoding="latin-1")
        command = [*jvm, "kafka.tools.StorageTool", "format", "--config", str(file)]
        ran = subprocess.run(
            [*command, "--cluster-id", broker_config.new_cluster_id()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
        if ran.returncode != 0:
            said = (ran.stdout + ran.stderr).strip()
            raise BrokerStartFailed("its storage cannot be formatted", None, said)
        Path(scratch, "log").rename(folder / "log")


def write_private(file: Path, text: str) -> None:
    """Write a Java properties file that nobody else may read, as passwords may be in it."""
    file.touch(mode=0o600)
    file.chmod(0o600)
    file.write_text(text, encoding="latin-1")


def tail(path: Path | None, lines: int, *, start: int = 0) -> str:
    """Return the last lines of a log, at most what stands after byte ``start``.

    Frames of stack traces are left out: a few of them would push out what went wrong.
    """
    if path is None or not path.is_file():
        return ""
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - _TAIL_BYTES))
        text = log.read().decode(errors="replace")
    lines_of_log = [
        line for line in text.splitlines() if not line.lstrip().startswith(("at ", "... "))
    ]
    return "\n".join(lines_of_log[-lines:])
