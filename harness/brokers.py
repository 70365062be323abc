"""Real Kafka clusters on loopback: one JVM per broker, ready in a few seconds, thrown away afterwards.

ZooKeeper mode (3.x) or KRaft mode; 1 or 3 brokers; ACLs enforced; listeners PLAINTEXT (super user ``ANONYMOUS``),
SASL_PLAINTEXT and, on wish, SSL with client certificates and SASL_SSL.
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
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from harness import kafka_jars
from harness.certificates import Authority
from harness.processes import (
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

#: Small heaps and the client compiler: brokers of tests live for seconds. Benchmarks pass their own.
SMALL_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_ZOOKEEPER_JVM = ("-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_READY_SECONDS = 60.0
_STOP_SECONDS = 10.0
#: ZooKeeper forgets a killed broker after this time; a broker that comes back earlier ends itself and is started again.
_ZOOKEEPER_SESSION_MS = 4000

_SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


class KafkaCluster:
    """A cluster that runs from ``start()`` (or ``with``) to ``stop()``.

    :param folder: its own folder: configuration, logs, data. Must not hold another cluster's data.
    :param version: jars to run, see :mod:`harness.kafka_jars`.
    :param mode: ``zookeeper`` or ``kraft``; None: ``zookeeper`` below 4.0, else ``kraft``.
    :param brokers: 1 or 3. Three KRaft brokers are a controller quorum, too.
    :param config: broker properties, laid over the defaults.
    :param authorizer: enforce ACLs; ``ANONYMOUS`` (plaintext listener) and ``admin`` are super users.
    :param sasl: have a SASL_PLAINTEXT listener with PLAIN and SCRAM.
    :param tls: have an SSL listener that demands client certificates, and (with ``sasl``) a SASL_SSL listener.
    :param users: name -> password, for all SASL mechanisms; ``admin`` is added when it is missing.
    :param jvm: JVM options of the brokers.
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
    ) -> None:
        if brokers not in (1, 3):
            raise ValueError("brokers: 1 or 3")
        self.folder = folder
        self.version = version
        self.mode: Mode = mode or ("zookeeper" if int(version.split(".")[0]) < 4 else "kraft")
        self.brokers = brokers
        self.users = dict(users or {})
        self.users.setdefault("admin", secrets.token_urlsafe(12))
        self.sasl = sasl
        self.authority = Authority(folder / "tls") if tls else None
        self._config = dict(config or {})
        self._authorizer = authorizer
        self._jvm = tuple(jvm)
        self._ports: dict[str, list[int]] = {}
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
        """Start all and wait until the cluster answers and the users exist.

        :raises HarnessError: not in time, or a process ended; nothing is left running then.
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
        """Stop all; with ``graceful=False`` by SIGKILL at once. The folder stays. Can be called at any time."""
        running = [process for process in self._processes if process is not None]
        if graceful:
            stop_all(running, _STOP_SECONDS)
        for process in running:
            process.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()
        self._processes = [None] * self.brokers
        self._zookeeper = None
        release_ports([port for ports in self._ports.values() for port in ports] + [self._zookeeper_port])
        self._ports = {}

    def kill(self, broker_index: int) -> None:
        """SIGKILL a broker. Its data and ports stay for :meth:`restart`."""
        self._process(broker_index).kill()

    def stop_broker(self, broker_index: int) -> None:
        """Stop one broker in order (controlled shutdown)."""
        self._process(broker_index).stop(_STOP_SECONDS)

    def pause(self, broker_index: int | None = None) -> None:
        """SIGSTOP one broker, or all: it keeps its connections and answers nobody."""
        for index in self._indexes(broker_index):
            self._process(index).signal(signal.SIGSTOP)

    def resume(self, broker_index: int | None = None) -> None:
        """SIGCONT one broker, or all."""
        for index in self._indexes(broker_index):
            self._process(index).signal(signal.SIGCONT)

    def restart(self, broker_index: int, config: Mapping[str, str | int | bool] | None = None) -> None:
        """Start a stopped or killed broker again (a running one is killed first) and wait for it.

        :param config: properties that change for all brokers from their next start on.
        """
        self._process(broker_index).kill()
        self._config.update(config or {})
        self._write_properties(broker_index)
        self._start_broker(broker_index)
        self.wait_ready()

    def wait_ready(self, timeout_seconds: float = _READY_SECONDS) -> None:
        """Wait until all running brokers are members of the cluster.

        :raises HarnessError: not in time, or a broker ended by itself.
        """
        live = [index for index, process in enumerate(self._processes) if process is not None and process.running]
        expected = {self.node_id(index) for index in live}
        for index in live:
            self._wait_broker(index, timeout_seconds)
        admin = self.admin()

        def all_members() -> bool:
            for index in live:
                self._process(index).check_running()
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
    def sasl_bootstrap(self) -> str:
        """Addresses of the SASL_PLAINTEXT listeners."""
        return self._addresses("SASL_PLAINTEXT")

    @property
    def ssl_bootstrap(self) -> str:
        """Addresses of the SSL listeners, which demand a client certificate."""
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
        :param tls: with ``user``: SASL_SSL in place of SASL_PLAINTEXT.
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

    def admin(self) -> AdminClient:
        """Admin client of the super user."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})

    def cluster_id(self) -> str:
        """The id that DescribeCluster answers; differs from cluster to cluster."""
        admin = self.admin()  # must outlive the call
        answer = admin.describe_cluster(request_timeout=10).result()
        return str(answer.cluster_id)

    def node_id(self, broker_index: int) -> int:
        """Broker id: 1, 2, 3."""
        return broker_index + 1

    def data_folder(self, broker_index: int) -> Path:
        """``log.dirs`` of a broker."""
        return self.folder / f"data-{self.node_id(broker_index)}"

    def broker_log(self, broker_index: int) -> Path:
        """What a broker logged, over all its lives."""
        return self.folder / f"broker-{self.node_id(broker_index)}.log"

    def broker_pid(self, broker_index: int) -> int:
        return self._process(broker_index).pid

    def dump_log(self, topic: str, broker_index: int = 0) -> dict[int, list[dict[str, str]]]:
        """The record batches of a topic as they lie in a broker's files, by Kafka's own DumpLogSegments.

        :returns: partition -> one dict per batch: ``baseOffset``, ``lastOffset``, ``count``, ``isControl``,
            ``isTransactional``, ``compresscodec``, ... as text.
        """
        files = [
            path
            for folder in sorted(self.data_folder(broker_index).glob(f"{topic}-*"))
            if folder.name.removeprefix(f"{topic}-").isdigit()
            for path in sorted(folder.glob("*.log"))
        ]
        command = self._java(SMALL_JVM, "kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)))
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

    # -- topics -------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int | None = None,
    ) -> None:
        """Create a topic and wait until each partition has a leader."""
        self.create_topics({name: (partitions, dict(config or {}))}, replication_factor)

    def create_topics(
        self, topics: Mapping[str, tuple[int, Mapping[str, str]]], replication_factor: int | None = None
    ) -> None:
        """Create topics (name -> (partitions, configs)) and wait until each partition has a leader.

        :raises KafkaException: the broker refused one.
        """
        admin = self.admin()
        factor = replication_factor or self.brokers
        wanted = [NewTopic(name, count, factor, config=dict(config)) for name, (count, config) in topics.items()]
        for future in admin.create_topics(wanted, operation_timeout=20).values():
            future.result()

        def led() -> bool:
            known = admin.list_topics(timeout=5).topics
            return all(
                name in known
                and len(known[name].partitions) == count
                and all(partition.leader > 0 for partition in known[name].partitions.values())
                for name, (count, _) in topics.items()
            )

        wait_for(f"leaders of {sorted(topics)}", led, 20)

    def alter_topic_configs(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Set some configs of topics (name -> configs); the others stay."""
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                name,
                incremental_configs=[
                    ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in own.items()
                ],
            )
            for name, own in configs.items()
        ]
        admin = self.admin()
        for future in admin.incremental_alter_configs(resources, request_timeout=20).values():
            future.result()

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics; those that are not there are ignored."""
        admin = self.admin()
        present = [name for name in names if name in admin.list_topics(timeout=5).topics]
        for future in admin.delete_topics(present, operation_timeout=20).values() if present else []:
            future.result()

    def allow(self, user: str, resource: str, name: str, operations: Sequence[str], *, prefixed: bool = False) -> None:
        """Let a user do something, e.g. ``allow("alice", "topic", "orders", ["read", "describe"])``.

        :param resource: ``topic``, ``group``, ``transactional_id`` or ``broker`` (the cluster; its name is
            ``kafka-cluster``).
        :param operations: names of :class:`AclOperation`, in small letters.
        """
        self._add_acls(AclPermissionType.ALLOW, user, resource, name, operations, prefixed)

    def deny(self, user: str, resource: str, name: str, operations: Sequence[str], *, prefixed: bool = False) -> None:
        """Forbid a user something; takes the same as :meth:`allow` and beats it."""
        self._add_acls(AclPermissionType.DENY, user, resource, name, operations, prefixed)

    def _add_acls(
        self,
        permission: AclPermissionType,
        user: str,
        resource: str,
        name: str,
        operations: Sequence[str],
        prefixed: bool,
    ) -> None:
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        kind = ResourceType[resource.upper()]
        wanted = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", AclOperation[operation.upper()], permission)
            for operation in operations
        ]
        admin = self.admin()
        for future in admin.create_acls(wanted, request_timeout=20).values():
            future.result()
        ours = AclBindingFilter(kind, name, pattern, f"User:{user}", None, AclOperation.ANY, permission)
        # Brokers learn of it a moment later.
        wait_for(f"ACLs of {user} on {name}", lambda: set(wanted) <= set(admin.describe_acls(ours).result()), 20)

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
        return ",".join(f"127.0.0.1:{port}" for port in self._ports[listener])

    def _listeners(self) -> list[str]:
        names = ["PLAINTEXT"]
        if self.sasl:
            names.append("SASL_PLAINTEXT")
        if self.authority is not None:
            names.append("SSL")
            if self.sasl:
                names.append("SASL_SSL")
        if self.mode == "kraft":
            names.append("CONTROLLER")
        return names

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ports = {name: [free_port() for _ in range(self.brokers)] for name in self._listeners()}
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
        """Format the log folders of all brokers for one new cluster id."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for index in range(self.brokers):
            if (self.data_folder(index) / "meta.properties").exists():
                continue
            properties = str(self._properties_path(index))
            command = self._java(
                SMALL_JVM, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", properties
            )
            done = subprocess.run(command, capture_output=True, text=True, timeout=_READY_SECONDS)
            if done.returncode != 0:
                raise HarnessError(f"formatting {self.data_folder(index)} failed:\n{done.stdout}{done.stderr}")

    def _start_broker(self, index: int) -> None:
        command = self._java(self._jvm, "kafka.Kafka", str(self._properties_path(index)))
        name = f"Kafka {self.version} broker {self.node_id(index)}"
        self._processes[index] = start(name, command, self.broker_log(index), cwd=self.folder)

    def _wait_broker(self, index: int, timeout_seconds: float) -> None:
        def listens() -> bool:
            process = self._process(index)
            if not process.running and self._is_still_registered(index):
                process.kill()
                self._start_broker(index)
            self._process(index).check_running()
            return is_listening(self._ports["PLAINTEXT"][index])

        wait_for(f"port of broker {self.node_id(index)}", listens, timeout_seconds)

    def _is_still_registered(self, index: int) -> bool:
        """ZooKeeper mode: the killed former life of a broker still counts, so the new one has given up."""
        return self.mode == "zookeeper" and "NodeExistsException" in tail_of(self.broker_log(index), 60)

    def _create_scram_users(self) -> None:
        admin = self.admin()
        # One request per mechanism: KRaft controllers refuse a user who is named twice in one.
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
        properties = {
            **self._base_properties(index),
            **self._listener_properties(index),
            **(self._zookeeper_properties(index) if self.mode == "zookeeper" else self._kraft_properties(index)),
            **(self._authorizer_properties() if self._authorizer else {}),
            **(self._sasl_properties() if self.sasl else {}),
            **(self._tls_properties() if self.authority is not None else {}),
            **{key: _text(value) for key, value in self._config.items()},
        }
        path = self._properties_path(index)
        path.touch(mode=0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")

    def _base_properties(self, index: int) -> dict[str, str]:
        copies = str(self.brokers)
        return {
            "log.dirs": str(self.data_folder(index)),
            "num.network.threads": "2",
            "num.io.threads": "4",
            "background.threads": "2",
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": str(max(1, self.brokers - 1)),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": str(max(1, self.brokers - 1)),
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.cleaner.backoff.ms": "300",
            "controlled.shutdown.enable": "true" if self.brokers > 1 else "false",
        }

    def _listener_properties(self, index: int) -> dict[str, str]:
        listeners = {name: f"{name}://127.0.0.1:{ports[index]}" for name, ports in self._ports.items()}
        advertised = [address for name, address in listeners.items() if name != "CONTROLLER"]
        return {
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(
                f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in listeners
            ),
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def _zookeeper_properties(self, index: int) -> dict[str, str]:
        return {
            "broker.id": str(self.node_id(index)),
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "zookeeper.session.timeout.ms": str(_ZOOKEEPER_SESSION_MS),
        }

    def _kraft_properties(self, index: int) -> dict[str, str]:
        voters = [f"{self.node_id(i)}@127.0.0.1:{port}" for i, port in enumerate(self._ports["CONTROLLER"])]
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id(index)),
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            # A killed broker may come back when its former life has timed out.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }

    def _authorizer_properties(self) -> dict[str, str]:
        in_zookeeper = "kafka.security.authorizer.AclAuthorizer"
        in_kraft = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        return {
            "authorizer.class.name": in_zookeeper if self.mode == "zookeeper" else in_kraft,
            "super.users": "User:ANONYMOUS;User:admin",
            "allow.everyone.if.no.acl.found": "false",
        }

    def _sasl_properties(self) -> dict[str, str]:
        users = " ".join(f'user_{name}="{password}"' for name, password in sorted(self.users.items()))
        plain = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        properties = {"sasl.enabled.mechanisms": ",".join(["PLAIN", *_SCRAM])}
        for listener in ("sasl_plaintext", *(["sasl_ssl"] if self.authority is not None else [])):
            properties[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
            for mechanism in _SCRAM:
                properties[f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"] = scram
        return properties

    def _tls_properties(self) -> dict[str, str]:
        authority = self._tls()
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.server().both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.certificate),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        }

    def remove(self) -> None:
        """Stop and delete the folder."""
        self.stop(graceful=False)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
