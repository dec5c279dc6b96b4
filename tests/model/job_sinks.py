"""Handlers and destinations of a job's model."""

from __future__ import annotations

import threading

import pyarrow as pa

from coopconsume.errors import (
    NotAuthorized,
    OutputNotWritten,
    OutputRefused,
)
from coopconsume.record import Reject
from tests.model.job_world import _PATIENCE, Gate


class Answering(Gate):
    """A gate that answers each record with a row."""

    def __call__(self, record):
        """Wait, and answer."""
        super().__call__(record)
        return {"text": str(record.offset)}


class Watching:
    """A sink that looks at the commit log as it is written to."""

    hears_all = False
    schema = pa.schema([("text", pa.string())])

    def __init__(self, member, there):
        self.seen = []
        self._done = lambda: there.done(member)

    def append(self, letters, _topic_ids, commit_id):
        """Dead letters."""
        done = self._done()
        self.seen += [(letter.offset, letter.offset in done, commit_id) for letter in letters]

    def write(self, outputs):
        """Rows."""
        done = self._done()
        rows = outputs.table(self.schema)
        for offset in rows.column("_offset").to_pylist():
            self.seen.append((offset, offset in done, outputs.commit_id))

    def close(self):
        """Nothing is open."""


class Unreliable:
    """A place for dead letters that hangs, is away, or never takes some of them."""

    def __init__(self, *, hangs=False, away=False, denied=False, never=()):
        self.back = threading.Event()
        self.hangs, self.away, self.denied, self.never = hangs, away, denied, set(never)
        self.written = []
        self.refusals = 0

    def append(self, letters, topic_ids, commit_id):
        """Take them, or not."""
        offsets = [letter.offset for letter in letters]
        if self.hangs:
            assert self.back.wait(_PATIENCE)
        elif self.away and not self.back.is_set():
            raise OutputNotWritten("dead letters", "the far place", "no route")
        if self.denied and not self.back.is_set():
            self.refusals += 1
            raise NotAuthorized("WRITE", "TOPIC", "letters", "joe")
        if self.never.intersection(offsets):
            raise OutputRefused("dead letters", "the far place", f"{offsets} are too large")
        self.written += offsets

    def close(self):
        """Nothing is open."""


class Rejecting(Gate):
    """A handler that rejects some records; it notes its calls."""

    def __init__(self, *rejected):
        super().__init__()
        self.rejected = rejected

    def __call__(self, record):
        super().__call__(record)
        if record.offset in self.rejected:
            raise Reject("no")
