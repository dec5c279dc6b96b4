"""Classes of a program itself: workers get them with the job, or they are refused by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from __future__ import annotations
import dataclasses, pickle, sys
import datetime as dt
import msgspec, pydantic
from pyspark import cloudpickle
from coopconsume.decoding import Decoding
from coopconsume.runtime.checks import check_decoding
from coopconsume.worker.frame_runner import FrameHandler

class Line(pydantic.BaseModel):
    amount: int

class Model(pydantic.BaseModel):
    at: dt.datetime
    lines: list[Line] = []

@dataclasses.dataclass
class Inner:
    amount: int

@dataclasses.dataclass
class Base:
    at: dt.datetime

@dataclasses.dataclass
class Data(Base):
    lines: list[Inner] = dataclasses.field(default_factory=list)

class Struct(msgspec.Struct):
    at: dt.datetime

@dataclasses.dataclass
class Mixed:
    inner: Struct | None = None

decoding = Decoding(value={declared})
check_decoding(decoding, FrameHandler(print, 10))
for _ in range(2):  # As for two batches.
    sent = cloudpickle.dumps(decoding)
sys.stdout.buffer.write(sent)
"""
WORKER = """
import pickle, sys
from coopconsume.decoding.columns import frame_decoder
from coopconsume.decoding.record_decoder import record_decoder
from coopconsume.record import Record

decoding = pickle.load(sys.stdin.buffer)
data = b'{"at": "2026-01-02T03:04:05Z", "lines": [{"amount": 3}]}'
value = record_decoder(decoding).decoded(Record("t", 0, 0, None, data, 0)).value
((row),) = frame_decoder(decoding, "arrow").rows([None], [data], "t", [()])
print(type(value).__name__, value.at.year, value.lines[0].amount, row["value"][1])
"""


def shipped(declared):
    """What another process makes of a declaration of a program, and what the program said."""
    program = [sys.executable, "-c", PROGRAM.replace("{declared}", declared)]
    sent = subprocess.run(program, capture_output=True, check=False)
    if sent.returncode:
        return "", sent.stderr.decode()
    worker = [sys.executable, "-c", WORKER]
    found = subprocess.run(worker, input=sent.stdout, capture_output=True, check=False)
    return found.stdout.decode().strip(), found.stderr.decode()


@pytest.mark.parametrize("declared", ["Data", "Data | None", "Model", "Model | None"])
def test_workers_get_the_classes_of_a_program(declared):
    """With the classes inside them, and annotations in text that name things of the program."""
    name = declared.partition(" ")[0]
    assert shipped(declared) == (f"{name} 2026 3 [{{'amount': 3}}]", "")


@pytest.mark.parametrize("declared", ["Struct", "Struct | None", "Mixed"])
def test_a_struct_of_a_program_is_refused_by_name(declared):
    """On a worker it would have no fields, and values would be lost without an error."""
    sent, said = shipped(declared)
    assert not sent
    assert "InvalidOption: option value = " in said
    assert "workers cannot get the msgspec.Struct Struct" in said
