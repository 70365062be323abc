"""A real YARN with HDFS for Spark's staging folder: a ResourceManager, a NameNode, a DataNode, some NodeManagers.

Each NodeManager runs on a host of its own (:mod:`harness.hosts`), the rest on one more. pip's pyspark brings Spark's
YARN client and Hadoop's client jars; the servers come from a Maven repository once, as Kafka's jars do, and are checked
against ``harness/checksums/hadoop``.

``python -m harness.spark.yarn`` fetches and checks; ``--record`` writes the list of checksums of :data:`VERSION`.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from xml.sax.saxutils import escape

from harness.hosts import Host
from harness.jars import maven
from harness.jars.jar_sets import JarSets
from harness.jars.maven import JarsError, java
from harness.processes import Process, stop_all, tail_of, wait_for

#: The version of the client jars that pyspark brings.
VERSION = "3.5.0"

_MODULES = (
    "hadoop-yarn-server-resourcemanager",
    "hadoop-yarn-server-nodemanager",
    # The ResourceManager does not start without it, although it runs no timeline service.
    "hadoop-yarn-server-timelineservice",
    "hadoop-hdfs",
)
_READY_SECONDS = 300.0
_JVM = ("-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"


def sets() -> JarSets:
    """The sets of Hadoop's jars, named by their versions."""
    folder = Path(__file__).parents[1] / "checksums" / "hadoop"
    return JarSets("Hadoop", maven.cache_folder("hadoop"), folder, _fetch, "python -m harness.spark.yarn --record")


def _fetch(version: str, work: Path) -> Path:
    dependencies = [
        f'<dependency org="org.apache.hadoop" name="{name}" rev="{version}" conf="default->master,runtime"/>'
        for name in _MODULES
    ]
    return maven.retrieve(f"the jars of Hadoop {version}", "".join(dependencies), ("jar", "bundle"), work)


