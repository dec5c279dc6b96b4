"""What the members of a group agree on: one list, with how each term is compared and refused.

Members that live at the same time say their terms to the leader, which refuses those that do not
agree with most (`refusals`). At a start the terms are compared with what the commit table notes: in
settings (`agree`, `check`) or in the row of the last epoch (`changes`). A member of an earlier
version does not say each term, and a table of an earlier version does not note each: then it is
compared with nobody, and noted from then on.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from assignors.ranges import HASH_VERSION
from commits.sharing import COOPERATIVE
from coopconsume.errors import GroupRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from commits import Assignment, CommitStore, Epoch
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options

    Terms = Mapping[str, str]

log = logging.getLogger(__name__)


class Start(Enum):
    """What a start does whose term is not the noted one."""

    LOGGED = "It is logged, and the new value is noted."
    SETTLED = "It is refused while records are pending, or others work."
    REFUSED = "It is refused."


@dataclass(frozen=True)
class Term:
    """Something that members agree on.

    Attributes:
        field: Its name in subscriptions and in the row of an epoch.
        name: Its name for people.
        remedy: What to give to all members.
        absent: Its value if a member does not say it, or the commit table does not note it; None:
            it is not known then.
        empty: What people read if it is empty.
        setting: The setting of the commit table that notes it, before the group; empty: none does.
        at_start: What a start does with another value than the noted one.
        after: What holds of earlier work after a change, for people.
    """

    field: str
    name: str
    remedy: str
    absent: str | None = None
    empty: str = "none"
    setting: str = ""
    at_start: Start = Start.LOGGED
    after: str = ""

    def of(self, terms: Terms) -> str | None:
        """Returns its value among those that are said or noted; None: it is not known."""
        return terms.get(self.field, self.absent)

    def noted(self, settings: Mapping[str, Any], group: str) -> str | None:
        """Returns the value that is in a setting of the commit table; None: it is not known."""
        found: str | None = settings.get(f"{self.setting}:{group}", self.absent)
        return found


_STOP = "to change it, stop all members first"
_TABLES = "commitTable and kafka.bootstrap.servers"
ORDERING_KEY: Final = Term(
    "ordering_key", "orderingKey", f"orderingKey; {_STOP}", absent="", setting="orderingKey",
    at_start=Start.SETTLED,
)  # fmt: skip
_SETTINGS: Final = Term(
    "settings", "session settings of where and orderingKey",
    f"values of these settings of Spark before they make their consumers; {_STOP}",
    setting="expressionSettings", after="what was filtered before stays done",
)  # fmt: skip
#: In this order members are compared: a term is no matter for those that are refused before.
TERMS: Final = (
    Term("store", "commit table", _TABLES),
    Term("cluster", "Kafka cluster", _TABLES),
    Term(
        # Members and groups of the first version say and note none.
        "hash", "hash version", "version of the library", absent="1", setting="hash",
        at_start=Start.REFUSED,
    ),
    # Its note has a path as well: `coopconsume.state.note` compares and writes it at a start.
    Term("state", "state (id of its table)", f"state; {_STOP} and run 'coopconsume state switch'"),
    Term("sharing", "sharing", f"sharing; {_STOP}", absent="", empty="keyRanges"),
    Term(
        "filter", "filter",
        f"filter; {_STOP} and wait until Kafka has removed them (static ones after "
        "kafka.session.timeout.ms)",
        absent="", after="what was filtered before stays done",
    ),
    ORDERING_KEY,
    _SETTINGS,
)  # fmt: skip


def terms_of(options: Options, store: CommitStore, cluster: Cluster) -> dict[str, str]:
    """Returns what a member says of its terms; what says no more than silence is left out."""
    every = {
        "store": store.id,
        "cluster": cluster.cluster_id,
        "hash": str(HASH_VERSION),
        "sharing": COOPERATIVE if options.uses_chunks else "",
        "filter": str(options.record_filter),
        "ordering_key": options.ordering_key or "",
        "settings": options.expression_settings,
    }
    absent = {term.field: term.absent for term in TERMS}
    return {name: said for name, said in every.items() if said not in (None, absent[name])}


def refusals(
    group: str, said: Mapping[str, Terms], at_work: Collection[str], me: str
) -> dict[str, str]:
    """Returns why members are refused that do not agree with the others, by id.

    Of each term most members decide, among them first those that work under an epoch, and the
    leader if there are as many.

    Args:
        group: The group.
        said: The terms of each member.
        at_work: The members of the epoch in force.
        me: The leader.
    """
    refused: dict[str, str] = {}
    for term in TERMS:
        values = {m: term.of(terms) for m, terms in said.items() if m not in refused}
        counts = Counter(value for value in values.values() if value is not None)
        working = Counter(value for member, value in values.items() if member in at_work)
        if len(counts) < 2:  # noqa: PLR2004 - they agree
            continue
        most = max(counts, key=lambda one: (working[one], counts[one], one == values.get(me)))
        refused |= {
            member: f"it works with the {term.name} {value or term.empty}, the other members of "
            f"group {group!r} with {most or term.empty}: give all members the same {term.remedy}"
            for member, value in values.items()
            if value not in (None, most)
        }
    return refused


def agree(store: CommitStore, group: str, mine: Terms, *, at_work: Collection[Epoch] = ()) -> None:
    """Notes the terms of a group, if they may be different from those that are noted.

    Args:
        store: The commit store.
        group: The group.
        mine: The terms of the leader, or of a claim.
        at_work: Epochs and claims of others whose members may be at work.

    Raises:
        GroupRefused: They may not.
    """
    changed = []
    for term, found, value, at_start in _unlike(store, group, mine):
        if found is not None and at_start is Start.LOGGED:
            _warn(group, term, "the group", found, value)
        elif found is not None:
            if at_start is Start.REFUSED or at_work:
                raise _other(group, term, found, value, at_start)
            for (topic, partition), records in sorted(store.pending(group).items()):
                raise _refused(
                    group, term, found, value,
                    "records that failed keep their hashes, such as "
                    f"{topic}-{partition}@{min(records)}: process them with the {term.name} "
                    "before, or set the group's offsets, which forgets them",
                )  # fmt: skip
        if found is None or not at_work:
            changed.append(("", f"{term.setting}:{group}", value or None))
    store.set_settings(changed)


def check(store: CommitStore, group: str, mine: Terms) -> None:
    """Makes sure that a member that begins has the terms of its group.

    A static member may have come back with others, without a word to the leader.

    Raises:
        GroupRefused: It has not.
    """
    for term, found, value, at_start in _unlike(store, group, mine):
        if found is not None and at_start is not Start.LOGGED:
            raise _other(group, term, found, value, at_start)


def log_changes(
    group: str, whose: str, row: Assignment, mine: Terms, known: set[tuple[str, str]]
) -> None:
    """Warns of terms of an epoch or a claim that are not those of a member, each value once.

    Args:
        group: The group.
        whose: The epoch or the claim, for people.
        row: It, as the commit log has it.
        mine: The terms of the member.
        known: The terms and values that were reported; new ones are added.
    """
    for term in TERMS:
        found = {"filter": row.record_filter, "sharing": row.sharing}.get(term.field)
        value = term.of(mine)
        if found is None or value is None or found == value or (term.field, found) in known:
            continue
        known.add((term.field, found))
        _warn(group, term, whose, found, value)


def _unlike(
    store: CommitStore, group: str, mine: Terms
) -> Iterator[tuple[Term, str | None, str, Start]]:
    """Returns terms that settings note in another way: both values, and what a start does."""
    settings = store.settings()
    # The settings that an ordering key is computed with are part of it.
    has_key = ORDERING_KEY.of(mine) and ORDERING_KEY.noted(settings, group)
    for term in TERMS:
        found, value = term.noted(settings, group), term.of(mine)
        if term.setting and value not in (None, found):
            if term.at_start is Start.REFUSED and not store.state(group):
                found = None  # Nothing depends on what a group without commits has noted.
            at_start = ORDERING_KEY.at_start if term is _SETTINGS and has_key else term.at_start
            yield term, found, value, at_start


def _other(group: str, term: Term, found: str, value: str, at_start: Start) -> GroupRefused:
    remedy = (
        f"give the {term.remedy} that the group has" if at_start is Start.REFUSED
        else "stop all of its members and claims before you change it"
    )  # fmt: skip
    return _refused(group, term, found, value, remedy)


def _refused(group: str, term: Term, found: str, value: str, remedy: str) -> GroupRefused:
    words = f"{value or term.empty}, the group with {found or term.empty}"
    return GroupRefused(group, f"it works with the {term.name} {words}; {remedy}")


def _warn(group: str, term: Term, whose: str, found: str, value: str) -> None:
    log.warning(
        "group %s: the %s of %s was %s, this member's is %s%s", group, term.name, whose,
        found or term.empty, value or term.empty, f"; {term.after}" if term.after else "",
    )  # fmt: skip
