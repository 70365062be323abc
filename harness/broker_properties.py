"""A broker's ``server.properties``: small, fast to start, ACLs enforced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.certificates import Authority
from harness.processes import LOOPBACK

#: ZooKeeper forgets a killed broker after this time; one that restarts earlier ends itself and is started again.
_ZOOKEEPER_SESSION_MS = 4000
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True)
class Layout:
    """Ports, users and certificates of a cluster's brokers.

    :param ports: listener name -> port of each broker.
    :param zookeeper_port: None: KRaft mode.
    :param users: name -> password of SASL/PLAIN; None: no SASL.
    :param authority: None: no TLS.
    :param advertised: listener name -> advertised port of each broker, where it differs from the listener's port.
    :param address: where all brokers listen.
    """

    node_id: int
    index: int
    data: Path
    ports: Mapping[str, list[int]]
    zookeeper_port: int | None
    authorizer: bool
    users: Mapping[str, str] | None
    authority: Authority | None
    advertised: Mapping[str, list[int]] = field(default_factory=dict)
    address: str = LOOPBACK

    @property
    def brokers(self) -> int:
        return len(self.ports["PLAINTEXT"])


def broker_properties(layout: Layout, config: Mapping[str, str | int | bool]) -> dict[str, str]:
    """All properties of one broker; ``config`` overrides the defaults."""
    return {
        **_base(layout),
        **_listeners(layout),
        **(_kraft(layout) if layout.zookeeper_port is None else _zookeeper(layout)),
        **(_authorizer(layout) if layout.authorizer else {}),
        **_sasl(layout),
        **_tls(layout),
        **{key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()},
    }


def _base(layout: Layout) -> dict[str, str]:
    copies, in_sync = str(layout.brokers), str(max(1, layout.brokers - 1))
    return {
        "log.dirs": str(layout.data),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "log.cleaner.backoff.ms": "300",
        # Tests write records of past years. Only those that are about retention want to lose them.
        "log.retention.check.interval.ms": "86400000",
        "controlled.shutdown.enable": "true" if layout.brokers > 1 else "false",
    }


def _listeners(layout: Layout) -> dict[str, str]:
    addresses = {name: f"{name}://{layout.address}:{ports[layout.index]}" for name, ports in layout.ports.items()}
    told = {
        name: f"{name}://{layout.address}:{layout.advertised.get(name, ports)[layout.index]}"
        for name, ports in layout.ports.items()
        if name != "CONTROLLER"
    }
    plaintext = ("CONTROLLER", "PROXIED")
    protocols = (f"{name}:{'PLAINTEXT' if name in plaintext else name}" for name in addresses)
    return {
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(told.values()),
        "listener.security.protocol.map": ",".join(protocols),
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _zookeeper(layout: Layout) -> dict[str, str]:
    return {
        "broker.id": str(layout.node_id),
        "zookeeper.connect": f"{layout.address}:{layout.zookeeper_port}",
        "zookeeper.session.timeout.ms": str(_ZOOKEEPER_SESSION_MS),
    }


def _kraft(layout: Layout) -> dict[str, str]:
    voters = [f"{index + 1}@{layout.address}:{port}" for index, port in enumerate(layout.ports["CONTROLLER"])]
    return {
        "process.roles": "broker,controller",
        "node.id": str(layout.node_id),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
        # A killed broker can register again when its former registration has timed out.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }


def _authorizer(layout: Layout) -> dict[str, str]:
    in_zookeeper = "kafka.security.authorizer.AclAuthorizer"
    in_kraft = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    return {
        "authorizer.class.name": in_kraft if layout.zookeeper_port is None else in_zookeeper,
        # ANONYMOUS is every client of the plaintext listener, including the brokers. Nobody else may use topics without
        # ACLs: allow.everyone.if.no.acl.found is not set, because brokers hide its value once it is.
        "super.users": "User:ANONYMOUS;User:admin",
    }


def _sasl(layout: Layout) -> dict[str, str]:
    if layout.users is None:
        return {}
    users = " ".join(f'user_{name}="{password}"' for name, password in sorted(layout.users.items()))
    plain = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    properties = {"sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM_MECHANISMS])}
    for listener in ("sasl_plaintext", *(["sasl_ssl"] if layout.authority is not None else [])):
        properties[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
        for mechanism in SCRAM_MECHANISMS:
            properties[f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"] = scram
    return properties


def _tls(layout: Layout) -> dict[str, str]:
    if layout.authority is None:
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(layout.authority.server().both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(layout.authority.certificate),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
    }
