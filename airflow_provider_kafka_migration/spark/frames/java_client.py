"""The settings of the Java client for a connection, as Spark's Kafka source takes them.

A connection is written for librdkafka. What Java's client calls otherwise is translated; what it cannot do is
:class:`ConnectionInvalid`. Certificates are passed as text, because executors on other machines lack the driver's
files; a keytab is a path, which each machine needs.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where
from airflow_provider_kafka_migration.kafka.auth.oidc import OidcSettings
from airflow_provider_kafka_migration.kafka.config import ClientConfig

_SECURITY = "org.apache.kafka.common.security"
_PASSWORD_MODULES = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
}
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
_OAUTH = f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLER = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
#: Of Amazon's library aws-msk-iam-auth, which has to be on Spark's class path.
_MSK = "software.amazon.msk.auth.iam.IAMLoginModule"
_MSK_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_GO_ON = "to go on without this reader, set validation.independent: off, or leave --independent out"


def java_settings(config: ClientConfig) -> dict[str, str]:
    """Return the Java client's settings for a connection. They hold secrets: never log them, never put them in a conf.

    :param config: the connection, as librdkafka's keys describe it.
    :raises ConnectionInvalid: the connection uses something that this reader cannot express.
    """
    settings = {"bootstrap.servers": config.bootstrap_servers, "security.protocol": config.protocol}
    try:
        if config.mechanism:
            settings["sasl.mechanism"] = config.mechanism
            settings.update(_sasl(config))
        if config.uses_tls:
            settings.update(_tls(config))
    except OSError as error:
        why = f"{error.filename} cannot be read: {error.strerror}"
        raise _unfit(config, why, "correct the file's path or its rights where the driver runs") from None
    return settings


# -- SASL -------------------------------------------------------------------------------------------------------------


def _sasl(config: ClientConfig) -> dict[str, str]:
    module = _PASSWORD_MODULES.get(config.mechanism or "")
    if module is not None:
        return {"sasl.jaas.config": _jaas(module, {"username": config.username, "password": config.password})}
    if config.kerberos is not None:
        return _kerberos(config)
    if config.msk_region is not None:
        # Amazon's own mechanism, on the same port as OAUTHBEARER; the region is in the brokers' names.
        return {
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": _jaas(_MSK, {}),
            "sasl.client.callback.handler.class": _MSK_HANDLER,
        }
    if config.oidc is not None:
        return _oauth(config, config.oidc)
    raise _unfit(config, f"the mechanism {config.mechanism} has no settings for the Java client")


def _kerberos(config: ClientConfig) -> dict[str, str]:
    found = config.kerberos
    assert found is not None
    options: dict[str, str | None] = {"useTicketCache": "true", "doNotPrompt": "true"}
    if found.keytab:
        if not found.principal:
            raise _unfit(
                config,
                "Java does not take the first principal of a keytab by itself",
                "write sasl.kerberos.principal into the connection",
            )
        options = {"useKeyTab": "true", "storeKey": "true", "keyTab": found.keytab, "doNotPrompt": "true"}
    options["principal"] = found.principal or None
    return {"sasl.kerberos.service.name": found.service, "sasl.jaas.config": _jaas(_KERBEROS, options)}


def _oauth(config: ClientConfig, oidc: OidcSettings) -> dict[str, str]:
    if oidc.assertion is not None:
        raise _unfit(
            config,
            "the Java client asks for tokens with a client id and a secret only, and not with a signed assertion",
            "give the reader a connection with sasl.oauthbearer.client.id and .client.secret",
        )
    options: dict[str, str | None] = {
        "clientId": oidc.client_id,
        "clientSecret": oidc.client_secret,
        "scope": oidc.scope or None,
        **{f"extension_{name}": value for name, value in oidc.extensions},
    }
    authorities = _authorities(oidc.ca_pem, oidc.ca_location, with_machine=oidc.trusts_machine)
    if authorities and oidc.token_url.lower().startswith("https:"):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    settings = {
        "sasl.oauthbearer.token.endpoint.url": oidc.token_url,
        "sasl.login.callback.handler.class": _OAUTH_HANDLER,
        "sasl.jaas.config": _jaas(_OAUTH, options),
    }
    if oidc.subject_claim != "sub":
        settings["sasl.oauthbearer.sub.claim.name"] = oidc.subject_claim
    return settings


def _jaas(module: str, options: dict[str, str | None]) -> str:
    given = [f"{name}={_quoted(value)}" for name, value in options.items() if value is not None]
    return " ".join([module, "required", *given]) + ";"


def _quoted(text: str) -> str:
    """Quote a value as JAAS wants it: in one line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


# -- TLS --------------------------------------------------------------------------------------------------------------


def _tls(config: ClientConfig) -> dict[str, str]:
    if not config.verify_certificate:
        raise _unfit(
            config,
            "the Java client cannot leave certificates unchecked (enable.ssl.certificate.verification)",
            "give the brokers' authority as ssl.ca.location",
        )
    settings = {"ssl.endpoint.identification.algorithm": "https" if config.check_hostname else ""}
    is_own = bool(config.ca_pem or config.ca_location)
    authorities = _authorities(config.ca_pem, config.ca_location, with_machine=not is_own)
    if is_own and not authorities:
        raise _unfit(config, "its authority holds no certificate in PEM", "give a PEM file as ssl.ca.location")
    if authorities:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    certificate = config.certificate_pem or _text(config.certificate_location)
    key = config.key_pem or _text(config.key_location)
    if certificate and key:
        if not any(mark in key for mark in _PKCS8):
            raise _unfit(config, "the Java client reads keys in PKCS #8 only", "convert the key: openssl pkcs8 -topk8")
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
        if config.key_password:
            settings["ssl.key.password"] = config.key_password
    return settings


def _text(location: str | None) -> str:
    return Path(location).read_text(encoding="utf-8") if location else ""


def _authorities(pem: str | None, location: str | None, *, with_machine: bool) -> str:
    """Return the certificates of authorities as one PEM text; empty: leave it to Java's own list.

    :param location: a PEM file or a folder.
    :param with_machine: those that this machine trusts, too: Python's list, which the other clients use. Java's own is
        another one, and lacks authorities of a company.
    """
    texts = [pem] if pem else []
    texts += _files(location) if location else []
    if with_machine:
        paths = ssl.get_default_verify_paths()
        place = paths.cafile or paths.capath
        texts += _files(place) if place else []
    # Folders have each certificate under several names.
    found = dict.fromkeys(block for text in texts for block in _CERTIFICATE.findall(text))
    return "\n".join(found)


def _files(location: str) -> list[str]:
    """Return the texts of a file, or of all files of a folder."""
    path = Path(location)
    names = sorted(path.iterdir()) if path.is_dir() else [path]
    return [name.read_text(encoding="utf-8", errors="replace") for name in names if not name.is_dir()]


def _unfit(config: ClientConfig, why: str, instead: str = "") -> ConnectionInvalid:
    return ConnectionInvalid(
        f"Spark's Kafka source cannot use the {config.name} connection: {why}",
        where=Where(cluster=config.name),
        next_step=f"{instead}; {_GO_ON}" if instead else _GO_ON,
    )
