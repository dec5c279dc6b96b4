"""YARN on this machine: Hadoop's own mini cluster, of the version that PySpark comes with.

``python -m tests.yarn``, which ``make setup`` runs, fetches its jars.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from coopconsume.demo.processes import kill_tree
from coopconsume.testing.local.ivy import Dependency
from coopconsume.testing.local.jars import JarSet, ensure, pyspark_home

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Of the machine's own limits nothing is to end a container, and a job's master may take all.
_SETTINGS = {
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.minicluster.yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
}
_SCHEDULER = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}


@dataclass(frozen=True)
class Yarn:
    """A running cluster; made by `yarn`.

    Attributes:
        pid: The process of its managers; containers are below it.
        configuration: The folder for ``HADOOP_CONF_DIR``.
    """

    pid: int
    configuration: Path


def jar_set() -> JarSet:
    """Returns the jars that the cluster needs beside those of PySpark."""
    (client,) = (pyspark_home() / "jars").glob("hadoop-client-api-*.jar")
    version = client.stem.rpartition("-")[2]
    return JarSet(
        f"yarn-{version}",
        f"Hadoop {version} mini cluster",
        (
            Dependency("org.apache.hadoop", "hadoop-client-minicluster", version, transitive=False),
            # What it uses and does not bring.
            Dependency("org.bouncycastle", "bcpkix-jdk18on", "1.78.1"),
            Dependency("org.junit.jupiter", "junit-jupiter-api", "5.10.2"),
            Dependency("org.mockito", "mockito-core", "4.11.0"),
        ),
        65,
    )


@contextmanager
def yarn(folder: Path, nodes: int = 2) -> Iterator[Yarn]:
    """A resource manager and node managers in one process, on free ports; they end with it."""
    # Managers may read a file on their path at any time, also one that is being written.
    configuration, managers = folder / "conf", folder / "managers"
    for place in (configuration, managers):
        place.mkdir(parents=True)
        (place / "core-site.xml").write_text(_xml({"fs.defaultFS": "file:///"}))
    (managers / "capacity-scheduler.xml").write_text(_xml(_SCHEDULER))
    places = [managers, *ensure(jar_set()), pyspark_home() / "jars" / "*"]
    with (folder / "log").open("w") as log:
        port, process = launch_gateway(
            classpath=os.pathsep.join(map(str, places)),
            # The second of these is where its nodes have their files.
            javaopts=["-Xmx512m", f"-Dtest.build.data={folder}", f"-Dbuild.test.dir={folder}"],
            die_on_exit=True,
            cwd=str(folder),
            redirect_stdout=log,
            redirect_stderr=log,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        try:
            hadoop = gateway.jvm.org.apache.hadoop.yarn
            wanted = hadoop.conf.YarnConfiguration()
            for name, value in _SETTINGS.items():
                wanted.set(name, value)
            cluster = hadoop.server.MiniYARNCluster("yarn", nodes, 1, 1)
            cluster.init(wanted)
            cluster.start()
            out = gateway.jvm.java.io.FileOutputStream(str(configuration / "yarn-site.xml"))
            cluster.getConfig().writeXml(out)
            out.close()
            yield Yarn(process.pid, configuration)
        finally:
            kill_tree(process)
            gateway.shutdown()


def _xml(values: dict[str, str]) -> str:
    """Returns a file of settings as Hadoop reads it."""
    each = (f"<property><name>{n}</name><value>{v}</value></property>" for n, v in values.items())
    return f"<configuration>{''.join(each)}</configuration>"


if __name__ == "__main__":
    ensure(jar_set())
