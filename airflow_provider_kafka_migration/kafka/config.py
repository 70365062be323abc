"""One Airflow ``kafka`` connection (librdkafka keys) -> settings for confluent-kafka and for the raw wire.

Both clients must talk to the cluster in the same way. A key that only one of them could honour is therefore an error
that names what to write instead; no key is dropped silently.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kafka_migration.errors import AuthenticationFailed, ConnectionInvalid, MigrationError, Where
from airflow_provider_kafka_migration.kafka.auth import oidc
from airflow_provider_kafka_migration.kafka.auth.kerberos import KerberosSettings
from airflow_provider_kafka_migration.kafka.auth.oidc import OidcSettings
from airflow_provider_kafka_migration.kafka.auth.tokens import source_of

# -- connection keys --------------------------------------------------------------------------------------------------
#
# Which librdkafka keys a connection may have, and what to write instead of those it may not have.


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
KERBEROS_KEYS = frozenset({"sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.keytab"})

#: Keys that the raw wire and confluent-kafka both honour.
HONOURED_KEYS = (
    oidc.OIDC_KEYS
    | KERBEROS_KEYS
    | frozenset(
        """
    bootstrap.servers metadata.broker.list client.id security.protocol
    sasl.mechanism sasl.mechanisms sasl.username sasl.password msk
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
    ssl.key.location ssl.key.pem ssl.key.password
    ssl.endpoint.identification.algorithm enable.ssl.certificate.verification
    """.split()  # noqa: SIM905 - a list of words reads better so
    )
)

#: Keys of ordinary consumers and producers that a shared connection may carry. They tune things that a migration does
#: in its own way or not at all; ignoring them changes neither which cluster it talks to nor what it trusts.
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
    request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.min.time.before.relogin session.timeout.ms
    socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails
    socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms statistics.interval.ms
    sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    transaction.timeout.ms transactional.id
    """.split()  # noqa: SIM905 - a list of words reads better so
)

_OF_JAVA = "(that key belongs to the Java client)"
_PEM_CA = f"write ssl.ca.location with a PEM file {_OF_JAVA}"
_PEM_CLIENT = "write ssl.certificate.location and ssl.key.location with PEM files"
_OAUTH = (
    "write sasl.oauthbearer.method oidc with sasl.oauthbearer.token.endpoint.url, .client.id and .client.secret; for "
    'MSK IAM write "msk": {"region": "..."}'
)
_MSK = 'write sasl.mechanism OAUTHBEARER and "msk": {"region": "..."}: tokens of IAM need nothing else'
_HANDLER = ".callback.handler.class"
_MSK_HANDLER = "IAMClientCallbackHandler"
_METADATA = f"tokens of a cloud's metadata service are not supported: {_OAUTH}"
_CIPHERS = "not supported: the defaults of Python's ssl are used; remove it, or restrict ciphers on the brokers"
_CODE = "a connection is data and cannot contain code: remove it"

