"""Rounds of bad luck, drawn by a seed: the same seed draws the same ones."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from tests.chaos.ground import SESSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.ground import App, Ground

    Action = Callable[[Ground, App], None]

_EACH = 400
_FEWEST, _MOST = 2, 4


def begin(ground: Ground, apps: int) -> None:
    """Start applications that share the topic, and see them work."""
    ground.produce(_EACH)
    for _ in range(apps):
        ground.start()
    ground.wait_for_members(apps)
    ground.wait_for_done(1)


def finish(ground: Ground) -> None:
    """Let everything be done, and all applications stop in order."""
    ground.produce(_EACH)
    ground.wait_for_done(len(ground.produced))
    for app in ground.alive:
        ground.stop(app)


def play(ground: Ground, rounds: int, seed: int, tell: Callable[[str], None]) -> None:
    """Play some rounds on applications that have begun."""
    dice = random.Random(seed)
    for number in range(1, rounds + 1):
        ground.produce(_EACH)
        time.sleep(dice.uniform(0.1, 1.5))
        action = dice.choice(_possible(ground))
        app = dice.choice(ground.alive)
        tell(f"round {number}: {action.__name__.replace('_', ' ')} {app.name}")
        action(ground, app)
        ground.wait_for_members(len(ground.alive))


def _possible(ground: Ground) -> list[Action]:
    actions: list[Action] = [pause, pause_all, kill_driver, kill_all, restart_broker]
    if len(ground.alive) < _MOST:
        actions += [join, join]
    if len(ground.alive) > _FEWEST:
        actions += [leave]
    return actions


def pause(ground: Ground, app: App) -> None:
    """The driver sleeps beyond its session, and wakes."""
    ground.pause(app)
    time.sleep(SESSION + 2.0)
    ground.wake(app)


def pause_all(ground: Ground, _app: App) -> None:
    """All drivers sleep beyond their sessions, and wake together."""
    asleep = ground.alive
    for app in asleep:
        ground.pause(app)
    time.sleep(SESSION + 2.0)
    for app in asleep:
        ground.wake(app)


def kill_driver(ground: Ground, app: App) -> None:
    """The driver alone is killed; another application starts."""
    ground.kill(app, driver_alone=True)
    ground.start()


def kill_all(ground: Ground, app: App) -> None:
    """Driver, JVM and workers are killed; another application starts."""
    ground.kill(app, driver_alone=False)
    ground.start()


def restart_broker(ground: Ground, _app: App) -> None:
    """The broker is killed and started again."""
    ground.kafka.kill()
    time.sleep(1.0)
    ground.kafka.start()


def join(ground: Ground, _app: App) -> None:
    """Another application starts."""
    ground.start()


def leave(ground: Ground, app: App) -> None:
    """The application stops in order."""
    ground.stop(app)
