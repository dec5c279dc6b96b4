"""The offset map: a picture of the committed, parked, pending and open offsets of a partition.

It needs matplotlib (extra ``notebook``), which is imported when the first picture is drawn. The
colours are those of Okabe and Ito, which are safe for colour-blind readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from commits import OffsetRanges
from coopconsume.admin.offsets import PartitionStatus
from coopconsume.errors.base import DeclaredError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from kafka import TopicPartition
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from coopconsume.consumer import CooperativeConsumer

__all__ = ["OffsetMap", "OffsetState", "PicturesUnavailable", "map_of", "offset_map"]

#: The default number of columns of a map: about one per pixel of a notebook's output.
COLUMNS: Final = 800


class PicturesUnavailable(DeclaredError, ImportError):
    """A picture was requested and matplotlib is not installed.

    Attributes:
        package: The missing package.
    """

    message = "pictures need {package}: pip install 'coopconsume[notebook]'"

    package: str


class OffsetState(IntEnum):
    """The state of an offset of the log for a group, in rising order of urgency.

    ``NOT_COMMITTED`` is above the highest committed offset: it may be read or polled already. A
    ``GAP`` is not committed either, and below a committed offset. ``PENDING`` has failed and is
    tried again; ``PARKED`` was given up and waits for a decision.
    """

    NOT_COMMITTED = 0
    DONE = 1
    GAP = 2
    PENDING = 3
    PARKED = 4

    @property
    def label(self) -> str:
        """The label in the legend."""
        return self.name.lower().replace("_", " ")


_COLOURS: Final[Mapping[OffsetState, str]] = MappingProxyType(
    {
        OffsetState.NOT_COMMITTED: "#e8e8e8",
        OffsetState.DONE: "#56b4e9",
        OffsetState.GAP: "#e3d98a",
        OffsetState.PENDING: "#d55e00",
        OffsetState.PARKED: "#b0207a",
    }
)


@dataclass(frozen=True)
class OffsetMap:
    """The number of offsets of each state in each column of a picture.

    Attributes:
        edges: The first offset of each column, and the end of the last column.
        counts: Offsets by state (row: the value of `OffsetState`) and column.
        stable_offset: The first uncommitted offset.
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
        parked: Iterable[int] = (),
        first: int = 0,
        columns: int = COLUMNS,
    ) -> Self:
        """Counts the offsets from ``first`` to before ``end``, by ranges and not one by one.

        Args:
            stable_offset: The first uncommitted offset.
            done: The committed offsets at or above it.
            end: The log's end: the offset of the next record.
            pending: The offsets of failed records that await a retry.
            parked: The offsets of records that await a decision; they may be among ``pending``.
            first: The first offset of the picture.
            columns: The maximum number of columns; never more than there are offsets.

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
        undecided = OffsetRanges.from_offsets(parked)
        top = stable_offset - 1 if done.last is None else max(done.last, stable_offset - 1)
        settled = done.clip(stable_offset, end - 1) if stable_offset < end else OffsetRanges()
        undecided = undecided.clip(stable_offset, end - 1) - settled if undecided else undecided
        waiting = waiting.clip(stable_offset, end - 1) - settled if waiting else waiting
        waiting = waiting - undecided if waiting and undecided else waiting
        failed = waiting | undecided
        sizes = np.diff(edges)
        below = np.diff(np.clip(edges, first, max(first, stable_offset)))
        n_done = below + _counted(settled, edges)
        n_pending, n_parked = _counted(waiting, edges), _counted(undecided, edges)
        beyond = np.diff(np.clip(edges, min(max(first, top + 1), end), end))
        n_open = beyond - _counted(failed.clip(top + 1, end - 1), edges)
        n_gap = sizes - n_done - n_pending - n_parked - n_open
        counts = np.zeros((len(OffsetState), columns), np.int64)
        counts[OffsetState.DONE], counts[OffsetState.PENDING] = n_done, n_pending
        counts[OffsetState.NOT_COMMITTED], counts[OffsetState.GAP] = n_open, n_gap
        counts[OffsetState.PARKED] = n_parked
        return cls(edges, counts, stable_offset)

    def total(self, state: OffsetState) -> int:
        """Returns the number of offsets in a state."""
        return int(self.counts[state].sum())

    def worst(self) -> NDArray[np.int64]:
        """Returns the most urgent state in each column."""
        present = self.counts > 0
        return np.asarray(len(OffsetState) - 1 - np.argmax(present[::-1], axis=0), np.int64)

    def figure(self, title: str = "") -> Figure:
        """Draws the map: the share of each state, and a strip of the most urgent states.

        The strip shows the most urgent state of each column, so that one open offset among
        millions stays visible.

        Args:
            title: The title of the picture.

        Raises:
            PicturesUnavailable: matplotlib is not installed.
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
        # Without this a notebook shows the figure twice, and pyplot keeps every figure in memory.
        plt.close(figure)
        return figure

    def _draw_shares(self, axes: Axes) -> None:
        sizes = np.diff(self.edges)
        base = np.zeros(len(sizes))
        order = (
            OffsetState.DONE, OffsetState.PARKED, OffsetState.PENDING, OffsetState.GAP,
            OffsetState.NOT_COMMITTED,
        )  # fmt: skip
        for state in order:
            share = base + self.counts[state] / sizes
            label = f"{state.label} {self.total(state):,}"
            axes.stairs(
                share, self.edges, baseline=base, fill=True, color=_COLOURS[state], label=label
            )
            base = share
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 1], ["0 %", "100 %"])
        axes.set_ylabel("share", fontsize=8)
        axes.legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8, handlelength=1
        )
        axes.spines[["top", "right"]].set_visible(False)

    def _draw_strip(self, axes: Axes) -> None:
        from matplotlib.colors import ListedColormap

        colours = ListedColormap([_COLOURS[state] for state in OffsetState])
        worst = self.worst()
        top = len(OffsetState) - 0.5
        axes.pcolormesh(self.edges, [0, 1], worst[None, :], cmap=colours, vmin=-0.5, vmax=top)
        # A column may be narrower than a pixel, and would then not be drawn; a line always is.
        middles = (self.edges[:-1] + self.edges[1:]) / 2
        for state in (OffsetState.GAP, OffsetState.PENDING, OffsetState.PARKED):
            axes.vlines(
                middles[worst == state], 0, 1,
                color=_COLOURS[state], linewidth=1.2, antialiased=False,
            )  # fmt: skip
        axes.set_xlim(self.edges[0], self.edges[-1])
        axes.set_yticks([])
        axes.set_ylabel("worst", fontsize=8)
        axes.set_xlabel("offset", fontsize=8)
        axes.ticklabel_format(axis="x", style="plain", useOffset=False)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)