HINTS = {
    "sasl.jaas.config": f"write sasl.username and sasl.password {_OF_JAVA}",
    "extra": "write its keys directly, without this one around them",
    **dict.fromkeys(("bootstrap", "broker", "brokers", "hosts", "servers"), "write bootstrap.servers"),
    "username": "write sasl.username",
    "password": "write sasl.password",
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
    "sasl.login.callback.handler.class": _OAUTH,
    "sasl.client.callback.handler.class": _OAUTH,
    "oauth_cb": f"{_CODE}; {_OAUTH}",
    "oauthbearer_token_refresh_cb": f"{_CODE}; {_OAUTH}",
    "enable.sasl.oauthbearer.unsecure.jwt": f"tokens without a signature prove nothing: {_OAUTH}",
    "sasl.oauthbearer.config": _OAUTH,
    "sasl.oauthbearer.metadata.authentication.type": _METADATA,
    "sasl.oauthbearer.client.credentials.client.scope": "write sasl.oauthbearer.scope",
    "sasl.oauthbearer.expected.audience": "that is a key of brokers; remove it",
    "sasl.oauthbearer.expected.issuer": "that is a key of brokers; remove it",
    "sasl.oauthbearer.jwks.endpoint.url": "that is a key of brokers; remove it",
    "sasl.kerberos.kinit.cmd": f"{_CODE}; tickets come from sasl.kerberos.keytab, or from the machine's ticket cache",
    "sasl.kerberos.kinit.command": f"remove it; tickets come from sasl.kerberos.keytab {_OF_JAVA}",
    "sasl.kerberos.domain.name": "not supported: tickets are for the name that the broker advertises; remove it",
    "plugin.library.paths": "plug-ins are not supported: remove it",
    "interceptors": "plug-ins are not supported: remove it",
    "default.api.timeout.ms": f"waits are bounded anyway; remove it {_OF_JAVA}",
    "key.deserializer": f"records are copied as bytes; remove it {_OF_JAVA}",
    "value.deserializer": f"records are copied as bytes; remove it {_OF_JAVA}",
    "key.serializer": f"records are copied as bytes; remove it {_OF_JAVA}",
    "value.serializer": f"records are copied as bytes; remove it {_OF_JAVA}",
    "schema.registry.url": "that belongs to a schema registry's own connection; remove it",
}
#: Hints for whole families of keys, by prefix.
_FAMILIES = {
    "sasl.kerberos.": "write sasl.kerberos.service.name, .principal and .keytab",
    "sasl.oauthbearer.": _OAUTH,
    "test.mock.": "a mock cluster cannot be migrated: remove it",
    "schema.registry.": "that belongs to a schema registry's own connection; remove it",
}
UNKNOWN_HINT = "unknown key; remove it (docs/connections.md lists all keys)"

#: Allowed values of the keys that take only a few, in lower case.
_BOOLEANS = ("true", "false")
_CHOICES = {
    "enable.ssl.certificate.verification": _BOOLEANS,
    "ssl.endpoint.identification.algorithm": ("https", "none"),
}


def problems_of_keys(values: Mapping[str, Any]) -> list[str]:
    """Return the problems of a connection's keys, and of the values of keys that take only a few.

    The values of other keys are never quoted because they may be secrets.
    """
    of_msk = any(str(value).rpartition(".")[2] == _MSK_HANDLER for value in values.values())
    problems = [
        f"{key}: {_MSK if of_msk and key.endswith(_HANDLER) else _hint(key)}"
        for key in sorted(values)
        if not _is_known(key)
    ]
    for key, allowed in _CHOICES.items():
        value = values.get(key)
        if value is not None and str(value).lower() not in allowed:
            of_java = "; Java's empty value is none" if value == "" and "none" in allowed else ""
            problems.append(f"{key} is {str(value)!r}: use one of {', '.join(allowed)}{of_java}")
    structured = [key for key in sorted(HONOURED_KEYS - {"msk"}) if isinstance(values.get(key), Mapping | list)]
    problems += [f"{key} is not text: write its value as a string" for key in structured]
    return problems + [f"{key} {why}" for key in sorted(values) if (why := _why_unmeant(key, values[key]))]


def _why_unmeant(key: str, value: Any) -> str:
    """Return what is wrong with a value that its key may have, and that nobody means; empty if nothing is."""
    if not isinstance(value, str) or key not in HONOURED_KEYS:
        return ""
    if key.endswith(".pem") and "\\n" in value:
        return "has line breaks written as a backslash and an n: write real ones (in JSON: one backslash)"
    if key.startswith("sasl.") and re.fullmatch(r"\$\{[^{}]*\}|\{\{.*\}\}|<[^<>]*>", value.strip()):
        return "is a placeholder that nobody has replaced"
    if key in ("sasl.username", "sasl.password") and value.strip("\r\n\t") != value:
        return "begins or ends with a line break or tab, as a file does: remove it"
    return ""


#: Values that people write, with those that are meant.
_MEANT = {"AWS_MSK_IAM": _MSK, "TLS": "write SSL", "SASL_TLS": "write SASL_SSL", "KERBEROS": "write GSSAPI"}


