"""Rounds of a chaos run, drawn by a seed: the same seed draws the same ones."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from coopconsume.group.owned import LEASE
from tests.chaos.harness import CLAIMED, LIFE, RECREATED, SESSION
from tests.strangers import flood, forged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.chaos.harness import App, Harness

    Action = Callable[[Harness, App], None]

_EACH = 300
_FEWEST, _MOST = 2, 4


def begin(harness: Harness, apps: int) -> None:
    """Start applications that share the topics, one of them static, and see them work."""
    harness.produce(_EACH)
    for number in range(apps):
        harness.start(static=number == 0)
    if CLAIMED in harness.topics.partitions:
        harness.start_claimant()
    harness.wait_for_members(apps)
    harness.wait_for_done(1)


def finish(harness: Harness) -> None:
    """Let everything be done, and all applications stop in order."""
    harness.produce(_EACH)
    harness.wait_for_all()
    for app in harness.apps:
        if app.is_alive:
            harness.stop(app)


def play(
    harness: Harness, rounds: int, seed: int, report: Callable[[str], None],
    kinds: Sequence[str] = (),
) -> None:  # fmt: skip
    """Play some rounds on applications that have begun: of all kinds, or of some."""
    dice = random.Random(seed)
    every = [action for action in _ALL if not kinds or action.__name__ in kinds]
    waiting: list[Action] = []
    for number in range(1, rounds + 1):
        # Every kind comes once before any comes again, as far as it is possible at the time.
        possible = _possible(harness)
        turn = [action for action in waiting if action in possible]
        if not turn:
            waiting, turn = list(every), [action for action in every if action in possible]
        action, app = dice.choice(turn), dice.choice(harness.alive)
        waiting.remove(action)
        if action in _CALM:
            harness.sleep(harness.watcher.disturbed_for())
        harness.produce(_EACH)
        harness.sleep(dice.uniform(0.1, 1.5))
        begun = time.monotonic()
        report(f"round {number}: {action.__name__.replace('_', ' ')} {app.name}")
        action(harness, app)
        harness.wait_for_members(len(harness.alive))
        harness.watcher.settled(LIFE)
        report(f"round {number}: {time.monotonic() - begun:.0f} s, {harness.left()} records left")


def _possible(harness: Harness) -> list[Action]:
    alive, topics = harness.alive, harness.topics
    actions: list[Action] = [
        pause, pause_all, kill_driver, kill_all, kill_worker, restart_broker, freeze_broker,
        restart, stick, freeze_worker, delete_records, lose_records, orphan, cut_channels,
        delay_channels, half_open_channels, flood_channel,
    ]  # fmt: skip
    if len(alive) < _MOST:
        actions += [join]
    if len(alive) > _FEWEST:
        actions += [leave]
    if any(topics.partitions[topic] < 5 for topic in harness.shared if topic != RECREATED):
        actions += [grow]
    if RECREATED in topics.partitions:
        actions += [recreate]
    if CLAIMED in topics.partitions:
        actions += [take_over_claim]
    return actions


# -- calm: no record may be done again


def join(harness: Harness, _app: App) -> None:
    """Another application starts, as a static member every other time."""
    harness.start(static=len(harness.apps) % 2 == 0)


def leave(harness: Harness, app: App) -> None:
    """The application stops in order."""
    harness.stop(app)
    if app.instance is not None:
        # Kafka keeps the place of a static member until its session ends.
        time.sleep(SESSION)


def restart(harness: Harness, app: App) -> None:
    """The application stops in order and starts again; a static member in its old place."""
    harness.stop(app)
    harness.start(instance=app.instance)


def grow(harness: Harness, _app: App) -> None:
    """A topic gets another partition, with records."""
    counts = harness.topics.partitions
    topic = min((t for t in harness.shared if t != RECREATED), key=lambda name: counts[name])
    harness.topics.grow(topic)
    harness.produce(_EACH // 2, topics=[topic])
    count = sum(counts[topic] for topic in harness.shared)
    harness.wait(lambda: harness.partitions_dealt() == count, f"{count} partitions dealt", 300)


def stick(harness: Harness, _app: App) -> None:
    """A handler takes long; its slot gives back what it has not started, and all of it is done."""
    harness.hang()
    harness.produce(_EACH)
    harness.wait_for_all()


def freeze_worker(harness: Harness, app: App) -> None:
    """A worker stands still beyond its lease: it starts nothing more, and reports what it did."""
    harness.freeze_worker(app)
    harness.wait_for_all()


def cut_channels(harness: Harness, app: App) -> None:
    """The connections between a driver and its slots are lost, again and again."""
    for _ in range(5):
        app.network.cut()
        harness.sleep(0.7)
    harness.wait_for_all()


def delay_channels(harness: Harness, app: App) -> None:
    """What driver and slots say to each other comes late: within a lease, and after its end."""
    for seconds in (LEASE / 5, LEASE / 2, 2 * LEASE):
        app.network.passes.clear()
        harness.sleep(seconds)
        app.network.passes.set()
        harness.sleep(1.0)
    harness.wait_for_all()


def half_open_channels(harness: Harness, app: App) -> None:
    """One side loses its connections and the other does not notice; then the other way round."""
    for near in (True, False):
        app.network.cut(near=near, far=not near)
        harness.sleep(2 * LEASE)
    harness.wait_for_all()


def flood_channel(harness: Harness, app: App) -> None:
    """Strangers talk to a driver's port: they are refused, and the job goes on meanwhile."""
    for said in forged(app.name).values():
        with flood("127.0.0.1", app.port, said) as refused:
            harness.produce(_EACH // 4)
            harness.wait_for_all()
            harness.wait(lambda tries=refused: len(tries) > 100, "tries of strangers", 300)
        assert all(refused), f"{app.name} has listened to a stranger"


def delete_records(harness: Harness, _app: App) -> None:
    """Retention deletes what is done in each partition."""
    for place, commits in harness.store.state(harness.group).items():
        if place in harness.topics.expected() and place[0] != RECREATED:
            harness.topics.delete_below(place, commits.stable_offset)


# -- disturbing: what was in flight may be done again


def recreate(harness: Harness, _app: App) -> None:
    """A topic whose records are all done is deleted and created again, with new records."""
    harness.wait_for_all()
    for app in harness.alive:
        harness.watcher.disturb(app)
    harness.recreate(RECREATED)
    harness.produce(_EACH // 2, topics=[RECREATED])
    harness.wait_for_all()


def take_over_claim(harness: Harness, _app: App) -> None:
    """Another application claims what one has claimed; that one is fenced and ends."""
    old = harness.claimant
    assert old is not None
    old.may_fail = True
    harness.watcher.disturb(old)
    harness.produce(_EACH // 4, topics=[CLAIMED])
    harness.start_claimant()
    harness.wait(lambda: not old.is_alive, f"end of {old.name}", 300)
    harness.wait_for_all()


def pause(harness: Harness, _app: App) -> None:
    """A driver sleeps until the group has dealt its shares to others; a handler of it goes on."""
    app = harness.hang()
    before = harness.epoch()
    harness.pause(app)
    harness.wait(lambda: harness.epoch() > before, "epoch without the sleeper", 300)
    harness.sleep(2.0)
    harness.wake(app)


def orphan(harness: Harness, _app: App) -> None:
    """Driver and JVM are killed, a handler goes on; another application starts."""
    app = harness.hang()
    before = harness.epoch()
    harness.orphan(app)
    # A JVM that starts would keep the others from beginning while the handler runs.
    harness.wait(lambda: harness.epoch() > before, "epoch without the orphan", 300)
    harness.sleep(2.0)
    harness.start(instance=app.instance)


def lose_records(harness: Harness, _app: App) -> None:
    """Retention deletes records that nobody has handled yet."""
    harness.delete_unhandled()


def pause_all(harness: Harness, _app: App) -> None:
    """All drivers sleep beyond their sessions, and wake together."""
    asleep = harness.alive
    for app in asleep:
        harness.pause(app)
    time.sleep(SESSION + 2.0)
    for app in asleep:
        harness.wake(app)
    harness.wait_for_all()


def kill_driver(harness: Harness, app: App) -> None:
    """The driver alone is killed; another application starts, a static one in its place."""
    harness.kill(app, driver_alone=True)
    harness.start(instance=app.instance)


def kill_all(harness: Harness, app: App) -> None:
    """Driver, JVM and workers are killed; another application starts."""
    harness.kill(app, driver_alone=False)
    harness.start(instance=app.instance)


def kill_worker(harness: Harness, app: App) -> None:
    """One Python worker is killed; its application goes on."""
    harness.kill_worker(app)
    harness.wait_for_all()


def restart_broker(harness: Harness, _app: App) -> None:
    """The broker is killed and started again."""
    for app in harness.alive:
        harness.watcher.disturb(app)
    harness.kafka.kill()
    time.sleep(1.0)
    harness.kafka.start()
    harness.wait_for_all()


def freeze_broker(harness: Harness, _app: App) -> None:
    """The broker stands still for longer than a session."""
    for app in harness.alive:
        harness.watcher.disturb(app)
    harness.kafka.freeze()
    time.sleep(SESSION + 2.0)
    harness.kafka.thaw()
    harness.wait_for_all()


_ALL: list[Action] = [
    join, leave, restart, stick, freeze_worker, cut_channels, delay_channels, half_open_channels,
    flood_channel, grow, delete_records, lose_records, recreate,
    take_over_claim, pause, pause_all, kill_driver, kill_all, orphan, kill_worker, restart_broker,
    freeze_broker,
]  # fmt: skip
#: They begin when no disturbance can cost anything any more.
_CALM = {
    join, leave, restart, stick, freeze_worker, cut_channels, delay_channels, half_open_channels,
    flood_channel, grow, delete_records,
}  # fmt: skip
#: What may happen in a round.
KINDS = tuple(action.__name__ for action in _ALL)