def offset_map(
    consumer: CooperativeConsumer, partition: TopicPartition, *, columns: int = COLUMNS
) -> Figure:
    """Draws the current state of a partition that is assigned to a consumer.

    Args:
        consumer: The consumer; it joins its group first if needed.
        partition: The partition.
        columns: The maximum number of columns.

    Raises:
        ValueError: The partition is not assigned to the consumer, or has no records.
        PicturesUnavailable: matplotlib is not installed.
    """
    _pyplot()
    # It is not among the names that editors offer.
    membership = consumer._subscription.joined()  # noqa: SLF001
    at = (str(partition[0]), int(partition[1]))
    if at not in membership.owned:
        raise ValueError(
            f"partition {at[0]}-{at[1]} is not assigned to this consumer: see assignment()"
        )
    group = consumer.options.group_id
    status = PartitionStatus.of(
        at,
        membership.store.state(group)[at],
        pending=membership.store.pending(group).get(at),
        log_start=membership.cluster.log_starts([at])[at],
        end_offset=membership.cluster.ends([at])[at],
    )
    if (status.end_offset or 0) <= (status.log_start or 0):
        raise ValueError(f"partition {status.name} has no records to draw")
    return draw_status(status, group, columns=columns)


def draw_status(status: PartitionStatus, group: str, *, columns: int = COLUMNS) -> Figure:
    """Draws the status of a group in a partition.

    Args:
        status: The status.
        group: The group id, for the title.
        columns: The maximum number of columns.

    Raises:
        ValueError: The log of the partition is empty.
        PicturesUnavailable: matplotlib is not installed.
    """
    return map_of(status, columns=columns).figure(f"{status.name}, group {group}")


def map_of(
    status: PartitionStatus,
    first: int | None = None,
    end: int | None = None,
    *,
    columns: int = COLUMNS,
) -> OffsetMap:
    """Returns the offset map of a group in a partition.

    Args:
        status: The status.
        first: The first offset of the map; by default the log's start.
        end: The offset after its last one; by default the log's end.
        columns: The maximum number of columns.

    Raises:
        ValueError: The log of the partition is empty, or the bounds are.
    """
    start = status.log_start or 0
    first, end = start if first is None else first, (status.end_offset or 0) if end is None else end
    return OffsetMap.of(
        start if status.stable_offset is None else status.stable_offset, status.done, end,
        pending=status.pending, parked=status.parked, first=first, columns=columns,
    )  # fmt: skip


def _counted(offsets: OffsetRanges, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns how many offsets of a set are in each column."""
    if not offsets:
        return np.zeros(len(edges) - 1, np.int64)
    firsts, lasts = offsets.bounds()
    before = np.concatenate([[0], np.cumsum(lasts - firsts + 1)])
    at = np.searchsorted(firsts, edges, side="left")
    # The ranges that begin before an edge, less the part of the last one at or beyond the edge.
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