def _one_of(value: str, allowed: tuple[str, ...]) -> str:
    """Return what to write instead of a value: the one that is meant, if that is clear, or all."""
    plain = re.sub(r"\W|_", "", value)
    near = [item for item in allowed if re.sub(r"\W|_", "", item) == plain]
    if value in _MEANT or near:
        return _MEANT.get(value) or f"write {near[0]}"
    return f"use one of {', '.join(allowed)}"


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
    return f"unknown key; did you mean {near[0]}?" if near else UNKNOWN_HINT


# -- config -----------------------------------------------------------------------------------------------------------


TokenProvider = Callable[[], tuple[str, float]]


@dataclass(frozen=True)
class ClientConfig:
    """How to reach one cluster. ``repr`` hides secrets.

    :param name: ``source`` or ``target``, for messages.
    """

    name: str
    bootstrap: tuple[tuple[str, int], ...]
    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    certificate_location: str | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_location: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    verify_certificate: bool = True
    client_id: str = "kafka-migration"
    msk_region: str | None = None
    #: where OAuth tokens come from; None: another mechanism, or MSK IAM
    oidc: OidcSettings | None = None
    #: where Kerberos tickets come from; None: another mechanism
    kerberos: KerberosSettings | None = None
    #: whether connections refuse every request that could change something on the cluster
    read_only: bool = False

    @classmethod
    def from_librdkafka(cls, keys: Mapping[str, Any], name: str) -> ClientConfig:
        """Read librdkafka keys.

        :raises ConnectionInvalid: a key is missing, unknown or unsupported; the error names what to write instead.
        """
        values = {str(key): value for key, value in keys.items() if value is not None}
        problems = problems_of_keys(values)
        bootstrap, bootstrap_problem = _bootstrap(values)
        problems += [bootstrap_problem] if bootstrap_problem else []
        protocol = str(values.get("security.protocol", "PLAINTEXT")).upper()
        if protocol not in PROTOCOLS:
            problems.append(f"security.protocol is {protocol!r}: {_one_of(protocol, PROTOCOLS)}")
        mechanism = values.get("sasl.mechanism", values.get("sasl.mechanisms"))
        mechanism = str(mechanism).upper() if mechanism else None
        tokens, region, oauth_problems = _oauth(protocol, mechanism, values, bootstrap)
        problems += _sasl_problems(protocol, mechanism, values) + oauth_problems
        problems += _tls_problems(protocol, values)
        if problems:
            raise ConnectionInvalid(
                f"the {name} connection has {len(problems)} problem{'s' if len(problems) > 1 else ''}: "
                + "; ".join(problems),
                where=Where(cluster=name),
                next_step="correct the connection's JSON (the extra field of an Airflow kafka connection)",
                details={"problems": problems},
            )
        return cls(
            name=name,
            bootstrap=bootstrap,
            protocol=protocol,
            mechanism=mechanism if protocol.startswith("SASL") else None,
            username=_text(values, "sasl.username"),
            password=_text(values, "sasl.password"),
            ca_location=None if values.get("ssl.ca.location") == "probe" else _text(values, "ssl.ca.location"),
            ca_pem=_text(values, "ssl.ca.pem"),
            certificate_location=_text(values, "ssl.certificate.location"),
            certificate_pem=_text(values, "ssl.certificate.pem"),
            key_location=_text(values, "ssl.key.location"),
            key_pem=_text(values, "ssl.key.pem"),
            key_password=_text(values, "ssl.key.password"),
            check_hostname=str(values.get("ssl.endpoint.identification.algorithm", "https")).lower() != "none",
            verify_certificate=str(values.get("enable.ssl.certificate.verification", "true")).lower() != "false",
            client_id=str(values.get("client.id", "kafka-migration")),
            msk_region=region,
            oidc=tokens,
            kerberos=_kerberos(values) if mechanism == "GSSAPI" and protocol.startswith("SASL") else None,
        )

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,host:port``."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.bootstrap)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections authenticate by SASL."""
        return self.protocol.startswith("SASL")

    def librdkafka(self) -> dict[str, Any]:
        """Return settings for confluent-kafka clients: bounded waits, quiet logs. They hold secrets: never log them."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": self.client_id,
            "security.protocol": self.protocol,
            "socket.timeout.ms": 30_000,
            "socket.connection.setup.timeout.ms": 10_000,
            "log_level": 0,
            "enable.metrics.push": False,
        }
        if self.mechanism:
            config["sasl.mechanism"] = self.mechanism
        optional = {
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.location": self.ca_location,
            "ssl.ca.pem": self.ca_pem,
            "ssl.certificate.location": self.certificate_location,
            "ssl.certificate.pem": self.certificate_pem,
            "ssl.key.location": self.key_location,
            "ssl.key.pem": self.key_pem,
            "ssl.key.password": self.key_password,
        }
        config.update({key: value for key, value in optional.items() if value is not None})
        if self.uses_tls:
            config["ssl.endpoint.identification.algorithm"] = "https" if self.check_hostname else "none"
            config["enable.ssl.certificate.verification"] = self.verify_certificate
            if self.ca_location is None and self.ca_pem is None:
                # The raw wire trusts what Python trusts, also where SSL_CERT_FILE says so; librdkafka has its own list.
                trusted = ssl.get_default_verify_paths()
                config["ssl.ca.location"] = trusted.cafile or trusted.capath or "probe"
        if self.mechanism == "OAUTHBEARER":
            # librdkafka fetches tokens from OIDC by itself, too, but prints its errors and ignores ssl.ca.location. One
            # source for both clients means one token, one set of authorities, and one kind of error.
            config["oauth_cb"] = lambda _config: self.oauth_token()
        if self.kerberos is not None:
            config["sasl.kerberos.service.name"] = self.kerberos.service
            # librdkafka would fill the ticket cache by a shell command made of principal and keytab, and a connection
            # must not be code. Admin calls fill it themselves (:func:`~.auth.kerberos.fill_ticket_cache`).
            config["sasl.kerberos.min.time.before.relogin"] = 0
        return config

    def oauth_token(self) -> tuple[str, float, str, dict[str, str]]:
        """Return a valid OAuth token as confluent-kafka takes it: token, expiry in seconds since 1970, principal,
        extensions.

        :raises TokenUnavailable: there is none at present.
        :raises AuthenticationFailed: the identity provider refuses us.
        :raises ConnectionInvalid: the token endpoint or a file of the connection cannot be used.
        """
        if self.oidc is None:
            assert self.msk_region is not None
            return (*msk_token_provider(self.msk_region)(), "", {})
        token = source_of(self.oidc).get(self.name)
        return token.value, token.expires_at_epoch, token.principal, dict(self.oidc.extensions)

    @property
    def tls_paths(self) -> tuple[str, ...]:
        """Files of TLS that something else may renew."""
        if not self.uses_tls:
            return ()
        return tuple(filter(None, (self.ca_location, self.certificate_location, self.key_location)))

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings for the raw wire; None without TLS.

        :raises ConnectionInvalid: a certificate or key file cannot be loaded.
        """
        if not self.uses_tls:
            return None
        self._check_files()
        try:
            context = ssl.create_default_context(cafile=self.ca_location, cadata=self.ca_pem)
            context.check_hostname = self.check_hostname and self.verify_certificate
            context.verify_mode = ssl.CERT_REQUIRED if self.verify_certificate else ssl.CERT_NONE
            self._load_client_certificate(context)
        except (OSError, ssl.SSLError) as error:
            raise ConnectionInvalid(
                f"the TLS files of the {self.name} connection cannot be loaded: {error}",
                where=Where(cluster=self.name),
                next_step="check ssl.ca, ssl.certificate and ssl.key (.location or .pem), and ssl.key.password",
            ) from None
        return context

    def _check_files(self) -> None:
        """Name a file that is not there: what :mod:`ssl` says does not."""
        files = {"ca": self.ca_location, "certificate": self.certificate_location, "key": self.key_location}
        for kind, path in files.items():
            if path is None or (os.path.exists(path) and not os.path.isdir(path)):
                continue
            raise ConnectionInvalid(
                f"ssl.{kind}.location of the {self.name} connection is no file on this machine: {path}",
                where=Where(cluster=self.name, path=path),
                next_step="write the absolute path of a PEM file that all machines have that copy (~ and variables are "
                f"not replaced), or its content as ssl.{kind}.pem",
            )

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        if self.certificate_location:
            # Never None: OpenSSL would prompt for the pass phrase of an encrypted key on the terminal and wait.
            context.load_cert_chain(self.certificate_location, self.key_location, self.key_password or "")
        elif self.certificate_pem:
            import tempfile

            # ssl loads certificates only from files. This file exists during this call, and only its owner may read it.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.certificate_pem + "\n" + (self.key_pem or ""))
                file.flush()
                context.load_cert_chain(file.name, None, self.key_password or "")


