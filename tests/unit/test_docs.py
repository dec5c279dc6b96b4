"""README, CONTRIBUTING and the pages below docs/ say what the code does."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

import coopconsume
import coopconsume.fenced
from commits.rows import KINDS, SCHEMA
from coopconsume.admin.offsets.tables import blocker_table, lag_table
from coopconsume.admin.overview import GroupOverview
from coopconsume.admin.overview.tables import GroupTables
from coopconsume.admin.views import SCHEMAS
from coopconsume.cli import main
from tests.pages import blocks_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts),
    )
}
EACH_PAGE = pytest.mark.parametrize("name", PAGES)


def _blocks(language: str) -> list[object]:
    return [
        pytest.param(block, id=f"{name}-{number}")
        for name, text in PAGES.items()
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))
    ]


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _named(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", _without_code(text)))


def test_the_life_of_a_record_names_what_is_in_the_code() -> None:
    """Files, classes, methods and functions of the page."""
    page = (DOCS / "explanation" / "life-of-a-record.md").read_text()
    named = _named(page)
    files = {name for name in named if name.endswith((".py", "/"))}
    assert len(files) > 20
    for name in files:
        assert (ROOT / name).exists() or (ROOT / "coopconsume" / name).exists(), name
    packages = [ROOT / name for name in ("assignors", "commits", "coopconsume")]
    sources = "\n".join(one.read_text() for of in packages for one in of.rglob("*.py"))
    defined = {*re.findall(r"(?:class|def) (\w+)", sources)}
    defined |= {*re.findall(r"\b(\w+)(?:: \w| = )", sources)}
    objects = {name for name in named - files if re.fullmatch(r"[A-Za-z_.]+", name)}
    for name in objects - {"mapInArrow", "commitInterval", "match"}:
        owner, _, attribute = name.rpartition(".")
        assert attribute in defined, name
        assert not owner or f"class {owner}" in sources, name
    for name, file in re.findall(r"`([A-Za-z_.]+)` \(`([\w/]+\.py)`\)", page):
        path = ROOT / file if (ROOT / file).exists() else ROOT / "coopconsume" / file
        owner, _, attribute = name.rpartition(".")
        assert re.search(rf"(class|def) {attribute}\b", path.read_text()), (name, file)
        assert not owner or f"class {owner}" in path.read_text(), (name, file)


@pytest.mark.parametrize(
    ("what", "file", "count"),
    [("record", "plan/partition.py", 10), ("slot", "dispatch/slot_task.py", 9)],
)
def test_the_states_are_those_of_the_code(what: str, file: str, count: int) -> None:
    """The page and the docstring of the module have the same states, in the same order."""
    page = (DOCS / "explanation" / "life-of-a-record.md").read_text()
    section = page.partition(f"## The states of a {what}\n")[2].partition("\n## ")[0]
    source = (ROOT / "coopconsume" / "runtime" / file).read_text()
    states = [re.findall(r"^\| ([a-z ]+) \|", text, re.MULTILINE) for text in (section, source)]
    assert len(states[0]) == count
    assert states[0] == states[1]


@pytest.mark.parametrize(("title", "most"), [("A batch", 15), ("A commit", 11)])
def test_a_batch_and_a_commit_pass_few_files(title: str, most: int) -> None:
    """The files that make the next call or keep what becomes of the records, as the page says."""
    page = (DOCS / "explanation" / "life-of-a-record.md").read_text()
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    files = set(re.findall(r"`([\w/]+\.py)`", section))
    assert 5 < len(files) <= most, files


def test_the_states_of_a_record_in_its_slot_are_those_of_the_code() -> None:
    """Likewise, each with what it is entered by."""
    page = (DOCS / "explanation" / "life-of-a-record.md").read_text()
    section = page.partition("## The states of a record in its slot\n")[2].partition("\n## ")[0]
    source = (ROOT / "coopconsume" / "worker" / "reporter.py").read_text()
    row = re.compile(r"^\| ([a-z ]+) \| [^|]+ \| ([^|]+) \|(?: ([^|]+))? \|$", re.MULTILINE)
    states = [row.findall(text) for text in (section, source)]
    assert len(states[0]) == 10
    assert states[0] == states[1]


def test_all_fields_of_progress_stand_on_a_page() -> None:
    """Those of an event, and those of a partition."""
    source = (ROOT / "coopconsume" / "runtime" / "status" / "progress.py").read_text()
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "Progress":
                names |= {word.arg for word in node.keywords if word.arg}
        elif isinstance(node, ast.FunctionDef) and node.name == "describe":
            keys = [key for one in ast.walk(node) if isinstance(one, ast.Dict) for key in one.keys]
            names |= {key.value for key in keys if isinstance(key, ast.Constant)}
    assert {"numInputRows", "stableOffset", "isCrowded"} <= names
    page = PAGES["docs/how-to/monitor-a-job.md"]
    assert {name for name in names if f"`{name}`" not in page} <= {"ageSeconds"}


def test_the_generated_parts_are_those_of_the_code() -> None:
    """Tables, commands and the API: ``python docs/generate.py`` writes them."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for page, _ in generate.BLOCKS.values():
        text = (DOCS / page).read_text("utf-8")
        assert text == generate.updated(page, text), f"run python docs/generate.py for docs/{page}"


