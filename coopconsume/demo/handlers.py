"""The demo's handler and its faults. They run in Spark tasks: no more than workers have."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from coopconsume.demo.leg_file import Leg, LegFile, open_leg_file
from coopconsume.testing.faults import Fault
from coopconsume.worker.slot import current_slot

if TYPE_CHECKING:
    from coopconsume.record import Record

#: The columns of the rows that `follow_aircraft` returns.
OUTPUT_SCHEMA = (
    "tail string, flight string, origin string, dest string, leg int, previous string, "
    "turn_round_minutes int, delay_carried_minutes int"
)


def follow_aircraft(record: Record, leg_file: LegFile) -> dict[str, Any]:
    """Compares a flight with the previous flight of its aircraft.

    Each record has the number of its leg, so the leg file is used only if it has the leg directly
    before. Otherwise the three columns about that leg are null: for the first leg of an aircraft,
    and after a leg that became a dead letter.

    Args:
        record: The flight.
        leg_file: The file of the slot that handles the aircraft; this leg is appended to it.

    Returns:
        A row of `OUTPUT_SCHEMA`. ``previous`` is the previous flight. ``turn_round_minutes`` is
        the time from its arrival to this departure from New York; it includes the way back, as
        the data has only the flights out. The arrival is the departure plus the time in the air.
        The value is negative if the data overlap. ``delay_carried_minutes`` is the part of its
        delay on arrival that this departure still has.
    """
    flight = json.loads(record.value or b"{}")
    tail, leg = flight["tailnum"], flight["leg"]
    name = f"{flight['carrier']}{flight['flight']}"
    row: dict[str, Any] = {
        "tail": tail,
        "flight": name,
        "origin": flight["origin"],
        "dest": flight["dest"],
        "leg": leg,
        "previous": None,
        "turn_round_minutes": None,
        "delay_carried_minutes": None,
    }
    if tail is None:
        return row
    delay, air_time = flight["dep_delay"], flight["air_time"]
    scheduled = (
        int(datetime.fromisoformat(flight["time_hour"]).timestamp()) // 60 + flight["minute"]
    )
    departure = None if delay is None else scheduled + delay
    aircraft = (record.topic, record.partition, tail)
    before = leg_file.leg(aircraft, leg - 1) if leg > 1 else None
    if before is not None:
        row["previous"] = before.flight
        if departure is not None and before.arrival is not None:
            row["turn_round_minutes"] = departure - before.arrival
        if delay is not None and before.delay is not None:
            row["delay_carried_minutes"] = max(0, min(delay, before.delay))
    arrival = None if departure is None or air_time is None else departure + air_time
    leg_file.append(aircraft, Leg(leg, name, arrival, flight["arr_delay"]))
    return row


@dataclass(frozen=True)
class FollowAircraft:
    """The demo's handler: `follow_aircraft` with the leg file of the slot.

    Attributes:
        folder: The folder of the leg files.
    """

    folder: str

    def __call__(self, record: Record) -> dict[str, Any]:
        """Handles one record."""
        return follow_aircraft(record, open_leg_file(self.folder, current_slot()))


class PoisonedFlight(RuntimeError):
    """The demo made this flight fail on purpose.

    Attributes:
        flight: The position of the record.
        attempt: The attempt that failed.
    """

    retriable = True

    def __init__(self, flight: str, attempt: int) -> None:
        super().__init__(flight, attempt)
        self.flight = flight
        self.attempt = attempt

    def __str__(self) -> str:
        return f"{self.flight} is poison (attempt {self.attempt})"


@dataclass(frozen=True)
class FlightFaults:
    """The faults of the demo's handler, for `coopconsume.testing.recorded`.

    Partition and offset alone decide which records fail, so the same ones fail after a restart.

    Attributes:
        poison_every: About one record in this many fails on its attempts 1 and 2; 0 for none.
        always_fail_every: About one record in this many fails on every attempt; 0 for none.
        slow_tail: The tail number of an aircraft whose flights are slow.
        slow_seconds: The delay of each of its flights.
        seconds: The delay of each other flight.

    Raises:
        ValueError: A number is negative.
    """

    poison_every: int = 0
    always_fail_every: int = 0
    slow_tail: str | None = None
    slow_seconds: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("poison_every", "always_fail_every", "slow_seconds", "seconds"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"{name}={value}: give 0 (off) or more")

    def is_poison(self, partition: int, offset: int) -> bool:
        """Returns whether the record fails twice and then succeeds."""
        return not self.always_fails(partition, offset) and _drawn(
            b"poison", partition, offset, self.poison_every
        )

    def always_fails(self, partition: int, offset: int) -> bool:
        """Returns whether the record fails on every attempt."""
        return _drawn(b"always", partition, offset, self.always_fail_every)

    def __call__(self, record: Record) -> Fault:
        """Returns the fault of one call."""
        at = (record.partition, record.offset)
        is_slow = self.slow_tail is not None and record.key == self.slow_tail.encode()
        error = None
        if self.always_fails(*at) or (record.attempt <= 2 and self.is_poison(*at)):  # noqa: PLR2004
            where = f"{record.topic}-{record.partition}@{record.offset}"
            error = PoisonedFlight(where, record.attempt)
        return Fault(self.slow_seconds if is_slow else self.seconds, error=error)


def _drawn(salt: bytes, partition: int, offset: int, every: int) -> bool:
    return every > 0 and zlib.crc32(b"%b %d %d" % (salt, partition, offset)) % every == 0