def _text(values: Mapping[str, Any], key: str) -> str | None:
    """Return a value; None if it is empty, as a form writes what nobody has filled in."""
    value = values.get(key)
    return None if value in (None, "") else str(value)


def _bootstrap(values: Mapping[str, Any]) -> tuple[tuple[tuple[str, int], ...], str | None]:
    text = values.get("bootstrap.servers", values.get("metadata.broker.list"))
    if not text:
        return (), "bootstrap.servers is missing: write host:port,host:port"
    servers = []
    for part in str(text).split(","):
        found = _ADDRESS.fullmatch(part.strip())
        host = "" if found is None else found["bare"] or found["v6"]
        if found is None or not _is_host(host) or not 0 < int(found["port"]) < 65536:
            return (), f"bootstrap.servers {_why_no_address(part.strip())}"
        servers.append((host, int(found["port"])))
    return tuple(servers), None


#: ``host:port``, with a protocol or listener before it or not. Brackets or not around an address of IPv6.
_ADDRESS = re.compile(
    r"(?:(?!https?:)[a-z][\w+.-]*://)?(?:\[(?P<v6>[^\[\]]+)\]|(?P<bare>[\w.:%-]+)):(?P<port>\d{1,5})",
    re.IGNORECASE,
)
#: What people write instead of an address, with what to write. Nothing is quoted that could be a secret.
_NO_ADDRESSES = (
    (r"\$|<|>", "has a placeholder that nobody has replaced: write host:port"),
    (r"@", "has a user or password before an '@': write only host:port, and sasl.username and sasl.password"),
    (
        r"[\"'{}\u2018-\u201f]|^\[(?![^\]]*:[^\]]*\]:)",
        "has quotation marks or brackets around addresses: write host:port,host:port",
    ),
    (r";", "separates addresses by ';': write commas, host:port,host:port"),
    (r"\|", "separates addresses by '|': write commas, host:port,host:port"),
    (r"\S\s+\S", "separates addresses by spaces or line breaks: write commas, host:port,host:port"),
    (r"^$", "has nothing between two commas, or after the last one: write host:port,host:port"),
    (r"^https?://", "begins with the address of a web service: write the brokers' host:port, without http"),
    (r":\d+/", "has a path behind the port: write only host:port"),
)


