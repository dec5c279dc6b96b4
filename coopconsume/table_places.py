"""The rule that no table that this library writes lies inside another table."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING

from commits.places import enclosing_table, identity_of
from commits.secrets import hidden
from coopconsume.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True)
class TablePlace:
    """Where a table is, or will be.

    Attributes:
        option: The option or argument that names the place.
        path: The path or URI of the table.
        storage: Options of the object store, if it has its own.
    """

    option: str
    path: str
    storage: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def _store(self) -> tuple[tuple[str, str], ...]:
        """The same bucket may exist in several stores."""
        is_remote = "://" in self.path and not self.path.startswith("file:")
        return tuple(sorted((self.storage or {}).items())) if is_remote else ()

    def contains(self, other: TablePlace) -> bool:
        """Whether another table is inside this one, or is this one."""
        mine, its = identity_of(self.path), identity_of(other.path)
        return self._store == other._store and its[: len(mine)] == mine


def refuse_nested(tables: Collection[TablePlace]) -> None:
    """Refuses tables inside each other: VACUUM of the outer table removes the inner one's files.

    On a local disk, tables that others have are found as well.

    Args:
        tables: All tables that are written side by side, the commit table included.

    Raises:
        InvalidOption: A table is inside another one, or two are the same.
    """
    for outer, inner in permutations(tables, 2):
        if outer.contains(inner):
            is_same = inner.contains(outer)
            whose = f"{outer.option} = {hidden(outer.path)!r}"
            raise _refused(inner, f"it is {whose}, too" if is_same else _inside(whose))
    for table in tables:
        around = enclosing_table(table.path)
        if around is not None:
            raise _refused(table, _inside(f"the Delta table {around!r}"))


def _inside(outer: str) -> str:
    return f"it is inside {outer}, and VACUUM of that table removes its files"


def _refused(table: TablePlace, problem: str) -> InvalidOption:
    remedy = "give each table a path outside the others, and move there what exists"
    if table.option == "commitTable":
        remedy += " (by commits.move_table)"
    return InvalidOption(table.option, repr(hidden(table.path)), f"{problem}: {remedy}")
