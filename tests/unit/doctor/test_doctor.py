"""What workers have found, judged; and the result of a diagnosis."""

from __future__ import annotations

import errno
import shutil
import socket
import sys
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.doctor import workers
from coopconsume.doctor.diagnosis import Check, Diagnosis
from coopconsume.worker import look
from coopconsume.worker.look import Look, digest, missing_packages, outside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.doctor.diagnosis import Outcome

PACKAGE = "packaged_for_a_digest"
MIB = 2**20


def checks(*outcomes: Outcome) -> Diagnosis:
    """A diagnosis whose checks are named after their numbers."""
    return Diagnosis(tuple(Check(f"c{i}", one, "x") for i, one in enumerate(outcomes)))


@pytest.mark.parametrize(
    ("found", "is_ok", "headline"),
    [
        (checks("ok", "ok"), True, "2 checks passed."),
        (checks("ok", "untried"), True, "1 check passed. 1 check could not be tried."),
        (checks("ok", "warning", "warning"), True, "Works, with a limit: c1, c2."),
        (checks("warning", "failed", "ok"), False, "Does not work: c1."),
    ],
)
def test_the_first_line_says_what_does_not_work(
    found: Diagnosis, *, is_ok: bool, headline: str
) -> None:
    """As text, as HTML and as JSON."""
    assert found.is_ok is is_ok
    assert repr(found).splitlines()[0] == headline
    assert headline in found._repr_html_()
    assert found.to_dict()["isOk"] is is_ok
    assert [one["name"] for one in found.to_dict()["checks"]] == [c.name for c in found.checks]


