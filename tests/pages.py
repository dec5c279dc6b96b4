"""Reads and runs the programs and commands of a page of the documentation, as a reader does.

A page that says ``Run first: [title](page.md)`` goes on from what that page has done. A block goes
into a file if the paragraph before it says ``Save this as `name```. What a block prints is compared
if ``It prints:`` and a block of text follow.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import click
from click.testing import CliRunner
from packaging.requirements import Requirement

from coopconsume.cli import main
from coopconsume.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.testing.local.broker import LocalKafka

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
#: The address of the broker on all pages.
SERVERS: Final = "localhost:9092"
WHOLE: Final = ""
_LANGUAGES = ("python", "sh")
_MARK = "<!-- not run -->"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: Prints the words of each command in place of its call; no other program is found.
_SHELL = r"""
set -euo pipefail
PATH=/nowhere
for name in coopconsume pip pytest python; do
    eval "$name() { printf '\x1e'; printf '%s\x1f' $name \"\$@\"; }"
done
"""


@dataclass(frozen=True)
class SetApart:
    """A block that the run of its page leaves out; its page marks it.

    Attributes:
        page: The page, from the root of the repository.
        begins: The first words of the block; `WHOLE` stands for all blocks of the page.
        why: What it needs.
        test: The test that runs it in another way; None: it is only parsed.
    """

    page: str
    begins: str
    why: str
    test: str | None = None


#: All blocks that the runs of pages leave out.
SET_APART: Final = (
    SetApart(
        "README.md", "from coopconsume.testing", "starts a broker of its own",
        "tests/spark/test_wheel.py::test_the_first_program_of_the_readme_prints_what_it_says",
    ),
    SetApart(
        "README.md", "coopconsume run", "needs a service; the page on tests has one",
        "tests/unit/test_docs.py::test_the_job_of_the_readme_is_tested_on_a_page",
    ),
    SetApart(
        "docs/how-to/run-a-job.md", "from contextlib", "runs until Ctrl-C",
        "tests/spark/test_cli_run.py::"
        "test_a_signal_ends_the_program_of_a_page_without_a_traceback",
    ),
    SetApart("CONTRIBUTING.md", "make setup", "runs all tests"),
    SetApart("CONTRIBUTING.md", "make test-all", "runs tests"),
    SetApart(
        "docs/how-to/deploy-on-a-cluster.md", "python -m zipfile", "needs a Spark cluster",
        "tests/spark/test_standalone_cluster.py::"
        "test_a_killed_executor_costs_what_was_in_flight",
    ),
    SetApart(
        "docs/how-to/deploy-on-a-cluster.md", "spark-submit --master yarn", "needs YARN",
        "tests/spark/test_yarn.py::test_an_executor_and_then_the_driver_are_killed",
    ),
    SetApart("docs/how-to/deploy-on-a-cluster.md", "spark-submit --master k8s", "needs Kubernetes"),
    SetApart("docs/how-to/deploy-on-a-cluster.md", "pip wheel", "needs an account of Databricks"),
    SetApart(
        "docs/how-to/deploy-in-containers.md", WHOLE, "needs Docker and Kubernetes",
        "tests/spark/test_container.py::test_an_executor_does_a_drivers_work",
    ),
    SetApart(
        "docs/how-to/failed-records.md", "place=(", "needs records that fail for ever",
        "tests/spark/test_decisions.py::"
        "test_failed_records_are_decided_on_while_the_job_runs",
    ),
    SetApart(
        "docs/how-to/work-queue.md", "from coopconsume import QueueConsumer\nfrom",
        "needs three clusters",
    ),
    SetApart(
        "docs/fenced-log/key-value-store.md", WHOLE, "talks to processes that it kills",
        "tests/broker/test_key_value_store.py::"
        "test_the_sessions_of_the_page_are_answered_as_it_says",
    ),
    SetApart(
        "docs/tutorials/kill-it.md", WHOLE, "kills a job of its own",
        "tests/spark/test_pages.py::test_a_job_is_killed_and_looked_at_as_the_tutorial_does",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A block of code of a page.

    Attributes:
        page: The page, from the root of the repository.
        line: The line of its fence.
        language: As after the fence.
        text: What it contains.
        file: The file that a reader saves it as; None: it is run.
        is_marked: Whether the page marks it as not run.
        prints: What the page says that it prints; None: nothing is said.
    """

    page: str
    line: int
    language: str
    text: str
    file: str | None
    is_marked: bool
    prints: str | None

    @property
    def is_program(self) -> bool:
        """Whether it is a program, commands or a file of theirs, not a sample."""
        return self.language in _LANGUAGES or self.file is not None


def blocks_of(page: Path) -> list[Block]:
    """Returns the programs and commands of a page, in order."""
    text, name = page.read_text("utf-8"), str(page.relative_to(ROOT))
    whole = {one.page for one in SET_APART if one.begins == WHOLE}
    fences = list(_FENCE.finditer(text))
    found = []
    for number, fence in enumerate(fences):
        before = text[: fence.start()].rstrip()
        paragraph = before.rpartition("\n\n")[2]
        file = re.search(r"Save this as `([\w.]+)`", paragraph)
        output = None
        if number + 1 < len(fences) and fences[number + 1][1] == "text":
            between = text[fence.end() : fences[number + 1].start()].strip()
            output = fences[number + 1][2] if between.endswith("It prints:") else None
        block = Block(
            name, text.count("\n", 0, fence.start()) + 1, fence[1], fence[2],
            file[1] if file else None, before.endswith(_MARK) or name in whole, output,
        )  # fmt: skip
        if block.is_program:
            found.append(block)
    return found