def _why_no_address(part: str) -> str:
    for pattern, why in _NO_ADDRESSES:
        if re.search(pattern, part):
            return why
    if re.fullmatch(r"[\w.-]+:?", part):
        return f"has {part!r} without a port: write host:port, for instance {part.rstrip(':')}:9092"
    return f"has {part!r}: write host:port"


def _is_host(host: str) -> bool:
    """Whether it is a name or an address; only one of IPv6 has colons."""
    if ":" not in host:
        return True
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _msk_region(msk: Any, bootstrap: tuple[tuple[str, int], ...]) -> str | None:
    if isinstance(msk, Mapping) and msk.get("region"):
        return str(msk["region"])
    for host, _ in bootstrap:
        parts = host.split(".")
        for index, part in enumerate(parts):
            if part in ("kafka", "kafka-serverless") and "amazonaws" in parts[index + 1 :]:
                return parts[index + 1]
    return None


def _oauth(
    protocol: str, mechanism: str | None, values: Mapping[str, Any], bootstrap: tuple[tuple[str, int], ...]
) -> tuple[OidcSettings | None, str | None, list[str]]:
    """Return where tokens come from: an identity provider, or the region of MSK IAM; and the problems."""
    if not protocol.startswith("SASL") or mechanism != "OAUTHBEARER":
        given = sorted(key for key in values if key in oidc.OIDC_KEYS) if oidc.uses_oidc(values) else []
        return None, None, [f"{given[0]} is given, but sasl.mechanism is not OAUTHBEARER"] if given else []
    if oidc.uses_oidc(values):
        settings, problems = oidc.settings_of(values)
        if values.get("msk"):
            problems.append("msk: give either this or sasl.oauthbearer.method oidc")
        return settings, None, problems
    region = _msk_region(values.get("msk"), bootstrap)
    problems = [] if region else [f"OAUTHBEARER needs a source of tokens: {_OAUTH}"]
    return (
        None,
        region,
        problems
        if protocol == "SASL_SSL"
        else [
            *problems,
            "OAUTHBEARER needs security.protocol SASL_SSL",
        ],
    )


