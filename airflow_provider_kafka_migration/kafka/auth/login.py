"""The SASL dialogue with one broker, for the first login of a connection and for each renewal (KIP-368)."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from airflow_provider_kafka_migration.errors import AuthenticationFailed, MigrationError, Where
from airflow_provider_kafka_migration.kafka.auth.kerberos import KerberosLogin
from airflow_provider_kafka_migration.kafka.auth.tokens import source_of

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.kafka.config import ClientConfig

#: No broker needs more messages; one that asks for ever is none.
_MOST_MESSAGES = 20


class Message(NamedTuple):
    """A request of the dialogue, and how its answer is read. Both have version 1: not flexible, with a lifetime."""

    request: Any
    response_type: Any
    version: int = 1


Dialogue = Generator[Message, Any, float]


class Login:
    """One login to one broker.

    :param host: the broker's name, which is part of its Kerberos principal.
    :param where: for errors.
    """

    def __init__(self, config: ClientConfig, host: str, where: Where) -> None:
        self._config = config
        self._host = host
        self._where = where
        self._token = ""

    def dialogue(self) -> Dialogue:
        """Yield one message after the other and take its answer; return the session's lifetime in seconds, 0: no end.

        :raises AuthenticationFailed: the broker refuses the login.
        :raises TokenUnavailable: there is no OAuth token at present.
        :raises KerberosUnavailable: there is no Kerberos ticket at present.
        """
        mechanism = self._mechanism()
        name = self._config.mechanism
        handshake = yield Message(SaslHandshakeRequest(mechanism=name), SaslHandshakeResponse)
        if handshake.error_code:
            offers = ", ".join(handshake.mechanisms)
            raise AuthenticationFailed(
                f"the broker does not offer {name}; it offers {offers or 'nothing else'}",
                where=self._where,
                next_step="correct sasl.mechanism of the connection",
            )
        try:
            for _ in range(_MOST_MESSAGES):
                request = SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes())
                answer = yield Message(request, SaslAuthenticateResponse)
                if answer.error_code:
                    raise self._refused(answer.error_message)
                mechanism.receive(answer.auth_bytes)
                if mechanism.is_done():
                    break
        except (ValueError, RuntimeError, AssertionError, LookupError) as error:
            raise self._refused(str(error)) from None
        if not mechanism.is_done() or not mechanism.is_authenticated():
            raise self._refused("not authenticated")
        # 0: a session without end; brokers before Kafka 2.2 do not say.
        return float(getattr(answer, "session_lifetime_ms", 0) or 0) / 1000

    def forget_token(self) -> bool:
        """Use the OAuth token of this login no more; return whether a login with another one is worth a try."""
        oidc = self._config.oidc
        return oidc is not None and bool(self._token) and source_of(oidc).forget(self._token)

    def closed(self) -> AuthenticationFailed:
        """Return the error for a broker that has closed the connection: some do so instead of an answer."""
        return AuthenticationFailed(
            "the broker closed the connection during the SASL login", where=self._where, next_step=self._advice()
        )

    def _mechanism(self) -> Any:
        config = self._config
        if config.kerberos is not None:
            return KerberosLogin(config.kerberos, self._host, self._where)
        # kafka-python warns about passwords in plain text otherwise, at each login.
        options: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": config.mechanism}
        if config.mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = _Tokens(self)
        else:
            options["sasl_plain_username"] = _sasl_name(config.username or "", config.mechanism or "")
            options["sasl_plain_password"] = config.password
        return get_sasl_mechanism(config.mechanism)(**options)

    def token(self) -> str:
        """Return the OAuth token of this login."""
        self._token = self._config.oauth_token()[0]
        return self._token

    @property
    def extensions(self) -> dict[str, str]:
        """What is sent with the token."""
        return dict(self._config.oidc.extensions) if self._config.oidc is not None else {}

    def _refused(self, reason: str | None) -> MigrationError:
        said = reason or ""
        for secret in filter(None, (self._token, self._config.password)):
            said = said.replace(secret, "***")
        return AuthenticationFailed(
            f"the broker refused the SASL login of {self._who()}: {said}",
            where=self._where,
            next_step=self._advice(),
        )

    def _who(self) -> str:
        config = self._config
        if config.kerberos is not None:
            return config.kerberos.shown
        return config.username or (config.oidc.client_id if config.oidc is not None else "") or str(config.mechanism)

    def _advice(self) -> str:
        if self._config.oidc is not None:
            return (
                "compare the token's issuer, audience, subject and scope with what the broker expects (its "
                "sasl.oauthbearer.expected.*), and look for the reason in the broker's log"
            )
        if self._config.kerberos is not None:
            return "check the broker's keytab and principal (SERVICE/HOST), and look for the reason in its log"
        if self._config.mechanism == "OAUTHBEARER":
            return "check that this machine's AWS identity may kafka-cluster:Connect, and the region"
        return "check sasl.username, sasl.password and sasl.mechanism of the connection"


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Gives kafka-python the token of a login."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def token(self) -> str:
        return self._login.token()

    def extensions(self) -> dict[str, str]:
        return self._login.extensions


def _sasl_name(name: str, mechanism: str) -> str:
    """Escape a user name for SCRAM (RFC 5802): a comma or an equals sign would end the attribute."""
    return name.replace("=", "=3D").replace(",", "=2C") if mechanism.startswith("SCRAM") else name
