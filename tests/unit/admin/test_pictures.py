"""The offset map: counts by column, and the figure that is drawn of them."""

from __future__ import annotations

import itertools
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commits import OffsetRanges
from coopconsume.admin.pictures import OffsetMap, OffsetState, PicturesUnavailable


def _naive(
    stable: int, done: set[int], pending: set[int], parked: set[int], edges: list[int]
) -> list[list[int]]:
    top = max(done, default=stable - 1)
    counts = [[0] * (len(edges) - 1) for _ in OffsetState]
    for column, (low, high) in enumerate(itertools.pairwise(edges)):
        for offset in range(low, high):
            if offset < stable or offset in done:
                state = OffsetState.DONE
            elif offset in parked:
                state = OffsetState.PARKED
            elif offset in pending:
                state = OffsetState.PENDING
            elif offset <= top:
                state = OffsetState.GAP
            else:
                state = OffsetState.NOT_COMMITTED
            counts[state][column] += 1
    return counts


@given(
    done=st.tuples(st.integers(0, 60), st.sets(st.integers(1, 60), max_size=30)),
    pending=st.sets(st.integers(0, 130), max_size=20),
    parked=st.sets(st.integers(0, 130), max_size=20),
    span=st.tuples(st.integers(0, 80), st.integers(1, 90)),
    columns=st.integers(1, 40),
)
def test_counts_equal_those_of_looking_at_every_offset(
    done: tuple[int, set[int]],
    pending: set[int],
    parked: set[int],
    span: tuple[int, int],
    columns: int,
) -> None:
    """Each column counts its offsets by state as a look at each single one would."""
    stable, first, width = done[0], *span
    above = {stable + step for step in done[1]}
    drawn = OffsetMap.of(
        stable, OffsetRanges.from_offsets(sorted(above)), first + width,
        pending=sorted(pending), parked=sorted(parked), first=first, columns=columns,
    )  # fmt: skip
    edges = drawn.edges.tolist()
    assert edges[0] == first
    assert edges[-1] == first + width
    assert len(edges) - 1 == min(columns, width)
    assert drawn.counts.tolist() == _naive(stable, above, pending, parked, edges)


def test_the_worst_state_of_a_column_wins_its_place_in_the_strip() -> None:
    """One pending offset among a thousand done ones still marks its column."""
    drawn = OffsetMap.of(1_500, OffsetRanges([(1_501, 2_499)]), 4_000, pending=[1_500], columns=4)
    assert drawn.worst().tolist() == [
        OffsetState.DONE, OffsetState.PENDING, OffsetState.DONE, OffsetState.NOT_COMMITTED,
    ]  # fmt: skip
    assert drawn.total(OffsetState.NOT_COMMITTED) == 1_500


def test_fifty_million_offsets_are_drawn_by_few_artists() -> None:
    """However many ranges there are."""
    firsts = np.arange(1, 1_000_001, dtype=np.int64) * 40
    done = OffsetRanges.from_bounds(firsts, firsts + 19)
    drawn = OffsetMap.of(7, done, 50_000_000, pending=[9, 10])
    figure = drawn.figure("big-0")
    assert drawn.total(OffsetState.DONE) == 7 + 20_000_000
    assert drawn.total(OffsetState.PENDING) == 2
    assert drawn.counts.sum() == 50_000_000
    assert sum(len(axes.patches) + len(axes.collections) for axes in figure.axes) < 10


@pytest.mark.parametrize("at", [349_455, 2_035_145, 5_118_192, 9_768_105])
def test_one_open_offset_among_millions_is_drawn(at: int) -> None:
    """Also where a column of the map is narrower than a pixel of the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    done = OffsetRanges([(at + 1, 9_999_999)])
    figure = OffsetMap.of(at, done, 10_000_000, pending=[at]).figure("t-0")
    figure.set_dpi(100)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())[..., :3].astype(int)
    strip = drawn[drawn.shape[0] * 2 // 3 :]  # below the legend, which has all colours
    assert np.abs(strip - (0xD5, 0x5E, 0x00)).sum(axis=-1).min() < 60


def test_the_figure_names_states_with_counts_and_the_stable_offset() -> None:
    """The legend counts each state, and the stable offset is written at its line."""
    figure = OffsetMap.of(3, OffsetRanges([(5, 6)]), 10, pending=[4]).figure("t-0")
    shares = figure.axes[0]
    legend = [text.get_text() for text in shares.get_legend().get_texts()]
    assert legend == ["done 5", "parked 0", "pending 1", "gap 1", "not committed 3"]
    assert [text.get_text() for text in shares.texts] == ["stable offset 3"]
    assert shares.get_title(loc="left") == "t-0"
    labels = [(axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes]
    assert labels == [("share", ""), ("worst", "offset")]


def test_a_drawn_figure_is_not_kept_by_pyplot() -> None:
    """Pictures drawn in a loop do not pile up in memory."""
    from matplotlib import pyplot as plt

    OffsetMap.of(0, OffsetRanges(), 10).figure()
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("first", "end", "columns", "named"),
    [(5, 5, 10, "first=5, end=5"), (-1, 5, 10, "first=-1"), (0, 5, 0, "columns=0")],
)
def test_nonsense_is_refused_by_name(first: int, end: int, columns: int, named: str) -> None:
    """Wrong bounds and too few columns are errors that name the value."""
    with pytest.raises(ValueError, match=named):
        OffsetMap.of(0, OffsetRanges(), end, first=first, columns=columns)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is an error of ours that names it, and an ImportError too."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    remedy = r"pip install 'coopconsume\[notebook\]'"
    with pytest.raises(PicturesUnavailable, match=remedy) as caught:
        OffsetMap.of(0, OffsetRanges(), 10).figure()
    assert isinstance(caught.value, ImportError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
