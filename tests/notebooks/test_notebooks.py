"""The notebooks run from top to bottom, and each is one text in two formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory

_FOLDER = Path(__file__).parents[2] / "notebooks"
_NOTEBOOKS = sorted(path.stem for path in _FOLDER.glob("*.py"))


def _cells(notebook: NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def _read(stem: str) -> NotebookNode:
    return nbformat.read(_FOLDER / f"{stem}.ipynb", as_version=4)


def test_every_notebook_is_there_in_both_formats() -> None:
    """No notebook lacks its script, and no script its notebook."""
    assert _NOTEBOOKS
    assert sorted(path.stem for path in _FOLDER.glob("*.ipynb")) == _NOTEBOOKS


@pytest.mark.parametrize("stem", _NOTEBOOKS)
def test_the_two_formats_say_the_same(stem: str) -> None:
    """The .ipynb is what `jupytext --to ipynb` makes of the .py."""
    assert _cells(_read(stem)) == _cells(jupytext.read(_FOLDER / f"{stem}.py"))


@pytest.mark.parametrize("stem", _NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs(stem: str) -> None:
    """Outputs, and with them somebody's paths and times, stay out of the repository."""
    code = [cell for cell in _read(stem).cells if cell.cell_type == "code"]
    assert code
    assert [cell.outputs for cell in code] == [[]] * len(code)
    assert {cell.execution_count for cell in code} == {None}


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize(
    "stem",
    [_NOTEBOOKS[0], *(pytest.param(stem, marks=pytest.mark.slow) for stem in _NOTEBOOKS[1:])],
)
def test_a_notebook_runs_from_top_to_bottom(stem: str, tmp_path: Path) -> None:
    """Every cell ends without an error, and the pictures are drawn."""
    _run(_read(stem), tmp_path)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.broker
def test_a_notebook_runs_on_a_topic_of_the_user(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path
) -> None:
    """With two values changed, and none of the sample's records."""
    name = topic(2)
    produce(name, [(b"k%d" % (n % 9), b'{"cents": %d}' % n) for n in range(400)])
    notebook = _read("02_your_topic")
    changes = {
        "servers = None ": f"servers = {kafka.bootstrap_servers!r} ",
        'topic = "orders"': f"topic = {name!r}",
    }
    for shown, own in changes.items():
        cells = [cell for cell in notebook.cells if shown in cell.source]
        assert len(cells) == 1
        cells[0].source = cells[0].source.replace(shown, own)
    _run(notebook, tmp_path)
    said = "".join(
        output.get("text", "") + str(output.get("data", ""))
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert name in said
    assert "customer-" not in said


def _run(notebook: NotebookNode, folder: Path) -> None:
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=600, startup_timeout=120, kernel_name="python3", resources=where
    )
    client.execute()
    shown = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code" and "offset_map(" in cell.source and "import" not in cell.source
        for output in cell.outputs
    ]
    said = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "KeyboardInterrupt" not in said  # A process that is stopped in order ends quietly.
    draws = any("offset_map" in cell.source for cell in notebook.cells)
    assert bool(shown) == draws
    assert all("image/png" in output.data for output in shown)
