"""Which blocks of the pages are not run, and what is checked of them instead."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from coopconsume.spark_versions import minor_of
from coopconsume.testing import LocalKafka
from tests.pages import (
    PAGES,
    ROOT,
    SET_APART,
    WHOLE,
    Block,
    Reader,
    SetApart,
    blocks_of,
    page_before,
)

if TYPE_CHECKING:
    from pathlib import Path

_BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def _is_of(block: Block, one: SetApart) -> bool:
    return block.page == one.page and block.text.startswith(one.begins)


def test_blocks_that_are_not_run_are_listed() -> None:
    """Each marked block is listed once, and each listed block is there and is marked."""
    for block in _BLOCKS:
        listed = [one for one in SET_APART if _is_of(block, one)]
        assert len(listed) == block.is_marked, f"{block.page}:{block.line}"
    for one in SET_APART:
        found = [block for block in _BLOCKS if _is_of(block, one)]
        assert found if one.begins == WHOLE else len(found) == 1, one


@pytest.mark.parametrize("one", [one for one in SET_APART if one.test is not None])
def test_the_tests_that_run_them_exist(one: SetApart) -> None:
    """Each by its file and its name."""
    file, _, name = (one.test or "").partition("::")
    assert f"def {name}(" in (ROOT / file).read_text("utf-8")


def test_pages_are_run_after_pages_that_run() -> None:
    """A page that is run first has programs of its own, and is not listed as a whole."""
    before = {page_before(page) for page in PAGES} - {None}
    assert {page.name for page in before if page} == {"first-job.md", "run-a-job.md"}


def test_make_has_the_targets_of_the_pages() -> None:
    """All `make` commands of blocks and of texts."""
    texts = "\n".join(page.read_text("utf-8") for page in PAGES)
    targets = set(re.findall(r"(?:`|^)make ([a-z-]+)", texts, re.MULTILINE))
    assert {"demo", "setup", "test-all"} <= targets
    done = subprocess.run(
        ["make", "-n", *sorted(targets)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_commands_of_contributing_name_tests_that_exist() -> None:
    """The files after `pytest`, and the names after `-k`."""
    (commands,) = (b.text for b in _BLOCKS if b.text.startswith("make test-all ARGS"))
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    files, names = re.findall(r"tests/\S+\.py", commands), re.findall(r"-k (\w+)", commands)
    assert (len(files), len(names)) == (3, 2)
    assert all((ROOT / file).is_file() for file in files)
    assert all(re.search(rf"def test_\w*{name.removeprefix('test_')}", sources) for name in names)


def test_the_connector_of_the_cluster_page_is_that_of_the_installed_spark() -> None:
    """Pages that install a Spark and pages that submit to one name the same minor version."""
    texts = "\n".join(page.read_text("utf-8") for page in PAGES)
    (minor,) = set(re.findall(r"pyspark~=(\d+\.\d+)\.0", texts))
    connectors = set(re.findall(r"--packages \S+:(\d+\.\d+\.\d+)$", texts, re.MULTILINE))
    assert connectors == {minor_of(minor).connector}


def block(language: str, text: str, prints: str | None = None) -> Block:
    """A block that is run."""
    return Block("a page", 1, language, text, None, is_marked=False, prints=prints)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """A reader whose broker does not run."""
    return Reader(LocalKafka(port=9), tmp_path, tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        block("python", "print(1)", "2\n"),
        block("python", "assert False"),
        block("sh", "coopconsume lag"),
        block("sh", "ls"),
        block("sh", "echo $undefined"),
        block("sh", "pip install '.[no-such-extra]'"),
        block("sh", "pip install 'click<1'"),
    ],
    ids=lambda wrong: wrong.text,
)
def test_a_block_that_does_not_do_what_the_page_says_fails(reader: Reader, wrong: Block) -> None:
    """Other output, an error, a command that fails or is not known, and other versions."""
    with pytest.raises(AssertionError):
        reader.run_block(wrong)


def test_blocks_share_names_and_variables(reader: Reader, tmp_path: Path) -> None:
    """As in one Python and one shell; the address is that of the broker; files are saved."""
    reader.run_block(block("python", "address = 'localhost:9092'"))
    assert reader.run_block(block("python", "print(address)", "127.0.0.1:9\n"))
    list(reader.commands(block("sh", "place=(-o 'a b')")))
    (words,) = reader.commands(block("sh", 'coopconsume lag "${place[@]}"  # all'))
    assert words == ["coopconsume", "lag", "-o", "a b"]
    reader.run_block(replace(block("python", "x = 1\n"), file="shop.py"))
    assert (tmp_path / "shop.py").read_text() == "x = 1\n"
