"""The offset map: what of a partition is done, open, waiting and not read, as one picture.

Needs matplotlib, which comes with the extra ``notebook`` and is imported when the first picture is
drawn. Colours are those of Okabe and Ito, which people tell apart whatever their colour vision.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, Self

import numpy as np

from commits import OffsetRanges
from coopconsume.errors import CoopConsumeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from kafka import TopicPartition
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from coopconsume.admin.offsets import PartitionStatus
    from coopconsume.group.membership import Membership
    from coopconsume.options import Options

__all__ = ["OffsetMap", "OffsetState", "PicturesUnavailable", "offset_map"]

#: Columns of a map unless told otherwise: about one a pixel of a usual notebook.
COLUMNS: Final = 800


class PicturesUnavailable(CoopConsumeError, ImportError):
    """A picture was asked for and matplotlib is not installed.

    Attributes:
        package: What is missing.
    """

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package

    def __str__(self) -> str:
        return f"pictures need {self.package}: pip install 'coopconsume[notebook]'"


class OffsetState(IntEnum):
    """What an offset of the log is to a group; the higher, the more it asks for a look."""

    NOT_READ = 0
    DONE = 1
    GAP = 2
    PENDING = 3

    @property
    def label(self) -> str:
        """The word in the legend."""
        return self.name.lower().replace("_", " ")


_COLOURS: Final[Mapping[OffsetState, str]] = MappingProxyType(
    {
        OffsetState.NOT_READ: "#e8e8e8",
        OffsetState.DONE: "#56b4e9",
        OffsetState.GAP: "#f0e442",
        OffsetState.PENDING: "#d55e00",
    }
)


@dataclass(frozen=True)
class OffsetMap:
    """How many offsets of each state lie in each column of a picture.

    Attributes:
        edges: Where the columns begin, and the end of the last: one more than there are columns.
        counts: Offsets by state (row: the value of `OffsetState`) and column.
        stable_offset: The first offset that is not done.
    """

    edges: NDArray[np.int64]
    counts: NDArray[np.int64]
    stable_offset: int

    @classmethod
    def of(
        cls,
        stable_offset: int,
        done: OffsetRanges,
        end: int,
        *,
        pending: OffsetRanges | Iterable[int] = (),
        first: int = 0,
        columns: int = COLUMNS,
    ) -> Self:
        """Count the offsets from ``first`` to before ``end``; no step looks at single offsets.

        Args:
            stable_offset: Everything below is done.
            done: What is done at or above it.
            end: The log's end: the offset that the next record gets.
            pending: Offsets that were read and are to be tried again.
            first: Where the picture begins.
            columns: How many columns at most; never more than there are offsets.

        Raises:
            ValueError: ``first`` is negative or not below ``end``, or ``columns`` is below 1.
        """
        if not 0 <= first < end:
            raise ValueError(f"first={first}, end={end}: give 0 <= first < end")
        if columns < 1:
            raise ValueError(f"columns={columns}: give at least 1")
        width = end - first
        columns = min(columns, width)
        # Python's integers: columns times an offset may not fit 64 bits.
        edges = np.array([first + width * i // columns for i in range(columns + 1)], np.int64)
        waiting = (
            pending if isinstance(pending, OffsetRanges) else OffsetRanges.from_offsets(pending)
        )
        top = stable_offset - 1 if done.last is None else max(done.last, stable_offset - 1)
        settled = done.clip(stable_offset, end - 1) if stable_offset < end else OffsetRanges()
        waiting = waiting.clip(stable_offset, end - 1) - settled if waiting else waiting
        sizes = np.diff(edges)
        below = np.diff(np.clip(edges, first, max(first, stable_offset)))
        n_done = below + _counted(settled, edges)
        n_pending = _counted(waiting, edges)
        beyond = np.diff(np.clip(edges, min(max(first, top + 1), end), end))
        n_not_read = beyond - _counted(waiting.clip(top + 1, end - 1), edges)
        n_gap = sizes - n_done - n_pending - n_not_read
        counts = np.zeros((len(OffsetState), columns), np.int64)
        counts[OffsetState.DONE], counts[OffsetState.PENDING] = n_done, n_pending
        counts[OffsetState.NOT_READ], counts[OffsetState.GAP] = n_not_read, n_gap
        return cls(edges, counts, stable_offset)

    def total(self, state: OffsetState) -> int:
        """Offsets of a state in the whole map."""
        return int(self.counts[state].sum())

    def worst(self) -> NDArray[np.int64]:
        """For each column the highest state that any of its offsets has."""
        present = self.counts > 0
        return np.asarray(len(OffsetState) - 1 - np.argmax(present[::-1], axis=0), np.int64)

    def figure(self, title: str = "") -> Figure:
        """Draw the map: the share of each state, and below it where anything is open at all.

        The strip below shows every column by the worst that it holds, so that one open offset
        among millions is still seen.

        Args:
            title: Written above.

        Raises:
            PicturesUnavailable: There is no matplotlib.
        """
        plt = _pyplot()
        figure: Figure = plt.figure(figsize=(9.0, 2.2), layout="constrained")
        shares, strip = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        self._draw_shares(shares)
        self._draw_strip(strip)
        if self.edges[0] <= self.stable_offset <= self.edges[-1]:
            shares.axvline(self.stable_offset, color="black", linewidth=1)
            shares.annotate(
                f"stable offset {self.stable_offset:,}", (self.stable_offset, 1.0),
                xytext=(0, 3), textcoords="offset points", fontsize=8,
                ha="left" if 2 * self.stable_offset <= self.edges[0] + self.edges[-1] else "right",
                xycoords=("data", "axes fraction"), annotation_clip=False,
            )  # fmt: skip
        shares.set_title(title, fontsize=10, pad=14, loc="left")
        # Closed for pyplot, so that a notebook shows it once and none is kept for ever.
        plt.close(figure)
        return figure

    def _draw_shares(self, axes: Axes) -> None:
        sizes = np.diff(self.edges)
        base = np.zeros(len(sizes))
        order = (OffsetState.DONE, OffsetState.PENDING, OffsetState.GAP, OffsetState.NOT_READ)
        for state in order:
            share = base + self.counts[state] / sizes
            label = f"{state.label} {self.total(state):,}"
            axes.stairs(
                share, self.edges, baseline=base, fill=True, color=_COLOURS[state], label=label
            )
            base = share
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 1], ["0 %", "100 %"])
        axes.legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8, handlelength=1
        )
        axes.spines[["top", "right"]].set_visible(False)

    def _draw_strip(self, axes: Axes) -> None:
        from matplotlib.colors import ListedColormap

        colours = ListedColormap([_COLOURS[state] for state in OffsetState])
        worst = self.worst()[None, :]
        top = len(OffsetState) - 0.5
        axes.pcolormesh(self.edges, [0, 1], worst, cmap=colours, vmin=-0.5, vmax=top)
        axes.set_yticks([])
        axes.set_xlabel("offset", fontsize=8)
        axes.ticklabel_format(axis="x", style="plain", useOffset=False)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)


class Consumer(Protocol):
    """A `CooperativeConsumer`, as far as a picture needs it."""

    @property
    def options(self) -> Options:
        """Its options."""

    def membership(self) -> Membership:
        """Its place in the group, which it joins if it has not."""


def offset_map(consumer: Consumer, partition: TopicPartition, *, columns: int = COLUMNS) -> Figure:
    """Draw what the commit log says now of one partition that a consumer owns.

    Args:
        consumer: Joins its group first, if it has not.
        partition: Which.
        columns: How many columns the picture has at most.

    Raises:
        ValueError: The partition is not assigned to the consumer, or has never had a record.
        PicturesUnavailable: There is no matplotlib.
    """
    _pyplot()
    membership, at = consumer.membership(), (str(partition[0]), int(partition[1]))
    if at not in membership.owned:
        raise ValueError(f"partition {at[0]}-{at[1]} is not assigned to us")
    commits = membership.store.state(consumer.options.group_id)[at]
    pending = membership.store.pending(consumer.options.group_id).get(at, {})
    end = membership.cluster.ends([at])[at]
    first = membership.cluster.log_starts([at])[at]
    if end <= first:
        raise ValueError(f"partition {at[0]}-{at[1]} has no records to draw")
    drawn = OffsetMap.of(
        commits.stable_offset, commits.ranges, end, pending=pending, first=first, columns=columns
    )
    return drawn.figure(f"{at[0]}-{at[1]}, group {consumer.options.group_id}")


def draw_standing(standing: PartitionStatus, group: str, *, columns: int = COLUMNS) -> Figure:
    """Draw how a group stands in a partition that has had a record.

    Args:
        standing: How it stands.
        group: The group, for the title.
        columns: How many columns the picture has at most.

    Raises:
        ValueError: The partition has never had a record.
        PicturesUnavailable: There is no matplotlib.
    """
    first, end = standing.log_start or 0, standing.end_offset or 0
    stable = first if standing.stable_offset is None else standing.stable_offset
    drawn = OffsetMap.of(
        stable, standing.done, end, pending=standing.pending, first=first, columns=columns
    )
    return drawn.figure(f"{standing.name}, group {group}")


def _counted(offsets: OffsetRanges, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many offsets of a set lie in each column."""
    if not offsets:
        return np.zeros(len(edges) - 1, np.int64)
    firsts, lasts = offsets.bounds()
    before = np.concatenate([[0], np.cumsum(lasts - firsts + 1)])
    at = np.searchsorted(firsts, edges, side="left")
    # Ranges that begin before an edge, less what the last of them has at or beyond it.
    over = np.where(at > 0, np.maximum(0, lasts[np.maximum(at, 1) - 1] + 1 - edges), 0)
    return np.diff(before[at] - over)


def _pyplot() -> ModuleType:
    try:
        from matplotlib import pyplot as plt
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise PicturesUnavailable("matplotlib") from None
    module: ModuleType = plt
    return module
