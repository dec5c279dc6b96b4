"""Runs a part of a benchmark in a process of its own, such as one with another Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT = 900
#: Spark may write other lines to standard output.
_BEGIN = "figures "


def figures_of(module: str, *arguments: Any) -> list[float]:
    """Returns the figures of a module that calls `print_figures` where it is run as a program.

    Args:
        module: Its name.
        arguments: What JSON has.

    Raises:
        AssertionError: It printed none.
    """
    ran = subprocess.run(
        [sys.executable, "-m", module, json.dumps(arguments)],
        capture_output=True, text=True, timeout=_TIMEOUT, check=False,
    )  # fmt: skip
    lines = [line for line in ran.stdout.splitlines() if line.startswith(_BEGIN)]
    if not lines:
        raise AssertionError(f"{module} did not end: {ran.stderr[-2_000:]}")
    return [float(figure) for figure in lines[-1].split()[1:]]


def print_figures(run: Callable[..., list[float]]) -> None:
    """Prints what a function returns for the arguments that `figures_of` gives."""
    from pyspark import cloudpickle

    from tests.bench import handlers

    # Workers need not find this package.
    cloudpickle.register_pickle_by_value(handlers)
    print(_BEGIN + " ".join(map(str, run(*json.loads(sys.argv[1])))))  # noqa: T201
