"""An independent judge of a work queue: what its consumers reported, compared with the promises.

It knows nothing of the replicas. All times are of the one monotonic clock of this machine.

Q1 nothing is lost: each record was acknowledged by somebody, or is a dead letter
Q2 what was acknowledged with success is not handed out again
Q3 a record that one consumer has is handed out again only after its hold, or its release
Q4 the attempt of a record is above 1 after an earlier delivery; undisturbed, it is exact
Q5 a dead letter was rejected, or delivered too often; what was rejected is a dead letter
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

Place = tuple[int, int]
Event = dict[str, Any]


@dataclass
class Delivery:
    """A record was handed out to a consumer.

    Attributes:
        asked: When the call began that returned it.
        at: When it returned.
        attempt: The attempt that the consumer saw.
        until: The end of its hold, or when its consumer released it.
        is_late: Whether the hold may have been over when the call returned: the process was frozen.
    """

    asked: float
    at: float
    attempt: int
    until: float
    is_late: bool


class Outcomes:
    """The fate of the records, as their consumers saw it.

    Args:
        hold: The duration of a hold in seconds.

    Attributes:
        deliveries: All deliveries of each record.
        tried: Records that somebody was about to accept or reject.
        acknowledged: When an acceptance or a rejection was first known to count.
        rejected: Records whose rejection counts.
    """

    def __init__(self, hold: float) -> None:
        self.deliveries: dict[Place, list[Delivery]] = {}
        self.tried: set[Place] = set()
        self.acknowledged: dict[Place, float] = {}
        self.rejected: set[Place] = set()
        self._hold = hold
        self._held: dict[int, dict[Place, Delivery]] = {}
        self._settling: dict[int, Event] = {}

    def take(self, consumer: int, event: Event) -> None:
        """Take the next event of a consumer."""
        at, held = event["at"], self._held.setdefault(consumer, {})
        match event["event"]:
            case "got":
                until = event["asked"] + self._hold
                for partition, offset, attempt in event["records"]:
                    one = Delivery(event["asked"], at, attempt, until, at >= until)
                    held[partition, offset] = one
                    self.deliveries.setdefault((partition, offset), []).append(one)
            case "settling":
                self._settling[consumer] = event
                self.tried |= _places(event, "accept") | _places(event, "reject")
                _release(held, _places(event, "release"), at)
            case "settled":
                self._settled(held, self._settling[consumer], event)
            case "closing":
                _release(held, held, at)

    def _settled(self, held: Mapping[Place, Delivery], settling: Event, event: Event) -> None:
        at, refused = event["at"], _places(event, "not_held")
        rejected = _places(settling, "reject") - refused
        self.rejected |= rejected
        for place in rejected | _places(settling, "accept") - refused:
            self.acknowledged[place] = min(at, self.acknowledged.get(place, at))
        for place in _places(settling, "renew") - refused:
            if at < held[place].until:  # without a gap
                held[place].until = settling["at"] + self._hold


def problems(
    found: Outcomes, produced: Mapping[Place, float], letters: Mapping[Place, int],
    max_deliveries: int, disturbed: Sequence[tuple[float, float]],
) -> list[str]:  # fmt: skip
    """Return what is wrong with a queue that was worked off; nothing if all is well.

    Args:
        found: What its consumers reported.
        produced: The records, and the time before each was written.
        letters: The attempts of each dead letter.
        max_deliveries: After so many deliveries a record becomes a dead letter.
        disturbed: From when to when something may have failed.
    """
    done = found.tried | letters.keys()
    wrong = [f"Q1: {place} is lost" for place in sorted(produced.keys() - done)]
    wrong += [f"Q1: {place} does not exist" for place in sorted(done - produced.keys())]
    for place, deliveries in sorted(found.deliveries.items()):
        given = sorted(deliveries, key=lambda one: one.at)
        known = found.acknowledged.get(place)
        wrong += [
            f"Q2: {place} was acknowledged at {known:.3f}, and asked for at {one.asked:.3f}: {one}"
            for one in given
            if known is not None and one.asked > known
        ]
        wrong += [
            f"Q3: {place} was handed out to two: {one}, {other}"
            for one, other in combinations(given, 2)
            if other.at < one.until and not (one.is_late or other.is_late)
        ]
        since = produced.get(place, 0.0)
        # When a late one was handed out is not known.
        timely = [one for one in given if not one.is_late]
        wrong += [f"Q4: {place}: {problem}" for problem in _counts(timely, since, disturbed)]
    wrong += [f"Q5: {place} is no dead letter" for place in sorted(found.rejected - letters.keys())]
    wrong += [
        f"Q5: {place} is a dead letter after {attempts} deliveries"
        for place, attempts in sorted(letters.items())
        if place not in found.tried and attempts <= max_deliveries
    ]
    return wrong


def _counts(
    given: Sequence[Delivery], since: float, disturbed: Sequence[tuple[float, float]]
) -> Iterator[str]:
    for number, one in enumerate(given, 1):
        is_calm = not any(first <= one.at and since <= last for first, last in disturbed)
        if is_calm and one.attempt != number:
            yield f"attempt {one.attempt} at delivery {number}, undisturbed"
        elif number > 1 and one.attempt < 2:
            yield f"attempt {one.attempt} at delivery {number}"


def _places(event: Event, kind: str) -> set[Place]:
    return {(partition, offset) for partition, offset in event.get(kind, ())}


def _release(held: Mapping[Place, Delivery], places: Iterable[Place], at: float) -> None:
    for place in places:
        held[place].until = min(held[place].until, at)
