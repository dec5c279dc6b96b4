"""The container's and the cluster's files: they are valid, fit together, and fit the library."""

from __future__ import annotations

import re
import subprocess
import sysconfig
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from coopconsume.cli import main
from coopconsume.option_names import COMMAND_CONFIG
from coopconsume.options import Options
from coopconsume.testing.local.jars import pyspark_home

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
_SCRIPTS = Path(sysconfig.get_path("scripts"))
#: The oldest and the newest minor version that the manifests are checked against.
_KUBERNETES = ("1.28", "1.32", "1.37")
#: What stands for a value that Kubernetes puts in.
_POD = {"POD_NAME": "shop-0", "POD_IP": "10.0.0.7"}


def manifests() -> Iterator[dict[str, Any]]:
    """Returns all objects, the template of executors among them."""
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text("utf-8")):
            yield one
            if one["kind"] == "ConfigMap":
                yield from map(yaml.safe_load, one["data"].values())


def only(kind: str, name: str) -> dict[str, Any]:
    """Returns the one object of a kind and name."""
    (found,) = (
        one
        for one in manifests()
        if (one["kind"], one.get("metadata", {}).get("name")) == (kind, name)
    )
    return found


def compose() -> dict[str, Any]:
    """Returns the compose file."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return found


def resolved(words: list[str]) -> list[str]:
    """Returns the arguments of a container as it gets them."""
    return [re.sub(r"\$\((\w+)\)", lambda found: _POD[found[1]], word) for word in words]


def printed(words: list[str], options: str, folder: Path) -> dict[str, str]:
    """Runs a command with its file of options as far as its options; returns these."""
    file = folder / "job.properties"
    file.write_text(options)
    found = CliRunner().invoke(
        main, [*words, "--print-options"], env={COMMAND_CONFIG: str(file)}, catch_exceptions=False
    )
    assert found.exit_code == 0, found.output
    rows = (re.split("  +", line) for line in found.stdout.splitlines())
    return {name: value for name, value, *_ in rows}


def spark_conf(words: list[str]) -> dict[str, str]:
    """Returns the settings of Spark of a command."""
    return dict(
        word.removeprefix("--spark-conf=").split("=", 1)
        for word in words
        if word.startswith("--spark-conf=")
    )


@pytest.mark.parametrize("version", _KUBERNETES)
def test_manifests_are_valid(version):
    """By the schemas of Kubernetes' API; a field that it does not know is an error."""
    kinds = Counter(one["kind"] for one in manifests())
    assert kinds["StatefulSet"] == kinds["Deployment"] == kinds["Pod"] == 1
    for one in manifests():
        kubernetes_validate.validate(one, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one | {"specs": {}}, version, strict=True)


