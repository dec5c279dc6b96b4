"""`coopconsume.errors`: every error is found there and has one base; all of them pickle."""

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
    pytest.param(module, kind, id=f"{module}.{kind.__name__}")
    for module, base in BASES.items()
    for kind in vars(importlib.import_module(module)).values()
    if inspect.isclass(kind) and issubclass(kind, base) and not kind.__name__.startswith("_")
    if kind.__module__.split(".")[0] == module.split(".")[0]
]
SAMPLES = {"int": 3, "str": "words", "tuple": ("a", "b"), "object": "thing"}


def made(kind: type[Exception]) -> Exception:
    """Make an error of a kind, each argument by its annotation."""
    if not inspect.isfunction(kind.__init__):
        return kind("a base")
    words = inspect.signature(kind).parameters.values()
    return kind(*(SAMPLES.get(str(word.annotation).split("[")[0].split(" ")[0]) for word in words))


@pytest.mark.parametrize(("module", "kind"), KINDS)
def test_every_error_is_gathered(module: str, kind: type[CoopConsumeError]) -> None:
    """Every error is found under its name, and knows whether a retry may help."""
    assert getattr(errors, kind.__name__) is kind
    assert isinstance(kind.retriable, bool)
    assert issubclass(kind, BASES[module])
    assert issubclass(kind, CoopConsumeError)
    assert kind.__name__ in errors.__all__


@pytest.mark.parametrize("kind", [p.values[1] for p in KINDS if "coopconsume" in p.values[0]])
def test_errors_travel_between_processes(kind: type[CoopConsumeError]) -> None:
    """Every error comes back from a pickle with its message and its data."""
    error = made(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert all(str(value) in str(error) for value in vars(error).values() if value == "words")


@pytest.mark.parametrize(
    "first", ["commits, coopconsume.errors", "coopconsume.errors, commits, assignors"]
)
def test_one_base_catches_everything(first: str) -> None:
    """Whatever is imported first, and without loading Delta or the fenced writer."""
    code = (
        f"import {first}\n"
        "import sys, assignors\n"
        "from coopconsume.errors import CoopConsumeError\n"
        "assert not {'deltalake', 'pyspark', 'kafka', 'coopconsume.fenced'} & sys.modules.keys()\n"
        "try:\n    assignors.KeyRange(3, 2)\n"
        "except CoopConsumeError as error:\n    assert not error.retriable\n"
        "try:\n    commits.CommitStore.open('ftp://key:word@host/table')\n"
        "except CoopConsumeError as error:\n    print(type(error).__name__, error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("UnsupportedTarget ")
    assert "word" not in run.stdout