def _kerberos(values: Mapping[str, Any]) -> KerberosSettings:
    texts = {key: _text(values, f"sasl.kerberos.{key}") or "" for key in ("service.name", "principal", "keytab")}
    # librdkafka takes a bare path only; gssapi's own notation is accepted, too.
    return KerberosSettings(texts["service.name"] or "kafka", texts["principal"], texts["keytab"].removeprefix("FILE:"))


def _sasl_problems(protocol: str, mechanism: str | None, values: Mapping[str, Any]) -> list[str]:
    if not protocol.startswith("SASL"):
        # The credentials would not be used: we would talk to the broker without them, or not at all.
        given = [key for key in ("sasl.username", "sasl.password", *sorted(KERBEROS_KEYS)) if values.get(key)]
        if not given or protocol not in PROTOCOLS:
            return []
        return [f"{given[0]} is given, but security.protocol is {protocol}: write SASL_SSL or SASL_PLAINTEXT"]
    if mechanism is None:
        return ["sasl.mechanism is missing: use one of " + ", ".join(MECHANISMS)]
    if mechanism not in MECHANISMS:
        return [f"sasl.mechanism is {mechanism!r}: {_one_of(mechanism, MECHANISMS)}"]
    kerberos = sorted(key for key in values if key in KERBEROS_KEYS)
    if kerberos and mechanism != "GSSAPI":
        return [f"{kerberos[0]} is given, but sasl.mechanism is not GSSAPI"]
    if mechanism in ("OAUTHBEARER", "GSSAPI"):
        return []
    return [f"{key} is missing" for key in ("sasl.username", "sasl.password") if not values.get(key)]


def _tls_problems(protocol: str, values: Mapping[str, Any]) -> list[str]:
    if protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        given = sorted(
            key for key in values if key.startswith("ssl.") and key.split(".")[1] in ("ca", "certificate", "key")
        )
        secure = "SASL_SSL" if protocol == "SASL_PLAINTEXT" else "SSL (or SASL_SSL)"
        return [f"{given[0]} is given, but security.protocol is {protocol}: write {secure}"] if given else []
    problems = []
    for kind in ("location", "pem"):
        pair = (f"ssl.certificate.{kind}", f"ssl.key.{kind}")
        missing = [key for key in pair if not values.get(key)]
        if len(missing) == 1:
            problems.append(f"{missing[0]} is missing: a client certificate and its key go together")
    return problems


def msk_token_provider(region: str) -> TokenProvider:
    """Provide MSK IAM tokens from AWS's signer library: ``() -> (token, expiry as seconds since 1970)``."""

    def provide() -> tuple[str, float]:
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        except ImportError:
            raise ConnectionInvalid(
                "MSK IAM needs the package aws-msk-iam-sasl-signer-python",
                next_step="pip install 'airflow-provider-kafka-migration[msk]' on every machine that copies",
            ) from None
        try:
            token, expiry_ms = MSKAuthTokenProvider.generate_auth_token(region)
        except MigrationError:
            raise
        except Exception as error:
            # The library may raise anything. The error's text may name credentials; its type does not.
            raise AuthenticationFailed(
                f"a token for MSK IAM could not be signed: {type(error).__name__}",
                where=Where(path=f"msk region {region}"),
                next_step="give this machine AWS credentials (environment, profile or role) that allow "
                "kafka-cluster:Connect",
            ) from None
        return str(token), float(expiry_ms) / 1000

    return provide