class YarnCluster:
    """YARN and HDFS on hosts, from ``start()`` (or ``with``) to ``stop()``. Its caller is on their lab's network.

    :param host: for ResourceManager, NameNode and DataNode.
    :param node_hosts: for a NodeManager each.
    :param client_hosts: get the configuration, too (:attr:`conf`), for ``HADOOP_CONF_DIR``.
    """

    def __init__(
        self,
        host: Host,
        node_hosts: Sequence[Host],
        client_hosts: Sequence[Host] = (),
        *,
        memory_mb: int = 3072,
        cores: int = 4,
    ) -> None:
        self._host = host
        self._node_hosts = list(node_hosts)
        self._client_hosts = list(client_hosts)
        self._memory_mb = memory_mb
        self._cores = cores
        self._processes: list[Process] = []
        #: name of a node's host -> its NodeManager
        self.nodes: dict[str, Process] = {}

    def __enter__(self) -> YarnCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Format HDFS, start all processes, and wait until every node is registered.

        :raises HarnessError: a process ended, or did not become ready in time.
        """
        for host in (self._host, *self._node_hosts, *self._client_hosts):
            self._write_conf(host)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        # NameNode looks for its web pages on the class path, and the jars of the repository do not contain them.
        for pages in ("hdfs", "datanode", "secondary"):
            (self.conf(self._host) / "webapps" / pages).mkdir(parents=True, exist_ok=True)
        self._host.run(self._java(self._host, _NAMENODE, "-format", "-nonInteractive"), timeout_seconds=_READY_SECONDS)
        servers = {
            "namenode": _NAMENODE,
            "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
            "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
        }
        self._processes = [self._spawn(self._host, name, main) for name, main in servers.items()]
        for host in self._node_hosts:
            self.start_node(host)
        wait_for("all nodes of YARN", lambda: self.running_nodes() == sorted(self.nodes), _READY_SECONDS, 1.0)
        wait_for("HDFS", self._hdfs_takes_files, _READY_SECONDS, 1.0)

    def start_node(self, host: Host) -> None:
        """Start the NodeManager of a host, again if it has ended."""
        self.nodes[host.name] = self._spawn(
            host, "nodemanager", "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
        )

    def stop(self) -> None:
        """End all."""
        stop_all([*self.nodes.values(), *self._processes])
        self.nodes, self._processes = {}, []

    @property
    def resource_manager(self) -> str:
        """The address of the ResourceManager's REST interface, as the hosts name it."""
        return f"http://{self._host.name}:8088"

    @property
    def rest_address(self) -> str:
        """The same interface for processes outside of the hosts, which know no names."""
        return f"http://{self._host.address}:8088"

    # -- questions ----------------------------------------------------------------------------------------------------

    def running_nodes(self) -> list[str]:
        """The hosts whose NodeManagers the ResourceManager counts on, sorted."""
        self._check()
        nodes = (self._ask(8088, "/ws/v1/cluster/nodes").get("nodes") or {}).get("node") or []
        return sorted(node["nodeHostName"] for node in nodes if node["state"] == "RUNNING")

    def driver_host(self, application: str) -> str | None:
        """The host on which the driver of an application in cluster mode runs; None before it has one."""
        app = self._ask(8088, f"/ws/v1/cluster/apps/{application}").get("app") or {}
        host = str(app.get("amHostHttpAddress", "")).partition(":")[0]
        return host if host in self.nodes else None

    def applications(self) -> dict[str, str]:
        """The ids of all applications, in the order in which they were started, with their final states."""
        apps = (self._ask(8088, "/ws/v1/cluster/apps").get("apps") or {}).get("app") or []
        return {app["id"]: app["finalStatus"] for app in sorted(apps, key=lambda app: int(app["startedTime"]))}

    def _ask(self, port: int, path: str) -> dict[str, Any]:
        """An answer of a server's REST interface; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self._host.address}:{port}{path}", timeout=10) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def container_logs(self, host: Host) -> list[Path]:
        """The files that containers have written on a host."""
        return sorted(path for path in (self._folder(host) / "container-logs").rglob("*") if path.is_file())

    def log_tail(self) -> str:
        """The ends of all logs, for a failure's message."""
        return "\n".join(tail_of(process.log) for process in [*self.nodes.values(), *self._processes])

    # -- parts --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _folder(host: Host) -> Path:
        return host.disk / "hadoop"

    def conf(self, host: Host) -> Path:
        """The folder of the configuration on a host, for ``HADOOP_CONF_DIR``."""
        return self._folder(host) / "conf"

    def _check(self) -> None:
        for process in [*self._processes, *self.nodes.values()]:
            process.check_running()

    def _hdfs_takes_files(self) -> bool:
        self._check()
        beans = self._ask(9870, "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState").get("beans") or [{}]
        return bool(beans[0].get("NumLiveDataNodes") and beans[0].get("FSState") == "Operational")

    def _java(self, host: Host, main: str, *arguments: str) -> list[str]:
        logs = self._folder(host) / "logs"
        return [
            java(),
            *_JVM,
            f"-Dhadoop.log.dir={logs}",
            f"-Dyarn.log.dir={logs}",
            *("-cp", f"{self.conf(host)}:{sets().ensure(VERSION)}/*"),
            main,
            *arguments,
        ]

    def _spawn(self, host: Host, name: str, main: str) -> Process:
        return host.start(name, self._java(host, main), env={"HADOOP_CONF_DIR": str(self.conf(host))})

    def _write_conf(self, host: Host) -> None:
        folder = self._folder(host)
        self.conf(host).mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        for name, properties in {"core": self._core(host), "hdfs": self._hdfs(host), "yarn": self._yarn(host)}.items():
            (self.conf(host) / f"{name}-site.xml").write_text(_xml(properties), encoding="utf-8")
        (self.conf(host) / "log4j.properties").write_text(
            "log4j.rootLogger=INFO,console\nlog4j.appender.console=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.console.target=System.err\nlog4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n\n",
            encoding="ascii",
        )

    def _core(self, host: Host) -> dict[str, str]:
        return {
            "fs.defaultFS": f"hdfs://{self._host.name}:9000",
            "hadoop.tmp.dir": str(self._folder(host) / "tmp"),
        }

    def _hdfs(self, host: Host) -> dict[str, str]:
        return {
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.name.dir": (self._folder(host) / "name").as_uri(),
            "dfs.datanode.data.dir": (self._folder(host) / "data").as_uri(),
            # There is no reverse lookup of addresses.
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            # The machine's disk may be nearly full; this much must stay free.
            "dfs.datanode.du.reserved": "0",
        }

    def _yarn(self, host: Host) -> dict[str, str]:
        scheduler = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
        return {
            "yarn.resourcemanager.hostname": self._host.name,
            # It needs no file of queues.
            "yarn.resourcemanager.scheduler.class": scheduler,
            "yarn.scheduler.minimum-allocation-mb": "256",
            "yarn.nodemanager.hostname": host.name,
            "yarn.nodemanager.resource.memory-mb": str(self._memory_mb),
            "yarn.nodemanager.resource.cpu-vcores": str(self._cores),
            "yarn.nodemanager.local-dirs": str(self._folder(host) / "local"),
            "yarn.nodemanager.log-dirs": str(self._folder(host) / "container-logs"),
            "yarn.nodemanager.delete.debug-delay-sec": "0",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            # Never a secret: values are written into a script in the containers' log folder.
            "yarn.nodemanager.env-whitelist": "JAVA_HOME,PATH,LANG,HADOOP_CONF_DIR",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            # A lost machine, and a driver on it, is noticed in seconds instead of ten minutes. A driver's own interval
            # stays long: on a busy machine its start takes a minute, during which it does not report.
            "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "500",
        }


def _xml(properties: Mapping[str, str]) -> str:
    items = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    return f"<configuration>\n{items}</configuration>\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.spark.yarn", description="Fetch and check Hadoop's jars.")
    parser.add_argument("--record", action="store_true", help="fetch again and write the checksum list")
    options = parser.parse_args(arguments)
    try:
        if options.record:
            print(f"Hadoop {VERSION}: recorded in {sets().record(VERSION)}")
        else:
            print(f"Hadoop {VERSION}: {len(sets().recorded_checksums(VERSION))} jars in {sets().ensure(VERSION)}")
    except JarsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