def test_the_readme_is_one_page() -> None:
    """At most 120 lines."""
    assert len(PAGES["README.md"].splitlines()) <= 120


def test_the_job_of_the_readme_is_tested_on_a_page() -> None:
    """In at most 25 lines, its command included; the page is run, and has its program."""
    readme = PAGES["README.md"].partition("## A job that calls a service")[2]
    program, command = re.findall(r"```(?:python|sh)\n(.*?)```", readme, re.DOTALL)[:2]
    lines = [line for line in f"{program}{command}".splitlines() if line.strip()]
    assert len(lines) <= 25
    assert command.startswith("coopconsume run billing:Billing --value billing:Order ")
    page = PAGES["docs/how-to/test-a-handler.md"]
    assert f"Save this as `billing.py`:\n\n```python\n{program}```" in page


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    """Each figure of the README's table stands on the page of benchmarks."""
    section = PAGES["README.md"].partition("## Figures")[2].partition("\n## ")[0]
    figures = re.findall(r"\| (\d[\d.,]*) (\S+) \|", section)
    assert len(figures) >= 8
    for number, unit in figures:
        shown = rf"\| {re.escape(number)} \| [^|]* \| {re.escape(unit)} \|"
        assert re.search(shown, PAGES["docs/benchmarks.md"]), (number, unit)


def test_all_public_names_are_on_the_api_pages() -> None:
    """Each name of `coopconsume` and `coopconsume.fenced` is documented."""
    pages = [page for name, page in PAGES.items() if "/reference/api/" in name]
    documented = set(re.findall(r"^## (\w+)$", "\n".join(pages), re.MULTILINE))
    public = {*coopconsume.__all__, *coopconsume.fenced.__all__}
    assert public - documented == {"TopicPartition", "UNCHECKED"}


@pytest.mark.parametrize("program", _blocks("python"))
def test_programs_compile_and_import_what_exists(program: str) -> None:
    """A program is Python, and the names that it imports exist."""
    imports = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.ImportFrom)]
    assert imports
    saved = set(re.findall(r"Save this as `(\w+)\.py`", "".join(PAGES.values())))
    for node in imports:
        if node.module in saved:
            continue
        module = importlib.import_module(node.module or "")
        for name in node.names:
            assert hasattr(module, name.name), f"{node.module} has no {name.name}"


#: What of a program needs a package that `pip install '.[spark]'` does not install, and its extra.
_EXTRAS = {
    r"\baiohttp\b": "aiohttp",
    r"\bopentelemetry\b": "[otel]",
    r"\bprometheus_client\b|PrometheusListener": "[prometheus]",
    r"\bvalue=[A-Z]\w*[,)]|--value \w+:": "[msgspec]",
    r'SchemaRegistryDecoder\("avro"': "[avro]",
    r"--picture\b|\boffset_map\(": "[notebook]",
}


@EACH_PAGE
def test_what_a_program_needs_is_installed_above_it(name: str) -> None:
    """A reader has only what the pages have installed; the tests have all packages."""
    if "/reference/" in name:
        return
    for block in re.finditer(
        r"^```(?:python|sh)\n(.*?)^```", PAGES[name], re.DOTALL | re.MULTILINE
    ):
        installed = "".join(re.findall(r"pip install ([^`\n]+)", PAGES[name][: block.start()]))
        for use, extra in _EXTRAS.items():
            if re.search(use, block[1]):
                assert extra in installed, f"{extra} is not installed before:\n{block[1]}"


def test_pages_can_be_tried_in_one_folder() -> None:
    """Pages share the commit table and dead letters: each has groups and tables of its own."""
    owners: dict[str, set[str]] = {}
    for page in PAGES:
        for block in blocks_of(ROOT / page):
            found = re.findall(r'kafka\.group\.id(?:=|": ")([\w-]+)|(\./[\w-]+)', block.text)
            for name in ("".join(one) for one in found if not block.is_marked):
                owners.setdefault(name, set()).add(page)
    shared = {name for name, pages in owners.items() if len(pages) > 1}
    assert shared == {"./commits", "./dead"}


