"""The frame of a chaos program: its arguments, a clock beside its output, and the evidence."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.jvm import JVM_OPTIONS

Report = Callable[[str], None]


def wait_until(
    is_done: Callable[[], bool], problem: Callable[[], str], patience: float = 120.0
) -> None:
    """Waits for a condition; `problem` says what is wrong if it does not come."""
    until = time.monotonic() + patience
    while not is_done():
        if time.monotonic() > until:
            raise AssertionError(f"{problem()} (after {patience:g} s)")
        time.sleep(0.05)


def run(
    name: str, about: str, rounds: int, play: Callable[..., bool], kinds: Sequence[str] = (),
    modes: Sequence[str] = (),
) -> int:  # fmt: skip
    """Play rounds as the command line says; the folder is kept if a promise was broken.

    Args:
        name: The module, without ``tests.``.
        about: What it does.
        rounds: How many, if the command line does not say.
        play: Plays so many rounds in a folder, drawn from a seed, and returns whether all was well.
            Given are the folder, the rounds, the seed, a way to report, and the kinds and the mode
            if there are.
        kinds: What may happen in a round.
        modes: Ways in which the applications work; the first is the default.

    Returns:
        The exit code: 1 if a promise was broken.
    """
    os.environ.setdefault("JDK_JAVA_OPTIONS", JVM_OPTIONS)
    parser = argparse.ArgumentParser(prog=f"tests.{name}", description=about)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"how many ({rounds})")
    parser.add_argument("--seed", type=int, help="of the draws; by default a new one")
    if kinds:
        parser.add_argument("--kinds", default="", help=f"some of {','.join(kinds)}")
    if modes:
        parser.add_argument("--mode", choices=modes, default=modes[0], help="how they work")
    given = parser.parse_args()
    chosen: list[Any] = [[kind for kind in given.kinds.split(",") if kind]] if kinds else []
    for kind in chosen[0] if chosen else ():
        if kind not in kinds:
            parser.error(f"--kinds: {kind!r} is not one of {', '.join(kinds)}")
    chosen += [given.mode] if modes else []
    seed = random.randrange(2**32) if given.seed is None else given.seed
    began = time.monotonic()

    def report(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {text}\n")
        sys.stdout.flush()

    report(f"{given.rounds} rounds with --seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix=f"coopconsume-{name.replace('.', '-')}-"))
    well = False
    try:
        well = play(folder, given.rounds, seed, report, *chosen)
    finally:
        if well:
            shutil.rmtree(folder)
        else:
            report(f"--seed {seed} repeats it; what it left behind is in {folder}")
    return int(not well)