def block(page: str, begins: str) -> str:
    """Returns the text of the block of a page that begins with these words."""
    (found,) = (one.text for one in blocks_of(ROOT / page) if one.text.startswith(begins))
    return found


def page_before(page: Path) -> Path | None:
    """Returns the page that a page asks to run first, if there is one."""
    found = re.findall(
        r"^Run first: \[[^]]+\]\(([\w./-]+\.md)\)", page.read_text("utf-8"), re.MULTILINE
    )
    assert len(found) <= 1, f"{page} names several pages to run first"
    return (page.parent / found[0]).resolve() if found else None


class Reader:
    """Runs pages in a folder, as one reader in one Python and one shell.

    Args:
        kafka: The broker that takes the place of the one that pages start.
        folder: The current folder, which programs and commands write to.
        modules: The folder in which Spark's workers look for modules.
    """

    def __init__(self, kafka: LocalKafka, folder: Path, modules: Path) -> None:
        self._kafka = kafka
        self._folder = folder
        self._modules = modules
        self._shell = ""
        # Functions of a program that is run by itself are those of `__main__`.
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, page: Path) -> None:
        """Runs the blocks of a page from top to bottom.

        Raises:
            AssertionError: A command failed, or a block printed something else than the page says.
            Exception: What a program raises.
        """
        self._shell, self.names = "", {"__name__": "__main__"}
        try:
            for block in blocks_of(page):
                if not block.is_marked:
                    self.run_block(block)
        finally:
            for value in self.names.values():
                if isinstance(value, Closing):
                    value.close()

    def run_block(self, block: Block) -> str:
        """Runs a block, or saves it as a file; returns what it prints.

        Raises:
            AssertionError: As for `run`.
        """
        text = block.text.replace(SERVERS, self._kafka.bootstrap_servers)
        if block.file is not None:
            for folder in (self._folder, self._modules):
                (folder / block.file).write_text(text, "utf-8")
            return ""
        if block.language == "python":
            printed = self._run_program(text, f"{block.page}:{block.line}")
        else:
            printed = "".join(self._run_command(words) for words in self.commands(block))
        if block.prints is not None:
            assert printed == block.prints, f"{block.page}:{block.line} printed:\n{printed}"
        return printed

    def _run_program(self, text: str, place: str) -> str:
        printed = io.StringIO()
        # A program that waits for its end is ended by Ctrl-C.
        with contextlib.redirect_stdout(printed), contextlib.suppress(KeyboardInterrupt):
            exec(compile(text, place, "exec"), self.names)
        return printed.getvalue()

    def commands(self, block: Block) -> Iterator[list[str]]:
        """Yields the words of each command; variables keep their values from block to block."""
        text = block.text.replace(SERVERS, self._kafka.bootstrap_servers)
        script = f"{_SHELL}\n{{ :\n{self._shell}\n}} >/dev/null\n{text}"
        self._shell += f"\n{text}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self._folder, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), text
        for call in done.stdout.split("\x1e")[1:]:
            yield call.split("\x1f")[:-1]

    def _run_command(self, words: list[str]) -> str:
        program, *arguments = words
        if program == "pip":
            _check_installed(arguments)
            return ""
        if program == "python":
            command = [sys.executable, *arguments]
            return subprocess.run(
                command, cwd=self._folder, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
        if program == "pytest":
            self._run_tests(arguments[0])
            return ""
        if arguments[0] == "broker":
            self._create_topics(arguments[1:])
            return ""
        if arguments[0] in ("ui", "exporter"):
            arguments += ["--port", "0"]
        # A command that runs until Ctrl-C gets it as soon as it waits.
        waits = SimpleNamespace(sleep=_press_ctrl_c)
        with patch("coopconsume.cli.serving.time", waits):
            shown = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert shown.exit_code == 0, f"{words}: {shown.output}"
        return shown.stdout

    def _run_tests(self, file: str) -> None:
        """Runs the tests of a file on the broker that runs already, in place of its fixture."""
        names: dict[str, Any] = {"__name__": "__main__"}
        # As pytest does, so that a test can import a file of its page.
        with patch.object(sys, "path", [str(self._folder), *sys.path]):
            exec(compile((self._folder / file).read_text("utf-8"), file, "exec"), names)
        tests = [test for name, test in names.items() if name.startswith("test_")]
        assert tests, file
        for test in tests:
            test(self._kafka)

    def _create_topics(self, arguments: list[str]) -> None:
        """Creates the topics of ``coopconsume broker`` on the broker that runs already."""
        # Of the program: a command keeps the names that its help had first.
        program = click.Context(main, info_name="coopconsume", **main.context_settings)
        context = main.commands["broker"].make_context("broker", arguments, program)
        from kafka.errors import TopicAlreadyExistsError

        for name, partitions in context.params["topics"].items():
            with contextlib.suppress(TopicAlreadyExistsError):
                self._kafka.create_topic(name, partitions)


def _press_ctrl_c(_: float) -> None:
    raise KeyboardInterrupt


def _check_installed(arguments: list[str]) -> None:
    """Compares the packages of ``pip install`` with what is installed: a test installs nothing."""
    assert arguments[0] == "install", arguments
    for text in arguments[1:]:
        # The working copy, with extras.
        wanted = Requirement(re.sub(r"^\.(?=\[|$)", "coopconsume", text))
        found = importlib.metadata.metadata(wanted.name)
        assert wanted.extras <= set(found.get_all("Provides-Extra") or ()), text
        assert wanted.specifier.contains(found["Version"]), (text, found["Version"])
