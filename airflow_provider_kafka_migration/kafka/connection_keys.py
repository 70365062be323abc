"""Which librdkafka keys a connection may have, and what to write in place of those it may not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

#: Keys that the raw wire and confluent-kafka both honour.
HONOURED_KEYS = frozenset(
    """
    bootstrap.servers metadata.broker.list client.id security.protocol
    sasl.mechanism sasl.mechanisms sasl.username sasl.password msk
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
    ssl.key.location ssl.key.pem ssl.key.password
    ssl.endpoint.identification.algorithm enable.ssl.certificate.verification
    """.split()  # noqa: SIM905 - a list of words reads better so
)

#: Keys of ordinary consumers and producers that a shared connection may carry. They tune what a migration does in its
#: own way or not at all, so that ignoring them changes neither whom it talks to nor what it trusts.
KEYS_WITHOUT_EFFECT = frozenset(
    """
    acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.enable auto.commit.interval.ms auto.offset.reset batch.num.messages batch.size broker.address.family
    broker.address.ttl broker.version.fallback check.crcs client.dns.lookup client.rack compression.codec
    compression.level compression.type connections.max.idle.ms coordinator.query.interval.ms debug
    delivery.report.only.error delivery.timeout.ms enable.auto.commit enable.auto.offset.store enable.gapless.guarantee
    enable.idempotence enable.metrics.push enable.partition.eof enable.random.seed enable.sparse.connections
    fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
    heartbeat.interval.ms isolation.level linger.ms log.connection.close log.queue log.thread.name log_level
    max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metadata.request.timeout.ms
    partition.assignment.strategy partitioner queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms session.timeout.ms
    socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails
    socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms statistics.interval.ms
    sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    transaction.timeout.ms transactional.id
    """.split()  # noqa: SIM905 - a list of words reads better so
)

_OF_JAVA = "(that key is of the Java client)"
_PEM_CA = f"write ssl.ca.location with a PEM file {_OF_JAVA}"
_PEM_CLIENT = "write ssl.certificate.location and ssl.key.location with PEM files"
_MSK = 'for MSK IAM write sasl.mechanism OAUTHBEARER and "msk": {"region": "..."}'
_ONLY_MSK = 'only MSK IAM is supported for OAUTHBEARER: write "msk": {"region": "..."}'
_KERBEROS = "Kerberos is not supported: use SCRAM, PLAIN, OAUTHBEARER (MSK IAM) or mTLS"
_CIPHERS = "not supported: the defaults of Python's ssl are used; remove it, or restrict ciphers on the brokers"
_CODE = "a connection is data and cannot hold code: remove it"

HINTS = {
    "sasl.jaas.config": f"write sasl.username and sasl.password {_OF_JAVA}",
    "ssl.truststore.location": _PEM_CA,
    "ssl.truststore.password": _PEM_CA,
    "ssl.truststore.type": _PEM_CA,
    "ssl.truststore.certificates": f"write ssl.ca.pem {_OF_JAVA}",
    "ssl.keystore.location": _PEM_CLIENT,
    "ssl.keystore.password": f"{_PEM_CLIENT}; the key's pass phrase is ssl.key.password",
    "ssl.keystore.type": _PEM_CLIENT,
    "ssl.keystore.key": f"write ssl.key.pem {_OF_JAVA}",
    "ssl.keystore.certificate.chain": f"write ssl.certificate.pem {_OF_JAVA}",
    "ssl.key.password.file": "write ssl.key.password",
    "ssl.ca": "write ssl.ca.location or ssl.ca.pem",
    "ssl.certificate": "write ssl.certificate.location or ssl.certificate.pem",
    "ssl.key": "write ssl.key.location or ssl.key.pem",
    "ssl_ca": "write ssl.ca.location or ssl.ca.pem",
    "ssl_cafile": "write ssl.ca.location",
    "ssl_certfile": "write ssl.certificate.location",
    "ssl_keyfile": "write ssl.key.location",
    "ssl_certificate": "write ssl.certificate.location or ssl.certificate.pem",
    "ssl_key": "write ssl.key.location or ssl.key.pem",
    "ssl.ca.certificate.stores": "write ssl.ca.location with a PEM file (that key is for Windows)",
    "ssl.crl.location": "revocation lists are not supported: remove it, and revoke by the authority in ssl.ca.location",
    "ssl.cipher.suites": _CIPHERS,
    "ssl.curves.list": _CIPHERS,
    "ssl.sigalgs.list": _CIPHERS,
    "ssl.protocol": _CIPHERS,
    "ssl.enabled.protocols": _CIPHERS,
    "ssl.engine.id": _PEM_CLIENT,
    "ssl.engine.location": _PEM_CLIENT,
    "ssl.providers": _PEM_CLIENT,
    "ssl.certificate.verify_cb": _CODE,
    "sasl_plain_username": "write sasl.username",
    "sasl_plain_password": "write sasl.password",
    "sasl.user": "write sasl.username",
    "sasl.login.callback.handler.class": _MSK,
    "sasl.client.callback.handler.class": _MSK,
    "oauth_cb": f"{_CODE}; {_MSK}",
    "oauthbearer_token_refresh_cb": f"{_CODE}; {_MSK}",
    "enable.sasl.oauthbearer.unsecure.jwt": _ONLY_MSK,
    "plugin.library.paths": "plug-ins are not supported: remove it",
    "interceptors": "plug-ins are not supported: remove it",
    "default.api.timeout.ms": f"waits are bounded anyway; remove it {_OF_JAVA}",
    "key.deserializer": f"records are copied as bytes; remove it {_OF_JAVA}",
    "value.deserializer": f"records are copied as bytes; remove it {_OF_JAVA}",
    "key.serializer": f"records are copied as bytes; remove it {_OF_JAVA}",
    "value.serializer": f"records are copied as bytes; remove it {_OF_JAVA}",
    "schema.registry.url": "that belongs to a schema registry's own connection; remove it",
}
#: The same for whole families of keys, by how they begin.
_FAMILIES = {
    "sasl.kerberos.": _KERBEROS,
    "sasl.oauthbearer.": _ONLY_MSK,
    "https.ca.": _ONLY_MSK,
    "test.mock.": "a mock cluster cannot be migrated: remove it",
    "schema.registry.": "that belongs to a schema registry's own connection; remove it",
}
UNKNOWN_HINT = "not a key that is known here; remove it (docs/connections.md lists all)"

#: Values of keys that take few, in small letters.
_BOOLEANS = ("true", "false")
_CHOICES = {
    "enable.ssl.certificate.verification": _BOOLEANS,
    "ssl.endpoint.identification.algorithm": ("https", "none"),
}


def problems_of_keys(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the keys of a connection, and with the values of those that take few.

    Values of other keys are never quoted: they may be secrets.
    """
    problems = [f"{key}: {_hint(key)}" for key in sorted(values) if not _is_known(key)]
    for key, allowed in _CHOICES.items():
        value = values.get(key)
        if value is not None and str(value).lower() not in allowed:
            problems.append(f"{key} is {str(value)!r}: use one of {', '.join(allowed)}")
    structured = [key for key in sorted(HONOURED_KEYS - {"msk"}) if isinstance(values.get(key), Mapping | list)]
    return problems + [f"{key} is not text: write its value as a string" for key in structured]


def _is_known(key: str) -> bool:
    return key in HONOURED_KEYS or key in KEYS_WITHOUT_EFFECT


def _hint(key: str) -> str:
    for name in (key, key.lower(), key.lower().replace("_", "."), key.lower().replace("-", ".")):
        if name in HINTS:
            return HINTS[name]
        if name in HONOURED_KEYS:
            return f"write {name}"
    if key.endswith("_cb"):
        return _CODE
    family = next((hint for begin, hint in _FAMILIES.items() if key.startswith(begin)), None)
    if family is not None:
        return family
    near = difflib.get_close_matches(key.lower(), sorted(HONOURED_KEYS), n=1, cutoff=0.8)
    return f"not a key that is known here; did you mean {near[0]}?" if near else UNKNOWN_HINT
