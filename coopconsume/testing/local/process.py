"""The broker's operating-system process and the guard that keeps it from outliving its program."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

STOP_TIMEOUT: Final = 15.0

_GUARD = Path(__file__).with_name("guard.py")
_GUARD_START_TIMEOUT: Final = 120.0
_KILL_TIMEOUT: Final = 30.0
_SUSPEND_TIMEOUT: Final = 30.0


def suspend(pid: int) -> None:
    """Stops a process by SIGSTOP and returns once none of its threads runs, or it has ended.

    The signal alone only asks: the other threads run on until one of them has taken it.

    Raises:
        TimeoutError: One of its threads still runs after half a minute.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _SUSPEND_TIMEOUT
    while set(_states(pid)) - set("TtZX"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} still runs {_SUSPEND_TIMEOUT:.0f} s after SIGSTOP")
        time.sleep(0.001)


def _states(pid: int) -> list[str]:
    """Returns the states of a process and, on Linux, of its threads; none once it is gone."""
    if not Path("/proc/self/task").exists():
        command = ["ps", "-o", "stat=", "-p", str(pid)]
        return (
            subprocess.run(command, capture_output=True, text=True, check=False).stdout[:1].split()
        )
    states: list[str] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # The thread has ended.
            states.append(thread.read_text().rpartition(")")[2].split()[0])
    return states


class BrokerProcess:
    """A broker that is killed when this object, or the program that holds it, is gone.

    Args:
        command: The broker's command line.
        folder: Its working directory.
        log_path: Where its output is appended to.
        temporary: A folder to remove should the program die; None for none.
        lock: Descriptor of a locked file; the lock is kept until the broker's process is gone.

    Raises:
        OSError: It could not be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        log_path: Path,
        temporary: Path | None,
        lock: int,
    ) -> None:
        self._lifeline, guards_end = socket.socketpair()
        with guards_end, log_path.open("ab") as log:
            self._guard: subprocess.Popen[bytes] = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(_GUARD)),
                    *(str(os.getpid()), str(temporary or ""), str(lock), *command),
                ],
                stdin=guards_end.fileno(),
                stdout=log,
                stderr=log,
                cwd=folder,
                pass_fds=(lock,),
                start_new_session=True,  # the terminal's Ctrl-C is not for the broker
            )
        self.pid = self._read_pid()

    @property
    def is_running(self) -> bool:
        """Whether the broker's process exists; a frozen one does."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """The broker's exit code, 128 + n if signal n ended it; None while it runs."""
        code = self._guard.poll()
        if code is not None:
            self._after_guard(code)
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the broker, if it runs."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, timeout: float) -> None:
        """End the broker: by word, and by force if it is not gone in ``timeout`` seconds."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            self._after_guard(self._guard.wait(timeout))
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the broker by SIGKILL and wait until it is gone."""
        self.send(signal.SIGKILL)
        self._after_guard(self._guard.wait(_KILL_TIMEOUT))

    def _read_pid(self) -> int:
        """Returns the broker's process id, which the guard sends."""
        ready, _, _ = select.select([self._lifeline], [], [], _GUARD_START_TIMEOUT)
        sent = self._lifeline.recv(32) if ready else b""
        if not sent:
            self._guard.kill()
            self._after_guard(self._guard.wait(_KILL_TIMEOUT))
            raise OSError(f"the broker's guard did not start: exit code {self._guard.returncode}")
        return int(sent)

    def _after_guard(self, code: int) -> None:
        self._lifeline.close()
        if code < 0 and hasattr(self, "pid"):  # somebody killed the guard itself
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class BrokerResources:
    """What a broker's handle holds of the system, apart from it so that it can be outlived.

    Attributes:
        process: The broker's process; None while it is stopped.
        temporary: Its folder, if that is a temporary one.
    """

    def __init__(self) -> None:
        self.process: BrokerProcess | None = None
        self.temporary: Path | None = None
        self._owner = os.getpid()

    def end(self, timeout: float) -> None:
        """End the broker; at once if ``timeout`` is 0."""
        process, self.process = self.process, None
        if process is not None and timeout > 0:
            process.stop(timeout)
        elif process is not None:
            process.kill()

    def release(self) -> None:
        """End the broker and remove its temporary folder, unless this is a fork of its program."""
        if os.getpid() != self._owner:
            return
        self.end(STOP_TIMEOUT)
        temporary, self.temporary = self.temporary, None
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
