"""Rounds of a chaos run, drawn by a seed: the same seed draws the same ones."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from tests.chaos.harness import CLAIMED, LIFE, RECREATED, SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.chaos.harness import App, Ground

    Action = Callable[[Ground, App], None]

_EACH = 300
_FEWEST, _MOST = 2, 4


def begin(ground: Ground, apps: int) -> None:
    """Start applications that share the topics, one of them static, and see them work."""
    ground.produce(_EACH)
    for number in range(apps):
        ground.start(static=number == 0)
    if CLAIMED in ground.topics.partitions:
        ground.start_claimant()
    ground.wait_for_members(apps)
    ground.wait_for_done(1)


def finish(ground: Ground) -> None:
    """Let everything be done, and all applications stop in order."""
    ground.produce(_EACH)
    ground.wait_for_all()
    for app in ground.apps:
        if app.is_alive:
            ground.stop(app)


def play(
    ground: Ground, rounds: int, seed: int, tell: Callable[[str], None],
    kinds: Sequence[str] = (),
) -> None:  # fmt: skip
    """Play some rounds on applications that have begun: of all kinds, or of some."""
    dice = random.Random(seed)
    every = [action for action in _ALL if not kinds or action.__name__ in kinds]
    waiting: list[Action] = []
    for number in range(1, rounds + 1):
        ground.produce(_EACH)
        ground.sleep(dice.uniform(0.1, 1.5))
        # Every kind has its turn before any comes again, as far as it is possible at the time.
        possible = _possible(ground)
        turn = [action for action in waiting if action in possible]
        if not turn:
            waiting, turn = list(every), [action for action in every if action in possible]
        action, app = dice.choice(turn), dice.choice(ground.alive)
        waiting.remove(action)
        begun = time.monotonic()
        tell(f"round {number}: {action.__name__.replace('_', ' ')} {app.name}")
        action(ground, app)
        ground.wait_for_members(len(ground.alive))
        ground.watcher.settled(LIFE)
        tell(f"round {number}: {time.monotonic() - begun:.0f} s, {ground.left()} records left")


def _possible(ground: Ground) -> list[Action]:
    alive, topics = ground.alive, ground.topics
    actions: list[Action] = [
        pause, pause_all, kill_driver, kill_all, kill_worker, restart_broker, freeze_broker,
        restart, delete_records, lose_records, orphan,
    ]  # fmt: skip
    if len(alive) < _MOST:
        actions += [join]
    if len(alive) > _FEWEST:
        actions += [leave]
    if any(topics.partitions[topic] < 5 for topic in ground.shared if topic != RECREATED):
        actions += [grow]
    if RECREATED in topics.partitions:
        actions += [recreate]
    if CLAIMED in topics.partitions:
        actions += [take_over_claim]
    return actions


# -- calm: no record may be done again


def join(ground: Ground, _app: App) -> None:
    """Another application starts, as a static member every other time."""
    ground.start(static=len(ground.apps) % 2 == 0)


def leave(ground: Ground, app: App) -> None:
    """The application stops in order."""
    ground.stop(app)
    if app.instance is not None:
        # Kafka keeps the place of a static member until its session ends.
        time.sleep(SESSION)


def restart(ground: Ground, app: App) -> None:
    """The application stops in order and starts again; a static member in its old place."""
    ground.stop(app)
    ground.start(instance=app.instance)


def grow(ground: Ground, _app: App) -> None:
    """A topic gets another partition, with records."""
    topic = min((t for t in ground.shared if t != RECREATED), key=ground.topics.partitions.get)
    ground.topics.grow(topic)
    ground.produce(_EACH // 2, topics=[topic])
    count = sum(ground.topics.partitions[topic] for topic in ground.shared)
    ground.wait(lambda: ground.partitions_dealt() == count, f"{count} partitions dealt", 300)


def delete_records(ground: Ground, _app: App) -> None:
    """Retention deletes what is done in each partition."""
    for place, commits in ground.store.state(ground.group).items():
        if place in ground.topics.expected() and place[0] != RECREATED:
            ground.topics.delete_below(place, commits.stable_offset)


# -- disturbing: what was in flight may be done again


def recreate(ground: Ground, _app: App) -> None:
    """A topic of which all is done is deleted and created again, with new records."""
    ground.wait_for_all()
    for app in ground.alive:
        ground.watcher.disturb(app)
    ground.recreate(RECREATED)
    ground.produce(_EACH // 2, topics=[RECREATED])
    ground.wait_for_all()


def take_over_claim(ground: Ground, _app: App) -> None:
    """Another application claims what one has claimed; that one is fenced and ends."""
    old = ground.claimant
    assert old is not None
    old.may_fail = True
    ground.watcher.disturb(old)
    ground.produce(_EACH // 4, topics=[CLAIMED])
    ground.start_claimant()
    ground.wait(lambda: not old.is_alive, f"end of {old.name}", 300)
    ground.wait_for_all()


def pause(ground: Ground, _app: App) -> None:
    """A driver sleeps until the group has dealt its shares to others; a handler of it goes on."""
    app = ground.hang()
    before = ground.epoch()
    ground.pause(app)
    ground.wait(lambda: ground.epoch() > before, "epoch without the sleeper", 300)
    ground.sleep(2.0)
    ground.wake(app)


def orphan(ground: Ground, _app: App) -> None:
    """Driver and JVM are killed, a handler goes on; another application starts."""
    app = ground.hang()
    ground.orphan(app)
    ground.start(instance=app.instance)


def lose_records(ground: Ground, _app: App) -> None:
    """Retention deletes records that nobody has handled yet."""
    ground.delete_unhandled()


def pause_all(ground: Ground, _app: App) -> None:
    """All drivers sleep beyond their sessions, and wake together."""
    asleep = ground.alive
    for app in asleep:
        ground.pause(app)
    time.sleep(SESSION + 2.0)
    for app in asleep:
        ground.wake(app)
    ground.wait_for_all()


def kill_driver(ground: Ground, app: App) -> None:
    """The driver alone is killed; another application starts, a static one in its place."""
    ground.kill(app, driver_alone=True)
    ground.start(instance=app.instance)


def kill_all(ground: Ground, app: App) -> None:
    """Driver, JVM and workers are killed; another application starts."""
    ground.kill(app, driver_alone=False)
    ground.start(instance=app.instance)


def kill_worker(ground: Ground, app: App) -> None:
    """One Python worker is killed; its application goes on."""
    ground.kill_worker(app)
    ground.wait_for_all()


def restart_broker(ground: Ground, _app: App) -> None:
    """The broker is killed and started again."""
    for app in ground.alive:
        ground.watcher.disturb(app)
    ground.kafka.kill()
    time.sleep(1.0)
    ground.kafka.start()
    ground.wait_for_all()


def freeze_broker(ground: Ground, _app: App) -> None:
    """The broker stands still for longer than a session."""
    for app in ground.alive:
        ground.watcher.disturb(app)
    ground.kafka.freeze()
    time.sleep(SESSION + 2.0)
    ground.kafka.thaw()
    ground.wait_for_all()


_ALL: list[Action] = [
    join, leave, restart, grow, delete_records, lose_records, recreate, take_over_claim, pause,
    pause_all, kill_driver, kill_all, orphan, kill_worker, restart_broker, freeze_broker,
]  # fmt: skip
#: What may happen in a round.
KINDS = tuple(action.__name__ for action in _ALL)
