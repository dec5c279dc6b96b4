"""The small process between a program and its broker that lets no broker outlive the program.

It is run as a file by itself, in a session of its own, with nothing but the standard library. It
starts the broker and writes its process id to standard input, which is a socket to the program:
when that closes, however the program ended, the broker is killed and its temporary folder removed.
A death signal of the system would not do: it follows the *thread* that started the broker.

Arguments: the program's process id, the folder to remove if the program dies ("" for none), a file
descriptor whose lock the broker keeps for as long as it lives, and the broker's command line.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

_LIFELINE = 0
_LOOK_EVERY = 1.0
_PR_SET_PDEATHSIG = 1


def guard(program: int, temporary: str, lock: int, command: list[str]) -> int:
    """Run the broker until it ends or the program does, and return the broker's exit code."""
    # Set before the broker is started: a signal's arrival must wake select.
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))
    broker = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(lock,),
        preexec_fn=_die_with_guard,  # noqa: PLW1509 - this process has one thread
    )
    try:
        os.write(_LIFELINE, b"%d\n" % broker.pid)
        while broker.poll() is None and not asked_to_stop:
            ready, _, _ = select.select([_LIFELINE, woken], [], [], _LOOK_EVERY)
            if woken in ready:
                os.read(woken, 512)
            if _LIFELINE in ready and not os.read(_LIFELINE, 512):
                break
            # A forked child of the program may hold the socket open after the program's death.
            if os.getppid() != program:
                break
    except OSError:  # the program ended before it could be notified
        pass
    finally:
        orphaned = broker.poll() is None
        if orphaned:
            os.killpg(broker.pid, signal.SIGKILL)
            broker.wait()
        if orphaned and temporary:
            shutil.rmtree(temporary, ignore_errors=True)
    code = broker.returncode
    return code if code >= 0 else 128 - code


def _die_with_guard() -> None:
    """Have Linux kill the broker should the guard itself be killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
