"""`coopconsume.errors`: every error of all rooms is found there; those of its own travel."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from assignors.errors import AssignorError
from commits import CommitStoreError
from coopconsume import errors
from coopconsume.errors import CoopConsumeError
from coopconsume.errors.fenced import FencedLogError

ROOT = Path(__file__).parents[2]
BASES = {
    "assignors.errors": AssignorError, "commits.errors": CommitStoreError,
    "coopconsume.errors": CoopConsumeError, "coopconsume.errors.fenced": FencedLogError,
}  # fmt: skip
KINDS = [
    pytest.param(room, kind, id=f"{room}.{kind.__name__}")
    for room, base in BASES.items()
    for kind in vars(importlib.import_module(room)).values()
    if inspect.isclass(kind) and issubclass(kind, base) and not kind.__name__.startswith("_")
]
SAMPLES = {"int": 3, "str": "words", "tuple": ("a", "b"), "object": "thing"}


def made(kind: type[Exception]) -> Exception:
    """Make an error of a kind, each argument by its annotation."""
    if not inspect.isfunction(kind.__init__):
        return kind("a base")
    words = inspect.signature(kind).parameters.values()
    return kind(*(SAMPLES.get(str(word.annotation).split("[")[0].split(" ")[0]) for word in words))


@pytest.mark.parametrize(("room", "kind"), KINDS)
def test_every_error_is_gathered(room: str, kind: type[CoopConsumeError]) -> None:
    """An error of any room is found under its name, and knows whether a retry may help."""
    assert getattr(errors, kind.__name__) is kind
    assert isinstance(kind.retriable, bool)
    assert issubclass(kind, BASES[room])


@pytest.mark.parametrize("kind", [p.values[1] for p in KINDS if "coopconsume" in p.values[0]])
def test_errors_travel_between_processes(kind: type[CoopConsumeError]) -> None:
    """Every error of this room comes back from a pickle with its message and its data."""
    error = made(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert all(str(value) in str(error) for value in vars(error).values() if value == "words")


def test_an_error_that_does_not_exist_is_told() -> None:
    """A name that no room knows, or that is no error there, is an attribute error."""
    for name in ("NoSuchError", "Mapping", "_epoch"):
        with pytest.raises(AttributeError, match=name):
            getattr(errors, name)


def test_the_gathering_costs_nothing_until_used() -> None:
    """The other rooms are loaded only when one of their errors is asked for."""
    code = (
        "import sys, coopconsume.errors as errors\n"
        "assert not {'commits', 'assignors', 'deltalake'} & sys.modules.keys()\n"
        "from coopconsume.errors import AssignmentConflict\n"
        "assert 'deltalake' not in sys.modules\n"
        "from coopconsume.errors import FencedMember\n"
        "print(AssignmentConflict.__module__, FencedMember.__module__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["assignors.errors", "commits.errors"]