@pytest.mark.parametrize("commands", _blocks("sh"))
def test_commands_are_those_of_a_shell(commands: str) -> None:
    """A block of commands has no quote, bracket or continuation left open."""
    checked = subprocess.run(
        ["bash", "-n"], input=commands, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@EACH_PAGE
def test_commit_tables_of_examples_are_paths_or_whole_names(name: str) -> None:
    """A bare word is a table of Spark's catalog, which a command without Spark does not find."""
    places = re.findall(r"(?:commitTable\"?[=:] ?|--commit-table )\"?([\w./$]+)", PAGES[name])
    assert [place for place in places if re.fullmatch(r"[a-z]\w*", place)] == []


def _commands() -> list[str]:
    found = []
    for name, text in PAGES.items():
        lines = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
        for line in (*lines.splitlines(), *sorted(_named(text))):
            if line.startswith("coopconsume "):
                found.append(pytest.param(line, id=f"{name}-{len(found)}"))
    return found


@pytest.mark.parametrize("line", _commands())
def test_commands_of_coopconsume_exist_with_their_options(line: str) -> None:
    """Each command on a page is one of the command line, and has the options that it is given."""
    words = shlex.split(line.replace('"${place[@]}"', ""), comments=True)[1:]
    command: click.Command = main
    while isinstance(command, click.Group) and words:
        assert words[0] in command.commands, words[0]
        command = command.commands[words.pop(0)]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= known


def test_all_columns_and_kinds_of_the_commit_table_are_named() -> None:
    """The page of the commit table leaves out no column and no kind of row."""
    named = _named(PAGES["docs/reference/commit-table.md"])
    assert named >= set(SCHEMA.names)
    assert named >= KINDS


def test_the_sample_of_a_group_has_the_columns_of_the_command() -> None:
    """The sample of `groups describe` has the columns that the command prints."""
    lines = PAGES["docs/how-to/inspect-a-group.md"].splitlines()
    now = datetime.now(UTC)
    empty = GroupOverview("shop", "Stable", "", "", "", "", None, None, (), (), (), (), ())
    of_group = GroupTables(empty, now)
    for table in (
        of_group.members(),
        of_group.partitions(),
        blocker_table((), now),
        of_group.events(1),
    ):
        assert " ".join(table.titles).upper().split() in [line.split() for line in lines]


def test_columns_of_lag_and_of_the_views_are_named() -> None:
    """Each column that operators and SQL users see is explained by its name."""
    columns = {title.upper() for title in lag_table((), datetime.now(UTC)).titles}
    assert _named(PAGES["docs/how-to/manage-offsets.md"]) >= columns - {"PARTITION"}
    named = _named(PAGES["docs/reference/sql-views.md"])
    for schema in SCHEMAS.values():
        assert named >= set(schema.names)
    blocker = SCHEMAS["partitions"].field("blocker").type
    assert named >= {field.name for field in blocker}


@EACH_PAGE
def test_no_path_of_a_private_machine(name: str) -> None:
    """No page names a home folder, not even after a benchmark was pasted into it."""
    assert not re.search(r"/(home|root|Users|tmp|work)/", PAGES[name])


@EACH_PAGE
def test_links_lead_to_pages_and_headings(name: str) -> None:
    """Each relative link names a file and, behind ``#``, one heading by the anchor of GitHub."""
    for link in re.findall(r"\]\(([^)\s]*)\)", _without_code(PAGES[name])):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.is_file(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", _without_code(target.read_text()), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchors.count(anchor) == 1, link


def test_every_page_can_be_reached() -> None:
    """The README or another page links to each page."""
    linked = {
        ((ROOT / name).parent / link.partition("#")[0]).resolve()
        for name, text in PAGES.items()
        for link in re.findall(r"\]\(([^)\s]*\.md[^)\s]*)\)", _without_code(text))
        if not re.match(r"https?://", link)
    }
    missing = {name for name in PAGES if (ROOT / name).resolve() not in linked}
    assert missing == {"README.md", "docs/index.md"}


@EACH_PAGE
def test_tables_are_whole(name: str) -> None:
    """All rows of a table have as many cells as its head; an empty line or marker precedes it."""
    rows = re.compile(r"(?:(?<=\n\n)|(?<=-->\n))(?:\|.*\|\n)+")
    text = _without_code(PAGES[name])
    tables = rows.findall(text)
    assert sum(len(table.splitlines()) for table in tables) == len(re.findall(r"\n\|", text))
    for table in tables:
        head, *others = (len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines())
        assert others
        assert set(others) == {head}, table
