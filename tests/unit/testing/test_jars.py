"""Jars are fetched whole or not at all, once, from where the user says; with the real Ivy.

The repository is a folder, made here: ``app`` needs ``lib`` and ``given`` at run time.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from coopconsume import errors, spark_versions
from coopconsume.testing.local import jars
from coopconsume.testing.local.broker import LocalKafka
from coopconsume.testing.local.ivy import Dependency

_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="local"/>
  <resolvers>
    <ibiblio name="local" m2compatible="true" root="{root}/" checkmodified="true"/>
  </resolvers>
</ivysettings>
"""
_POM = """\
<project><modelVersion>4.0.0</modelVersion>
<groupId>org.example</groupId><artifactId>{name}</artifactId><version>1.0</version>
<dependencies>{needs}</dependencies></project>
"""
_NEEDS = """\
<dependency><groupId>org.example</groupId><artifactId>{name}</artifactId>
<version>1.0</version><scope>runtime</scope></dependency>
"""
_APP = jars.JarSet(
    "app", "App", (Dependency("org.example", "app", "1.0"),), 1, frozenset({"given"})
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a Maven repository and a cache of these tests alone, and have Ivy use them."""
    root = tmp_path / "repository"
    for name, needs in {"app": ("lib", "given"), "lib": (), "given": ()}.items():
        folder = root / "org" / "example" / name / "1.0"
        folder.mkdir(parents=True)
        needed = "".join(_NEEDS.format(name=need) for need in needs)
        (folder / f"{name}-1.0.pom").write_text(_POM.format(name=name, needs=needed))
        with zipfile.ZipFile(folder / f"{name}-1.0.jar", "w") as jar:
            jar.writestr("name.txt", name)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(_SETTINGS.format(root=root.as_uri()))
    monkeypatch.setenv("COOPCONSUME_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("COOPCONSUME_CACHE", str(tmp_path / "cache"))
    return root


def _names(found: list[Path]) -> list[str]:
    return [jar.name for jar in found]


def test_what_is_needed_is_fetched_once(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a jar needs comes along, what is provided does not, and the second time is silent."""
    first = jars.ensure(_APP)
    assert _names(first) == ["app-1.0.jar", "lib-1.0.jar"]
    assert "fetching App jars (1 MB, once)…\nfetched 2 jars" in capsys.readouterr().err
    repository.rename(repository.with_name("gone"))
    assert jars.ensure(_APP) == first
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", ["truncated", "missing", "no manifest", "nonsense"])
def test_damaged_set_is_fetched_again(damage: str, repository: Path) -> None:
    """A set that is not whole is never used, whatever befell it."""
    first = jars.ensure(_APP)
    manifest = first[0].with_name("manifest.json")
    match damage:
        case "truncated":
            first[0].write_bytes(first[0].read_bytes()[:-1])
        case "missing":
            first[1].unlink()
        case "no manifest":
            manifest.unlink()
        case _:
            manifest.write_text('{"files": [1')
    assert jars.ensure(_APP) == first
    with zipfile.ZipFile(first[0]) as jar:
        assert jar.read("name.txt") == b"app"
    assert first[1].is_file()


def test_two_processes_fetch_once(repository: Path) -> None:
    """The one that comes second waits, and takes what the first has fetched."""
    body = (
        "from coopconsume.testing.local import jars\n"
        "from coopconsume.testing.local.ivy import Dependency\n"
        "app = Dependency('org.example', 'app', '1.0')\n"
        "print(len(jars.ensure(jars.JarSet('app', 'App', (app,), 1))))\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=600) for process in both]
    assert [out for out, _ in said] == ["3\n", "3\n"]
    assert sum("fetched 3 jars" in err for _, err in said) == 1


def test_failure_names_jars_and_leaves_nothing(repository: Path) -> None:
    """What cannot be found is named with Ivy's own words and the remedies; no folder stays."""
    missing = Dependency("org.example", "missing", "2.0")
    asked = jars.JarSet("broken", "Broken", (*_APP.dependencies, missing), 1)
    with pytest.raises(errors.JarsUnavailable) as caught:
        jars.ensure(asked)
    message = str(caught.value)
    assert "org.example:app:1.0, org.example:missing:2.0" in message
    assert "org.example#missing;2.0: not found" in message
    assert "COOPCONSUME_IVY_SETTINGS" in message
    assert list((jars.cache_dir() / "jars").iterdir()) == []


def test_missing_settings_file_is_reported(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt settings file is not silently replaced by the public repository."""
    monkeypatch.setenv("COOPCONSUME_IVY_SETTINGS", "/no/such/ivysettings.xml")
    with pytest.raises(errors.JarsUnavailable, match=r"/no/such/ivysettings\.xml is not a file"):
        jars.ensure(_APP)


def test_unwritable_cache_is_reported(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be made is an error of ours that names it."""
    monkeypatch.setenv("COOPCONSUME_CACHE", "/dev/null/cache")
    with pytest.raises(errors.JarsUnavailable, match="/dev/null/cache"):
        jars.ensure(_APP)


@pytest.mark.parametrize(
    ("own", "shared", "expected"),
    [
        ("/own", "/shared", "/own"),
        (None, "/shared", "/shared/coopconsume"),
        (None, None, "/home/me/.cache/coopconsume"),
        (None, "relative", "/home/me/.cache/coopconsume"),
        ("", "", "/home/me/.cache/coopconsume"),
    ],
)
def test_cache_is_where_the_user_says(
    own: str | None, shared: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own variable comes first, then the XDG one if it is absolute, then the home folder."""
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in {"COOPCONSUME_CACHE": own, "XDG_CACHE_HOME": shared}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert jars.cache_dir() == Path(expected)


@pytest.mark.parametrize("version", ["3.5.1", "", "master"])
def test_unsupported_spark_is_named(version: str) -> None:
    """A PySpark that is too old is refused with what is supported."""
    with pytest.raises(errors.SparkVersionUnsupported, match=rf"{version} .*Spark 4\.0 to 4\.3"):
        jars.spark_set(version)


@pytest.mark.parametrize(
    ("version", "connector", "delta"),
    [
        ("4.0.5", "4.0.0", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.1.4", "4.1.1", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.2.1", "4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.3.0.dev1", "4.2.0", None),
    ],
)
def test_each_minor_version_has_its_jars(version: str, connector: str, delta: str | None) -> None:
    """Delta has an artifact for each minor version; without one it is left out."""
    kafka = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{connector}"
    assert jars.spark_set(version).coordinates == ((kafka, delta) if delta else (kafka,))


@pytest.mark.parametrize(
    ("version", "logging"), [("3.9.2", "slf4j-reload4j"), ("4.1.1", "log4j-slf4j-impl")]
)
def test_a_broker_has_the_logging_of_its_version(version: str, logging: str) -> None:
    """Kafka logs by Log4j 2 from 4.0 on; a binding of the other one ends the broker."""
    bindings = {"slf4j-reload4j", "log4j-slf4j-impl"}
    artifacts = {each.split(":")[1] for each in jars.broker_set(version).coordinates}
    assert artifacts & bindings == {logging}


@pytest.mark.parametrize("version", ["4.1", "latest", "4.x.1"])
def test_what_is_no_version_of_kafka_is_refused(version: str) -> None:
    """Before anything is fetched."""
    with pytest.raises(ValueError, match=f"version='{version}'"):
        LocalKafka(version=version)


@pytest.mark.parametrize("version", ["4.4.0", "4.10.1", "5.0"])
def test_a_newer_spark_is_a_warning(version: str) -> None:
    """It counts as the newest known one, but never gets the Delta of another version."""
    with pytest.warns(RuntimeWarning, match=rf"Spark {version} is newer than 4\.3"):
        found = spark_versions.minor_of(version)
    assert found.version == ".".join(version.split(".")[:2])
    assert found.connector == spark_versions.SUPPORTED[-1].connector
    assert found.delta is None


def test_spark_set_leaves_out_what_pyspark_ships() -> None:
    """PySpark's own jars are recognised by artifact, whatever their names look like."""
    provided = jars.spark_set("4.0.0").provided
    assert {"spark-core_2.13", "hadoop-client-runtime", "guava", "hive-exec"} <= provided
    assert not any("kafka" in name or name.startswith("delta") for name in provided)


def test_a_set_of_jars_is_identified_by_all_its_parts() -> None:
    """Another version or another provided jar is another folder: no set passes for another."""
    newer = (Dependency("org.example", "app", "1.1"),)
    alone = (Dependency("org.example", "app", "1.0", transitive=False),)
    sets = [
        _APP,
        jars.JarSet("app", "App", newer, 1, _APP.provided),
        jars.JarSet("app", "App", alone, 1, _APP.provided),
        jars.JarSet("app", "App", _APP.dependencies, 1),
    ]
    assert len({each.folder for each in sets}) == len(sets)


@pytest.mark.parametrize(
    "error",
    [
        errors.JavaNotFound("PATH has no java", "17 or later"),
        errors.JavaVersionUnsupported("/bin/java", "11", "17 or later", "Kafka 4"),
        errors.SparkNotFound("pyspark"),
        errors.SparkVersionUnsupported("3.5.1", ("4.0",)),
        errors.SparkSessionConflict(("delta-spark.jar",)),
        errors.JarsUnavailable(("a:b:1",), "no network"),
        errors.BrokerStartFailed("exit code 1", "/tmp/broker.log", "last line"),
        errors.BrokerStopped("kill"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: errors.CoopConsumeError) -> None:
    """An error has the same data and message in another process."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
