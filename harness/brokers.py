"""Real Kafka clusters on loopback: one JVM per broker, ready in a few seconds, thrown away afterwards.

ZooKeeper mode (3.x) or KRaft mode; 1 or 3 brokers; ACLs enforced; listeners PLAINTEXT (super user ``ANONYMOUS``),
SASL_PLAINTEXT and, optionally, SSL with client certificates and SASL_SSL.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from harness.broker_properties import Layout, broker_properties
from harness.certificates import Authority
from harness.cluster_admin import ClusterAdmin
from harness.faults.proxy import ClusterProxy
from harness.hosts import Host
from harness.jars import kafka_jars
from harness.processes import (
    LOOPBACK,
    HarnessError,
    Process,
    free_port,
    is_listening,
    release_ports,
    start,
    stop_all,
    tail_of,
    wait_for,
)

Mode = Literal["zookeeper", "kraft"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256"]

#: Small heaps and the client compiler, because brokers of tests run for seconds. Benchmarks pass their own options.
SMALL_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_ZOOKEEPER_JVM = ("-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_READY_SECONDS = 300.0
_STOP_SECONDS = 10.0

_SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


class KafkaCluster(ClusterAdmin):
    """A cluster that runs from ``start()`` (or ``with``) to ``stop()``.

    :param folder: for configuration, logs and data. It must not hold another cluster's data.
    :param version: of the jars to run, see :mod:`harness.jars.kafka_jars`.
    :param mode: ``zookeeper`` or ``kraft``; None: ``zookeeper`` below 4.0, otherwise ``kraft``.
    :param brokers: 1 or 3. Three KRaft brokers are a controller quorum, too.
    :param config: broker properties that override the defaults.
    :param authorizer: enforce ACLs; ``ANONYMOUS`` (plaintext listener) and ``admin`` are super users.
    :param sasl: have a SASL_PLAINTEXT listener with PLAIN and SCRAM.
    :param tls: have an SSL listener that requires client certificates, and (with ``sasl``) a SASL_SSL listener.
    :param users: name -> password, for all SASL mechanisms; ``admin`` is added when it is missing.
    :param jvm: JVM options of the brokers.
    :param proxied: have a plaintext listener behind a proxy (:attr:`proxy`), for faults of the network.
    :param host: run all brokers there; the folder must be on its disk. None: on loopback. Whoever talks to the cluster,
        this class included, must be on the network of the host's lab.
    """

    def __init__(
        self,
        folder: Path,
        version: str = "4.1.1",
        mode: Mode | None = None,
        brokers: int = 1,
        config: Mapping[str, str | int | bool] | None = None,
        authorizer: bool = True,
        sasl: bool = True,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        jvm: Sequence[str] = SMALL_JVM,
        proxied: bool = False,
        host: Host | None = None,
    ) -> None:
        if brokers not in (1, 3):
            raise ValueError("brokers: 1 or 3")
        self.folder = folder
        self.version = version
        self.mode: Mode = mode or ("zookeeper" if int(version.split(".")[0]) < 4 else "kraft")
        if host is not None and (
            proxied or tls or self.mode == "zookeeper" or not folder.is_relative_to(host.disk)
        ):  # the proxy runs on this machine, the certificates are made for localhost, and ZooKeeper listens there
            raise ValueError("on a host: neither a proxy nor TLS nor ZooKeeper, and a folder on the host's disk")
        self.brokers = brokers
        self.users = dict(users or {})
        self.users.setdefault("admin", secrets.token_urlsafe(12))
        self.sasl = sasl
        self.authority = Authority(folder / "tls") if tls else None
        self._host = host
        self._address = LOOPBACK if host is None else host.address
        self._config = dict(config or {})
        self._authorizer = authorizer
        self._jvm = tuple(jvm)
        self._ports: dict[str, list[int]] = {}
        self._proxied = proxied
        self._proxy_ports: list[int] = []
        self._proxy: ClusterProxy | None = None
        self._zookeeper_port = 0
        self._zookeeper: Process | None = None
        self._processes: list[Process | None] = [None] * brokers

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> KafkaCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(graceful=False)

    def start(self) -> None:
        """Start all processes and wait until the cluster answers and the users exist.

        :raises HarnessError: the cluster did not start in time, or a process ended; no process is left running then.
        """
        try:
            self._prepare()
            if self.mode == "zookeeper":
                self._start_zookeeper()
            else:
                self._format()
            for index in range(self.brokers):
                self._start_broker(index)
            self.wait_ready()
            if self.sasl:
                self._create_scram_users()
        except BaseException:
            self.stop(graceful=False)
            raise

    def stop(self, graceful: bool = True) -> None:
        """Stop all; with ``graceful=False`` immediately by SIGKILL. Keeps the folder. Can be called at any time."""
        running = [process for process in self._processes if process is not None]
        if graceful:
            stop_all(running, _STOP_SECONDS)
        for process in running:
            process.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()
        if self._proxy is not None:
            self._proxy.stop()
        self._processes = [None] * self.brokers
        self._zookeeper = None
        self._proxy = None
        ports = [port for ports in self._ports.values() for port in ports]
        release_ports([*ports, *self._proxy_ports, self._zookeeper_port])
        self._ports = {}

    def remove(self) -> None:
        """Stop and delete the folder."""
        self.stop(graceful=False)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)

    def kill(self, broker_index: int) -> None:
        """Kill a broker with SIGKILL. Its data and ports are kept for :meth:`restart`."""
        self._process(broker_index).kill()

    def is_running(self, broker_index: int) -> bool:
        """Whether a broker's process exists; a stopped (SIGSTOP) one does."""
        process = self._processes[broker_index]
        return process is not None and process.running

    def stop_broker(self, broker_index: int) -> None:
        """Stop one broker in order (controlled shutdown)."""
        self._process(broker_index).stop(_STOP_SECONDS)

    def pause(self, broker_index: int | None = None) -> None:
        """Stop one broker, or all, with SIGSTOP: it keeps its connections and answers no request."""
        for index in self._indexes(broker_index):
            self._process(index).signal(signal.SIGSTOP)

    def resume(self, broker_index: int | None = None) -> None:
        """Continue one broker, or all, with SIGCONT."""
        for index in self._indexes(broker_index):
            self._process(index).signal(signal.SIGCONT)

    def restart(self, broker_index: int, config: Mapping[str, str | int | bool] | None = None) -> None:
        """Restart a stopped or killed broker (a running one is killed first) and wait for it.

        :param config: properties that change for all brokers from their next start on.
        """
        self._process(broker_index).kill()
        self._config.update(config or {})
        self._write_properties(broker_index)
        self._start_broker(broker_index)
        self.wait_ready()

    def wait_ready(self, timeout_seconds: float = _READY_SECONDS) -> None:
        """Wait until all running brokers are members of the cluster.

        :raises HarnessError: a broker did not join in time, or ended by itself.
        """
        live = [index for index, process in enumerate(self._processes) if process is not None and process.running]
        expected = {self.node_id(index) for index in live}
        for index in live:
            self._wait_broker(index, timeout_seconds)
        admin = self.admin()

        def all_members() -> bool:
            for index in live:
                self._check_broker(index)
            try:
                return expected <= set(admin.list_topics(timeout=2).brokers)
            except KafkaException:
                return False

        wait_for(f"members {sorted(expected)} of the cluster in {self.folder}", all_members, timeout_seconds)

    # -- access -------------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Addresses of the plaintext listeners: no authentication, super user."""
        return self._addresses("PLAINTEXT")

    @property
    def proxy(self) -> ClusterProxy:
        """The proxy in front of the brokers of :attr:`proxied_bootstrap`."""
        if self._proxy is None:
            raise HarnessError("this cluster does not run or was made without proxied=True")
        return self._proxy

    @property
    def proxied_bootstrap(self) -> str:
        """Addresses of the proxy: no authentication, super user."""
        return ",".join(f"127.0.0.1:{port}" for port in self._proxy_ports)

    @property
    def sasl_bootstrap(self) -> str:
        """Addresses of the SASL_PLAINTEXT listeners."""
        return self._addresses("SASL_PLAINTEXT")

    @property
    def ssl_bootstrap(self) -> str:
        """Addresses of the SSL listeners, which require a client certificate."""
        return self._addresses("SSL")

    @property
    def sasl_ssl_bootstrap(self) -> str:
        """Addresses of the SASL_SSL listeners."""
        return self._addresses("SASL_SSL")

    def client_config(
        self,
        user: str | None = None,
        mechanism: Mechanism = "PLAIN",
        *,
        tls: bool = False,
        certificate: str | None = None,
    ) -> dict[str, str]:
        """librdkafka keys for a client.

        :param user: authenticate by SASL as one of ``users``; None: the plaintext listener.
        :param tls: with ``user``: SASL_SSL instead of SASL_PLAINTEXT.
        :param certificate: authenticate by a client certificate made for this user (SSL listener).
        """
        if certificate is not None:
            pair = self._tls().client(certificate)
            return {
                "bootstrap.servers": self.ssl_bootstrap,
                "security.protocol": "SSL",
                "ssl.ca.location": str(self._tls().certificate),
                "ssl.certificate.location": str(pair.certificate),
                "ssl.key.location": str(pair.key),
            }
        if user is None:
            return {"bootstrap.servers": self.bootstrap}
        config = {
            "bootstrap.servers": self.sasl_ssl_bootstrap if tls else self.sasl_bootstrap,
            "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": self.users[user],
        }
        return config | ({"ssl.ca.location": str(self._tls().certificate)} if tls else {})

    def node_id(self, broker_index: int) -> int:
        """Broker id: 1, 2, 3."""
        return broker_index + 1

    def data_folder(self, broker_index: int) -> Path:
        """``log.dirs`` of a broker."""
        return self.folder / f"data-{self.node_id(broker_index)}"

    def broker_log(self, broker_index: int) -> Path:
        """A broker's log, across all its restarts."""
        return self.folder / f"broker-{self.node_id(broker_index)}.log"

    def broker_pid(self, broker_index: int) -> int:
        return self._process(broker_index).pid

    def dump_log(self, topic: str, broker_index: int = 0) -> dict[int, list[dict[str, str]]]:
        """The record batches of a topic in a broker's files, as Kafka's own DumpLogSegments shows them.

        :returns: partition -> one dict per batch: ``baseOffset``, ``lastOffset``, ``count``, ``isControl``,
            ``isTransactional``, ``compresscodec``, ... as text.
        """
        files = [
            path
            for folder in sorted(self.data_folder(broker_index).glob(f"{topic}-*"))
            if folder.name.removeprefix(f"{topic}-").isdigit()
            for path in sorted(folder.glob("*.log"))
        ]
        command = self._java(SMALL_JVM, kafka_jars.dump_log_class(self.version), "--files", ",".join(map(str, files)))
        done = subprocess.run(command, capture_output=True, text=True, timeout=_READY_SECONDS, check=True)
        batches: dict[int, list[dict[str, str]]] = {}
        partition = -1
        for line in done.stdout.splitlines():
            if line.startswith("Dumping "):
                partition = int(Path(line.removeprefix("Dumping ")).parent.name.rpartition("-")[2])
                batches.setdefault(partition, [])
            elif line.startswith("baseOffset: "):
                words = line.split()
                batches[partition].append(
                    {name.rstrip(":"): value for name, value in pairwise(words) if name.endswith(":")}
                )
        return batches

    def tool(self, main: str, *arguments: str, timeout_seconds: float = _READY_SECONDS) -> str:
        """Return the output of one of Kafka's own command line tools, for instance
        ``org.apache.kafka.tools.consumer.ConsoleConsumer``. ``--bootstrap-server`` is added.

        :raises HarnessError: the tool fails; shows its output.
        """
        command = self._java(SMALL_JVM, main, "--bootstrap-server", self.bootstrap, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds)
        if done.returncode != 0:
            raise HarnessError(f"{main} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    # -- parts --------------------------------------------------------------------------------------------------------

    def _indexes(self, broker_index: int | None) -> list[int]:
        return list(range(self.brokers)) if broker_index is None else [broker_index]

    def _process(self, broker_index: int) -> Process:
        process = self._processes[broker_index]
        if process is None:
            raise HarnessError(f"broker {self.node_id(broker_index)} was not started")
        return process

    def _tls(self) -> Authority:
        if self.authority is None:
            raise HarnessError("this cluster was made without tls=True")
        return self.authority

    def _addresses(self, listener: str) -> str:
        if listener not in self._ports:
            raise HarnessError(f"this cluster does not run or has no {listener} listener")
        return ",".join(f"{self._address}:{port}" for port in self._ports[listener])

    def _listeners(self) -> list[str]:
        names = ["PLAINTEXT"]
        if self.sasl:
            names.append("SASL_PLAINTEXT")
        if self.authority is not None:
            names.append("SSL")
            if self.sasl:
                names.append("SASL_SSL")
        if self._proxied:
            names.append("PROXIED")
        if self.mode == "kraft":
            names.append("CONTROLLER")
        return names

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ports = {name: [free_port() for _ in range(self.brokers)] for name in self._listeners()}
        if self._proxied:
            self._proxy_ports = [free_port() for _ in range(self.brokers)]
            self._proxy = ClusterProxy(dict(zip(self._proxy_ports, self._ports["PROXIED"], strict=True)))
            self._proxy.start()
        if self.mode == "zookeeper":
            self._zookeeper_port = free_port()
        if self.authority is not None:
            self.authority.create()
        for index in range(self.brokers):
            self._write_properties(index)

    def _java(self, jvm: Sequence[str], main: str, *arguments: str) -> list[str]:
        return [
            kafka_jars.java(),
            *jvm,
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
            *("-cp", kafka_jars.classpath(self.version)),
            main,
            *arguments,
        ]

    def _start_zookeeper(self) -> None:
        data = self.folder / "zookeeper"
        data.mkdir(exist_ok=True)
        properties = self.folder / "zookeeper.properties"
        properties.write_text(
            f"dataDir={data}\nclientPort={self._zookeeper_port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\nmaxClientCnxns=0\ntickTime=1000\nsyncEnabled=false\n",
            encoding="utf-8",
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        process = start("ZooKeeper", self._java(_ZOOKEEPER_JVM, main, str(properties)), self.folder / "zookeeper.log")
        self._zookeeper = process

        def answers() -> bool:
            process.check_running()
            return is_listening(self._zookeeper_port)

        wait_for("ZooKeeper's port", answers, _READY_SECONDS)

    def _format(self) -> None:
        """Format the log folders of all brokers for one new cluster id, in parallel: each needs the start of a JVM."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatting = []
        for index in range(self.brokers):
            if (self.data_folder(index) / "meta.properties").exists():
                continue
            properties = str(self._properties_path(index))
            # Use "=", because an id may begin with a dash.
            command = self._java(
                SMALL_JVM,
                "kafka.tools.StorageTool",
                *("format", f"--cluster-id={cluster_id}", "-c", properties),
            )
            formatting.append(self._spawn(f"format of {self.data_folder(index)}", command, self.broker_log(index)))
        try:
            for process in formatting:
                if process.wait(_READY_SECONDS) != 0:
                    process.check_running()
        finally:
            for process in formatting:
                process.kill()

    def _start_broker(self, index: int) -> None:
        command = self._java(self._jvm, "kafka.Kafka", str(self._properties_path(index)))
        name = f"Kafka {self.version} broker {self.node_id(index)}"
        self._processes[index] = self._spawn(name, command, self.broker_log(index))

    def _spawn(self, name: str, command: Sequence[str], log: Path) -> Process:
        if self._host is None:
            return start(name, command, log, cwd=self.folder)
        return self._host.start(name, command, log, cwd=self.folder)

    def _wait_broker(self, index: int, timeout_seconds: float) -> None:
        def listens() -> bool:
            self._check_broker(index)
            return is_listening(self._ports["PLAINTEXT"][index], self._address)

        wait_for(f"port of broker {self.node_id(index)}", listens, timeout_seconds)

    def _check_broker(self, index: int) -> None:
        """:raises HarnessError: a broker has ended for another reason than its former registration."""
        process = self._process(index)
        if not process.running and self._is_still_registered(index):
            process.kill()
            self._start_broker(index)
        self._process(index).check_running()

    def _is_still_registered(self, index: int) -> bool:
        """ZooKeeper mode: the killed broker is still registered, so its successor has given up."""
        return self.mode == "zookeeper" and "NodeExistsException" in tail_of(self.broker_log(index), 60)

    def _create_scram_users(self) -> None:
        admin = self.admin()
        # One request per mechanism: KRaft controllers refuse a request that names a user twice.
        for mechanism in _SCRAM.values():
            upsertions = [
                UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
                for name, password in sorted(self.users.items())
            ]
            for future in admin.alter_user_scram_credentials(upsertions, request_timeout=20).values():
                future.result()

    # -- properties ---------------------------------------------------------------------------------------------------

    def _properties_path(self, index: int) -> Path:
        return self.folder / f"server-{self.node_id(index)}.properties"

    def _write_properties(self, index: int) -> None:
        layout = Layout(
            node_id=self.node_id(index),
            index=index,
            data=self.data_folder(index),
            ports=self._ports,
            zookeeper_port=self._zookeeper_port if self.mode == "zookeeper" else None,
            authorizer=self._authorizer,
            users=self.users if self.sasl else None,
            authority=self.authority,
            advertised={"PROXIED": self._proxy_ports} if self._proxied else {},
            address=self._address,
        )
        path = self._properties_path(index)
        path.touch(mode=0o600)
        lines = (f"{key}={value}\n" for key, value in broker_properties(layout, self._config).items())
        path.write_text("".join(lines), encoding="utf-8")