def test_a_remedy_is_shown_beside_what_was_found() -> None:
    """And a dash where nothing is to be done."""
    shown = repr(Diagnosis((Check("a", "failed", "<found>", "do this"), Check("b", "ok", "fine"))))
    first, second = shown.splitlines()[2:]
    assert first.split() == ["a", "failed", "<found>", "do", "this"]
    assert second.split() == ["b", "ok", "fine", "-"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package of two modules, on the path of modules."""
    folder = tmp_path / "here" / PACKAGE
    (folder / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/one.py"):
        (folder / name).write_text(f"# {name}\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    for name in [one for one in sys.modules if one.startswith(PACKAGE)]:
        del sys.modules[name]


def test_sources_are_the_same_in_a_folder_and_in_an_archive(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As workers have them from ``--py-files``; what is no source does not count."""
    before = digest([PACKAGE])
    (package / "inner" / "one.cpython-311.pyc").write_bytes(b"compiled")
    assert digest([PACKAGE]) == before
    archive = tmp_path / "sources.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(package.rglob("*.py")):
            file.write(path, path.relative_to(package.parent))
    (package / "inner" / "one.py").write_text("# changed\n")
    assert digest([PACKAGE]) != before
    shutil.rmtree(package)
    del sys.modules[PACKAGE]
    monkeypatch.syspath_prepend(str(archive))
    assert digest([PACKAGE]) == before


def test_sources_are_looked_at_also_where_other_packages_are_missing() -> None:
    """As on workers that have no more than batches need."""
    found = Look(("coopconsume", "no_such_package_here"), ("coopconsume",), None, (), 60).found()
    assert found["missing"].keys() == {"no_such_package_here"}
    assert found["sources"] == digest(["coopconsume"])
    assert (
        Look(("coopconsume", "none_of_it"), ("none_of_it",), None, (), 60).found()["sources"] == ""
    )


def test_packages_that_cannot_be_imported_are_named_with_the_reason(package: Path) -> None:
    """Also those that raise something else than ImportError."""
    (package / "broken.py").write_text("raise RuntimeError('no licence')\n")
    found = missing_packages(["json", "no_such_package_here", f"{PACKAGE}.broken"])
    assert sorted(found) == ["no_such_package_here", f"{PACKAGE}.broken"]
    assert found["no_such_package_here"].startswith("ModuleNotFoundError: No module named")
    assert found[f"{PACKAGE}.broken"] == "RuntimeError: no licence"


@pytest.mark.parametrize(
    ("there", "ahead"), [(100.0, 0.0), (103.0, 0.0), (97.5, 2.5), (107.5, -3.5), (104.0, 0.0)]
)
def test_a_clock_is_ahead_by_what_its_own_time_cannot_explain(there: float, ahead: float) -> None:
    """However long the answer was under way."""
    assert outside(there, 100.0, 104.0) == ahead


def reach(token: bytes, answer: bytes | None) -> dict[str, Any]:
    """What a look finds at a port where somebody answers a line."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                if answer is not None:
                    sock.makefile("rb").readline()
                    sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        found = Look((), (), ("127.0.0.1", port, token), (), 60).found()
        thread.join()
    return found["driver"]  # type: ignore[no-any-return]


def test_the_driver_is_reached_if_it_answers_with_its_time() -> None:
    """Another process that listens at its port is not the driver."""
    found = reach(b"secret", b"1000.5\n")
    assert found["why"] == ""
    assert found["ahead"] > 1e9
    assert reach(b"secret", b"HTTP/1.1 400\n") == {
        "why": "something else listens there", "ahead": None
    }  # fmt: skip
    assert reach(b"secret", None)["why"]
    assert reach(b"", None) == {"why": "", "ahead": None}


def test_nobody_at_a_port_is_said() -> None:
    """Of the driver and of brokers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for token in (b"", b"secret"):
            found = Look((), (), ("127.0.0.1", port, token), [("127.0.0.1", port)], 60).found()
            assert "refused" in found["driver"]["why"]
            assert "refused" in found["brokers"][f"127.0.0.1:{port}"]


def test_a_port_answers_only_who_knows_its_token() -> None:
    """And ends with its block, also if somebody is connected and says nothing."""
    with workers._port(("127.0.0.1", "127.0.0.1"), 0) as port:
        assert port.address is not None
        host, number, token = port.address
        assert Look((), (), port.address, (), 60).found()["driver"] == {"why": "", "ahead": 0.0}
        wrong = Look((), (), (host, number, token[:-1] + b"!"), (), 60).found()
        assert wrong["driver"]["why"] == "something else listens there"
        with workers._port(("127.0.0.1", "127.0.0.1"), number) as other:
            assert other.address is None
            assert f"cannot listen on 127.0.0.1:{number}" in other.error
    with workers._port(None, 0) as none:
        assert none == workers._Port(None)


def worker(**more: Any) -> dict[str, Any]:
    """What a worker finds where everything works."""
    return {
        "host": "w1", "pid": 1, "python": ".".join(map(str, sys.version_info[:3])), "missing": {},
        "sources": digest(workers._SOURCES), "driver": {"why": "", "ahead": 0.0},
        "brokers": {"b:9092": ""}, "memory": 100 * MIB, "free": 1_000 * MIB, **more,
    }  # fmt: skip


class Session:
    """The settings of a session."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.conf = settings


def judged(*found: dict[str, Any]) -> list[Check]:
    """The judgements on some workers."""
    port = workers._Port(("driver", 7, b"t"))
    spark: Any = Session({})
    return [
        workers._python(found), workers._packages(found), workers._real_time(found),
        workers._channel(port, found), workers._clocks(found), workers._memory(spark, found),
        workers._brokers(found),
    ]  # fmt: skip


def test_workers_that_have_everything_are_ok() -> None:
    """Several on one host, and on several."""
    assert {one.outcome for one in judged(worker(), worker(host="w2"))} == {"ok"}


@pytest.mark.parametrize(
    ("more", "name", "outcome", "said"),
    [
        ({"python": "3.8.1"}, "Python of the workers", "failed", "3.8.1"),
        (
            {"missing": {"commits": "ModuleNotFoundError: x"}, "sources": ""},
            "coopconsume on the workers", "failed", "w2: commits: ModuleNotFoundError",
        ),
        ({"sources": "0"}, "coopconsume on the workers", "failed", "its sources on w2"),
        ({"missing": {"xxhash": "y"}}, "packages for real time", "warning", "w2: xxhash: y"),
        (
            {"driver": {"why": "timed out", "ahead": None}},
            "channel to the driver", "warning", "w2 cannot reach driver:7: timed out",
        ),
        ({"driver": {"why": "", "ahead": -3.25}}, "clocks", "warning", "3.2 s behind the driver"),
        ({"driver": {"why": "", "ahead": 1.5}}, "clocks", "warning", "1.5 s ahead of the driver"),
        ({"free": 99 * MIB}, "memory of the workers", "warning", "99 MiB free on w2"),
        ({"brokers": {"b:9092": "refused"}}, "brokers from the workers", "failed", "w2 cannot"),
    ],
)  # fmt: skip
def test_what_one_worker_lacks_is_said_with_a_remedy(
    more: dict[str, Any], name: str, outcome: str, said: str
) -> None:
    """And nothing else is: one check of those is not ok."""
    found = [one for one in judged(worker(), worker(host="w2", **more)) if one.outcome != "ok"]
    assert len(found) == 1
    check = found[0]
    assert (check.name, check.outcome) == (name, outcome)
    assert said in check.found
    assert check.remedy


def test_memory_is_that_of_all_processes_of_a_host() -> None:
    """Tasks of one process need it once."""
    one = worker(free=150 * MIB)
    spark: Any = Session({"spark.executor.pyspark.memory": "1g"})
    assert workers._memory(spark, [one, one]).outcome == "ok"
    assert "spark.executor.pyspark.memory=1g" in workers._memory(spark, [one]).found
    two = workers._memory(spark, [one, worker(free=150 * MIB, pid=2)])
    assert (two.outcome, "2 of them" in two.found) == ("warning", True)
    assert workers._memory(spark, [worker(free=0), worker(free=0, pid=2)]).outcome == "ok"


def test_without_a_port_there_is_no_channel_and_no_clock() -> None:
    """It is said why, with the options of networks."""
    nothing = worker(driver={"why": "", "ahead": None})
    check = workers._channel(workers._Port(None, "denied"), [nothing])
    assert (check.outcome, check.found) == ("warning", "denied")
    assert "spark.driver.host" in check.remedy
    check = workers._channel(workers._Port(None, "in use", errno.EADDRINUSE), [nothing])
    assert "a running job" in check.remedy
    assert workers._clocks([nothing]).outcome == "untried"


def test_free_memory_is_what_a_control_group_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit without what is in use, files that are cached aside; in bytes."""
    monkeypatch.setattr(look, "_CGROUP", str(tmp_path))
    here = look.free_memory()
    assert here > 100 * MIB
    for name, content in (("max", f"{90 * MIB}"), ("current", f"{60 * MIB}")):
        (tmp_path / f"memory.{name}").write_text(content)
    assert look.free_memory() == 30 * MIB
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {20 * MIB}\n")
    assert look.free_memory() == 50 * MIB
    (tmp_path / "memory.max").write_text("max\n")
    assert look.free_memory() > 100 * MIB


_TRACE = "Traceback:\nKeyError: 1\n\nDuring it:\nImportError: no pyarrow"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[PYTHON] it failed: Traceback:\n  File x\nx.OddError: a\n SQLSTATE: 1", "x.OddError: a"),
        (_TRACE, "ImportError: no pyarrow"),
        ("the JVM has ended\nat once", "RuntimeError: the JVM has ended"),
    ],
)
def test_the_error_of_a_task_is_that_of_its_python(text: str, reason: str) -> None:
    """The last one; without a traceback the first line of what Spark says."""
    assert workers.reason_of(RuntimeError(text)) == reason
