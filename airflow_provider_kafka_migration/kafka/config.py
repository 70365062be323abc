"""One Airflow ``kafka`` connection (librdkafka keys) -> settings for confluent-kafka and for the raw wire.

Both must speak to the cluster in the same way, so a key that only one of them could honour is an error that says
what to write instead; it is never dropped silently.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kafka_migration.errors import AuthenticationFailed, ConnectionInvalid, MigrationError, Where
from airflow_provider_kafka_migration.kafka.connection_keys import MECHANISMS, PROTOCOLS, problems_of_keys

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
    #: connections made with this refuse every request that could change something on the cluster
    read_only: bool = False

    @classmethod
    def from_librdkafka(cls, keys: Mapping[str, Any], name: str) -> ClientConfig:
        """Read librdkafka keys.

        :raises ConnectionInvalid: a missing, unknown or unsupported key, with what to write instead.
        """
        values = {str(key): value for key, value in keys.items() if value is not None}
        problems = problems_of_keys(values)
        bootstrap, bootstrap_problem = _bootstrap(values)
        problems += [bootstrap_problem] if bootstrap_problem else []
        protocol = str(values.get("security.protocol", "PLAINTEXT")).upper()
        if protocol not in PROTOCOLS:
            problems.append(f"security.protocol is {protocol!r}: use one of {', '.join(PROTOCOLS)}")
        mechanism = values.get("sasl.mechanism", values.get("sasl.mechanisms"))
        mechanism = str(mechanism).upper() if mechanism else None
        region = _msk_region(values.get("msk"), bootstrap) if mechanism == "OAUTHBEARER" else None
        problems += _sasl_problems(protocol, mechanism, values, region)
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
        )

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,host:port``."""
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections authenticate by SASL."""
        return self.protocol.startswith("SASL")

    def librdkafka(self) -> dict[str, Any]:
        """Settings for confluent-kafka clients: bounded waits, quiet logs. Holds secrets: never log it."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": self.client_id,
            "security.protocol": self.protocol,
            "socket.timeout.ms": 30_000,
            "socket.connection.setup.timeout.ms": 10_000,
            "log_level": 0,
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
        if self.msk_region:
            provider = msk_token_provider(self.msk_region)
            config["oauth_cb"] = lambda _config: provider()
        return config

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS settings for the raw wire; None without TLS.

        :raises ConnectionInvalid: a certificate or key file that cannot be loaded.
        """
        if not self.uses_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_location, cadata=self.ca_pem)
            context.check_hostname = self.check_hostname and self.verify_certificate
            context.verify_mode = ssl.CERT_REQUIRED if self.verify_certificate else ssl.CERT_NONE
            self._load_client_certificate(context)
        except (OSError, ssl.SSLError) as error:
            raise ConnectionInvalid(
                f"the TLS files of the {self.name} connection cannot be loaded: {error}",
                where=Where(cluster=self.name),
                next_step="check ssl.ca.location, ssl.certificate.location, ssl.key.location and ssl.key.password",
            ) from None
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        if self.certificate_location:
            # Never None: OpenSSL would ask for the pass phrase of an encrypted key on the terminal, and wait.
            context.load_cert_chain(self.certificate_location, self.key_location, self.key_password or "")
        elif self.certificate_pem:
            import tempfile

            # ssl loads certificates from files only; the file lives for this call and only its owner may read it.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.certificate_pem + "\n" + (self.key_pem or ""))
                file.flush()
                context.load_cert_chain(file.name, None, self.key_password or "")


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return None if value is None else str(value)


def _bootstrap(values: Mapping[str, Any]) -> tuple[tuple[tuple[str, int], ...], str | None]:
    text = values.get("bootstrap.servers", values.get("metadata.broker.list"))
    if not text:
        return (), "bootstrap.servers is missing: write host:port,host:port"
    servers = []
    for part in str(text).split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            return (), f"bootstrap.servers has {part.strip()!r}: write host:port"
        servers.append((host.split("//")[-1].strip("[]"), int(port)))
    return tuple(servers), None


def _msk_region(msk: Any, bootstrap: tuple[tuple[str, int], ...]) -> str | None:
    if isinstance(msk, Mapping) and msk.get("region"):
        return str(msk["region"])
    for host, _ in bootstrap:
        parts = host.split(".")
        for index, part in enumerate(parts):
            if part in ("kafka", "kafka-serverless") and "amazonaws" in parts[index + 1 :]:
                return parts[index + 1]
    return None


def _sasl_problems(
    protocol: str, mechanism: str | None, values: Mapping[str, Any], msk_region: str | None
) -> list[str]:
    if not protocol.startswith("SASL"):
        # Credentials that nobody would use: the broker would be spoken to without them, or not at all.
        given = [key for key in ("sasl.username", "sasl.password") if values.get(key)]
        if not given or protocol not in PROTOCOLS:
            return []
        return [f"{given[0]} is given, but security.protocol is {protocol}: write SASL_SSL or SASL_PLAINTEXT"]
    if mechanism is None:
        return ["sasl.mechanism is missing: use one of " + ", ".join(MECHANISMS)]
    if mechanism not in MECHANISMS:
        return [f"sasl.mechanism is {mechanism!r}: use one of {', '.join(MECHANISMS)}"]
    if mechanism == "OAUTHBEARER":
        problems = [] if msk_region else ['OAUTHBEARER is supported for MSK IAM: add "msk": {"region": "..."}']
        return problems if protocol == "SASL_SSL" else [*problems, "OAUTHBEARER needs security.protocol SASL_SSL"]
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
    """Tokens for MSK IAM by AWS' signer library: ``() -> (token, expiry as seconds since 1970)``."""

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
            # Whatever the library met: its text may name credentials, its kind does not.
            raise AuthenticationFailed(
                f"no token for MSK IAM could be signed: {type(error).__name__}",
                where=Where(path=f"msk region {region}"),
                next_step="give this machine AWS credentials (environment, profile or role) that allow "
                "kafka-cluster:Connect",
            ) from None
        return str(token), float(expiry_ms) / 1000

    return provide
