"""Dead letters on the live page: lists, whole letters, and decisions with a dry run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from coopconsume.admin.dead_letters.choice import Choice, steps
from coopconsume.admin.dead_letters.tables import letter_facts, letter_table, name_of
from coopconsume.admin.tables import text_of
from coopconsume.ui.content import table_content

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from coopconsume.admin.dead_letters.actions import DeadLetters
    from coopconsume.admin.dead_letters.stored import Letter
    from coopconsume.runtime.decided_by import DecidedBy
    from coopconsume.runtime.decisions import Action

#: Letters on a page at most, and letters of one decision.
MOST: Final = 200
#: Bytes of a value that are shown.
_VALUE: Final = 100_000

Id = tuple[str, int, int, str]


def letters_content(
    letters: DeadLetters, *, reason: str, key: str, settled: bool, start: int, limit: int
) -> dict[str, Any]:
    """Returns a page of dead letters, without values, headers and traces.

    Args:
        letters: The dead letters of the group.
        reason: Only letters with this text in their reason.
        key: Only records with this key; empty for all.
        settled: Whether to include letters with a final decision.
        start: The number of the first letter, from 0.
        limit: The number of letters, at most.
    """
    choice = Choice(reason=reason or None, key=key.encode() if key else None, settled=settled)
    found = letters.letters(choice, whole=False)
    shown = found[start : start + min(limit, MOST)]
    return {
        "count": len(found),
        "statuses": Counter(one.status for one in found),
        "letters": [_id(one) for one in shown],
        "table": table_content(letter_table(shown)),
    }


def letters_of(letters: DeadLetters, topic: str, partition: int, offset: int) -> dict[str, Any]:
    """Returns the ids of the letters of a record, decided ones included; the newest one first."""
    choice = Choice(topic=topic, partition=partition, first=offset, last=offset, settled=True)
    return {"letters": [_id(one) for one in reversed(letters.letters(choice, whole=False))]}


def letter_content(letters: DeadLetters, wanted: Id) -> dict[str, Any] | None:
    """Returns a whole letter; None if no letter has this id."""
    topic, partition, offset, _ = wanted
    choice = Choice(topic=topic, partition=partition, first=offset, last=offset, settled=True)
    one = next((one for one in letters.letters(choice) if one.id == wanted), None)
    if one is None:
        return None
    return {
        "name": name_of(one),
        "facts": table_content(letter_facts(one), _VALUE),
        "value": None if one.value is None else text_of(one.value[:_VALUE]),
        "trace": one.trace,
    }


def decide(
    letters: DeadLetters,
    action: Action,
    wanted: Collection[Id],
    confirmed: Mapping[str, int] | None,
    by: DecidedBy | None = None,
) -> dict[str, Any]:
    """Plans a decision on some letters, and carries it out if it was confirmed.

    Args:
        letters: The dead letters of the group.
        action: What becomes of them.
        wanted: Their ids.
        confirmed: The counts of the plan that a person confirmed: it is carried out if they still
            hold. None: a dry run.
        by: Who decides, and why; by default the user of this process.

    Returns:
        ``parked`` and ``passed``, the counts of the plan (see `Steps`), and whether it was
        ``executed``.
    """
    chosen = set(wanted)
    # A replay writes records again, so they are read whole.
    plan = steps(
        one for one in letters.letters(Choice(), whole=action == "replay") if one.id in chosen
    )
    counts = {"parked": len(plan.parked), "passed": len(plan.passed)}
    is_confirmed = confirmed is not None and dict(confirmed) == counts
    if is_confirmed:
        letters.carry_out(action, plan, by)
    return {**counts, "executed": is_confirmed}


def _id(one: Letter) -> dict[str, Any]:
    topic, partition, offset, commit = one.id
    return {"topic": topic, "partition": partition, "offset": offset, "commit": commit}