def test_what_manifests_name_is_there():
    """Secrets, maps, accounts, ports and labels; a misspelt one would leave a pod waiting."""
    for kind, name in (("StatefulSet", "shop"), ("Deployment", "coopconsume-exporter")):
        found = only(kind, name)
        template = found["spec"]["template"]
        pod = template["spec"]
        assert found["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        assert only("Service", name)["spec"]["selector"] == template["metadata"]["labels"]
        if "serviceAccountName" in pod:
            only("ServiceAccount", pod["serviceAccountName"])
        volumes = {}
        for volume in pod["volumes"]:
            volumes[volume["name"]] = volume
            if "secret" in volume:
                only("Secret", volume["secret"]["secretName"])
            if "configMap" in volume:
                only("ConfigMap", volume["configMap"]["name"])
        (container,) = pod["containers"]
        for source in container["envFrom"]:
            only("Secret", source["secretRef"]["name"])
        assert {mount["name"] for mount in container["volumeMounts"]} == {*volumes}
        paths = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        (config,) = (e["value"] for e in container["env"] if e["name"] == COMMAND_CONFIG)
        folder, _, file = config.rpartition("/")
        assert file in only("Secret", paths[folder]["secret"]["secretName"])["stringData"]
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        served = {one["name"]: one["port"] for one in only("Service", name)["spec"]["ports"]}
        assert served == ports
        for probe in ("readinessProbe", "livenessProbe"):
            for how in ("tcpSocket", "httpGet"):
                asked = container.get(probe, {}).get(how)
                assert asked is None or asked["port"] in ports
    placed = (one for one in manifests() if one["kind"] not in ("Namespace", "Pod"))
    assert {one["metadata"]["namespace"] for one in placed} == {"shop"}
    assert only("PodDisruptionBudget", "shop")["spec"]["selector"]["matchLabels"] == {"app": "shop"}


def test_a_job_on_kubernetes_begins_with_its_options(tmp_path):
    """The commands take what they are given, and what depends on each other agrees."""
    options = only("Secret", "shop")["stringData"]["job.properties"]
    pod = only("StatefulSet", "shop")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = resolved(container["args"])
    found = printed(words, options, tmp_path)
    assert found["kafka.group.instance.id"] == "shop-0"
    conf = spark_conf(words)
    executors = int(conf["spark.executor.instances"]) * int(conf["spark.executor.cores"])
    assert int(found["slots"]) == executors
    ports = {one["name"]: str(one["containerPort"]) for one in container["ports"]}
    given = conf["spark.driver.port"], conf["spark.blockManager.port"], found["channelPort"]
    assert given == (ports["driver"], ports["blocks"], ports["channel"])
    image = conf["spark.kubernetes.container.image"]
    assert image == container["image"]
    template = Path(conf["spark.kubernetes.executor.podTemplateFile"])
    (mounted,) = (
        one["name"] for one in container["volumeMounts"] if one["mountPath"] == str(template.parent)
    )
    (volume,) = (one for one in pod["volumes"] if one["name"] == mounted)
    assert template.name in only("ConfigMap", volume["configMap"]["name"])["data"]
    drain = Options.parse(
        {"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", "commitTable": "/c"}
    ).drain_timeout
    assert pod["terminationGracePeriodSeconds"] > 2 * drain
    assert float(compose()["services"]["shop-1"]["stop_grace_period"].rstrip("s")) > 2 * drain
    (exporter,) = only("Deployment", "coopconsume-exporter")["spec"]["template"]["spec"][
        "containers"
    ]
    assert printed(exporter["args"], options, tmp_path)["commitTable"] == found["commitTable"]


def test_settings_of_spark_are_those_that_spark_knows():
    """A misspelt one would be ignored without a word."""
    (container,) = only("StatefulSet", "shop")["spec"]["template"]["spec"]["containers"]
    known = b""
    for jar, name in (
        ("spark-core", "org/apache/spark/internal/config/package$.class"),
        ("spark-kubernetes", "org/apache/spark/deploy/k8s/Config$.class"),
    ):
        (path,) = (pyspark_home() / "jars").glob(f"{jar}_*.jar")
        known += zipfile.ZipFile(path).read(name)
    for setting in spark_conf(container["args"]):
        # Class files have a string's length before it.
        assert len(setting).to_bytes(2, "big") + setting.encode() in known, setting


def test_services_of_compose_begin_with_their_options(tmp_path):
    """Their commands, the volumes and configurations that they name, and the image."""
    file = compose()
    options = file["configs"]["job"]["content"]
    for name in ("shop-1", "shop-2"):
        found = printed(file["services"][name]["command"], options, tmp_path)
    assert f"--topic={found['subscribe']}" in file["services"]["topic"]["command"]
    assert printed(file["services"]["page"]["command"], options, tmp_path)
    tables = {v for k, v in found.items() if k in ("commitTable", "deadLetter")}
    for service in file["services"].values():
        for volume in service.get("volumes", []):
            assert volume["type"] == "bind" or volume["source"] in file["volumes"]
        for config in service.get("configs", []):
            assert config["source"] in file["configs"]
            assert service["environment"][COMMAND_CONFIG] == config["target"]
            assert {v["target"] for v in service["volumes"]} >= {
                str(Path(t).parent) for t in tables
            }
        for needed in service.get("depends_on", {}):
            assert needed in file["services"]
    # Several that build one image may do it at once, which fails.
    (build,) = (one["build"] for one in file["services"].values() if "build" in one)
    assert ((DEPLOY / build["context"]).resolve() / build["dockerfile"]).is_file()
    assert (
        f"PLAINTEXT://{found['kafka.bootstrap.servers']}"
        == (file["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"])
    )


def test_the_image_is_made_of_what_is_there():
    """No complaint of hadolint and shellcheck; files, modules, user and places fit the rest."""
    script = DEPLOY / "entrypoint.sh"
    for words in (("hadolint", DEPLOY / "Dockerfile"), ("shellcheck", script)):
        found = subprocess.run(
            [_SCRIPTS / words[0], words[1]], capture_output=True, text=True, check=False
        )
        assert (found.returncode, found.stdout + found.stderr) == (0, "")
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert script.stat().st_mode & 0o111
    for source in re.findall(r"^COPY (?:--\S+ )*(\S+) ", text, re.MULTILINE):
        assert source.startswith("dist/") or (ROOT / source).is_file(), source
    for module in re.findall(r"python -m (\S+)", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), module
    (user,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    assert f"--uid {user} " in text
    for one in manifests():
        pod = one["spec"] if one["kind"] == "Pod" else one.get("spec", {}).get("template", {})
        pod = pod.get("spec", pod)
        if "containers" in pod:
            assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": int(user)}
    assert compose()["services"]["tables"]["entrypoint"][1] == user
    (folder,) = re.findall(r"^WORKDIR (\S+)$", text, re.MULTILINE)
    assert f"PYTHONPATH={folder}" in text
    assert f"COPY shop.py {folder}/" in text
