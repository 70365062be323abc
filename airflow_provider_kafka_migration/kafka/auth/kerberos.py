"""SASL GSSAPI (RFC 4752) with Kerberos 5, by the library ``gssapi``: authentication only, without a security layer.

Tickets come from a keytab or, without one, from the machine's own cache (``KRB5CCNAME``). With a keytab the Kerberos
library keeps them in the memory of this process and renews them by itself when half of their time is over.

librdkafka logs in through libsasl2, which knows nothing but the machine's cache. Its own way to fill that cache is a
shell command with parts of the connection in it, so it is switched off, and :func:`fill_ticket_cache` takes its place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    ConnectionInvalid,
    KerberosUnavailable,
    KerberosUnsupported,
    MigrationError,
    TicketCacheTaken,
    Where,
)

#: RFC 4752, section 3.3: the layers of the broker's offer and of our answer.
_NO_LAYER = 1
_CONTEXT, _LAYER, _LAST, _DONE = range(4)

# Codes of MIT's Kerberos library, as gssapi reports them: 32 bits without a sign.
_CODES = 2**32
_KDC_UNREACHABLE = frozenset(code % _CODES for code in (-1765328228, -1765328230, -1765328164))
_CLOCKS_DIFFER = -1765328347 % _CODES
_CLIENT_UNKNOWN = -1765328378 % _CODES
_SERVER_UNKNOWN = -1765328377 % _CODES
_WRONG_KEY = frozenset(code % _CODES for code in (-1765328360, -1765328353))
#: Of the GSSAPI layer: the ticket cache belongs to another principal.
_OTHER_PRINCIPAL = 39756032
_HINTS = {
    _CLOCKS_DIFFER: "synchronize this machine's clock with that of the KDC",
    _CLIENT_UNKNOWN: "check sasl.kerberos.principal: the KDC does not know it",
    _SERVER_UNKNOWN: "check sasl.kerberos.service.name, and that the KDC has a principal SERVICE/HOST for the name "
    "that the broker advertises",
    **dict.fromkeys(_WRONG_KEY, "create the keytab anew: its key is not the principal's present one"),
}


@dataclass(frozen=True)
class KerberosSettings:
    """How this machine proves to brokers who it is.

    :param service: first part of the brokers' principals; the second one is the broker's host name.
    :param principal: ours, of the keytab; empty: the first of the keytab, or that of the machine's ticket cache.
    :param keytab: path of our keys; empty: the machine's ticket cache.
    """

    service: str = "kafka"
    principal: str = ""
    keytab: str = ""

    @property
    def shown(self) -> str:
        """Who logs in, for errors."""
        return self.principal or (f"the keytab {self.keytab}" if self.keytab else "this machine's Kerberos ticket")


class KerberosLogin:
    """One login, message by message, with the interface of kafka-python's SASL mechanisms.

    :raises KerberosUnsupported: the library is missing.
    :raises ConnectionInvalid: the keytab cannot be read.
    :raises KerberosUnavailable: no KDC answers.
    :raises AuthenticationFailed: there is no ticket, or the KDC refuses one.
    """

    def __init__(self, settings: KerberosSettings, host: str, where: Where) -> None:
        self._settings = settings
        self._where = where
        self._gssapi = _library()
        self._state = _CONTEXT
        try:
            self._context = self._open(host)
            self._next = self._context.step() or b""
        except self._gssapi.exceptions.GSSError as error:
            raise _failure(self._settings, self._where, error) from None

    def _open(self, host: str) -> Any:
        gssapi = self._gssapi
        flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.out_of_sequence_detection
        return gssapi.SecurityContext(
            name=_broker(gssapi, self._settings, host),
            creds=_credentials(self._settings, self._where),
            flags=flags | gssapi.RequirementFlag.integrity,
            mech=gssapi.MechType.kerberos,
            usage="initiate",
        )

    def auth_bytes(self) -> bytes:
        """Return the next message to the broker."""
        return self._next

    def receive(self, data: bytes) -> None:
        """Take the broker's answer.

        :raises ValueError: the broker demands what we do not do, or speaks something else.
        """
        try:
            self._receive(bytes(data))
        except self._gssapi.exceptions.GSSError as error:
            raise _failure(self._settings, self._where, error) from None

    def _receive(self, data: bytes) -> None:
        if self._state == _CONTEXT:
            self._next = self._context.step(data) or b""
            self._state = _LAYER if self._context.complete else _CONTEXT
        elif self._state == _LAYER:
            offer = self._context.unwrap(data).message
            if len(offer) != 4 or not offer[0] & _NO_LAYER:
                raise ValueError("the broker demands a security layer of GSSAPI, which Kafka does not have")
            # No layer, no buffer, and no other identity than that of the ticket.
            self._next = self._context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message
            self._state = _LAST
        elif data:
            raise ValueError("the broker sent bytes after the end of the GSSAPI login")
        else:
            self._state = _DONE

    def is_done(self) -> bool:
        """Return whether the dialogue is over."""
        return self._state == _DONE

    def is_authenticated(self) -> bool:
        """Return whether the broker has accepted us and has proved who it is."""
        return self._state == _DONE


def fill_ticket_cache(settings: KerberosSettings, host: str, where: Where) -> None:
    """Put a ticket from the keytab into this process's ticket cache, or renew the one that is there, where that is due.

    A cache that holds the ticket of another principal is left alone: whoever it belongs to still needs it. Without a
    keytab the cache is somebody else's care, and nothing is done.

    :param host: a broker's name. Where a cache holds tickets of several principals, it decides which of them is used.
    :raises TicketCacheTaken: another principal's ticket would be used.
    :raises KerberosUnsupported: the library is missing.
    :raises ConnectionInvalid: the keytab cannot be read.
    :raises KerberosUnavailable: no KDC answers.
    :raises AuthenticationFailed: the KDC refuses a ticket.
    """
    if not settings.keytab:
        return
    gssapi = _library()
    try:
        ours = _credentials(settings, where).name
        # No ``ccache``: the default one. Only a question about the ticket makes the library fetch it.
        store = {"client_keytab": f"FILE:{settings.keytab}"}
        _ = gssapi.Credentials(name=ours, usage="initiate", store=store).lifetime
        # What libsasl2 does: the library chooses the ticket by the broker's name. Without an answer of the broker, only
        # a context that does not ask for one knows whose ticket it has taken.
        context = gssapi.SecurityContext(
            name=_broker(gssapi, settings, host),
            flags=gssapi.RequirementFlag.integrity,
            mech=gssapi.MechType.kerberos,
            usage="initiate",
        )
        context.step()
        used = str(context.initiator_name)
    except gssapi.exceptions.GSSError as error:
        if int(error.min_code) % _CODES != _OTHER_PRINCIPAL:
            raise _failure(settings, where, error) from None
        used = None
    if used is None or used != str(ours):
        raise TicketCacheTaken(
            f"librdkafka logs in with the ticket cache of this process, which holds the ticket of another principal "
            f"than {settings.shown}",
            where=where,
            next_step="give this process a cache of its own (KRB5CCNAME in the environment of Airflow's workers); if "
            "source and target have different principals, use one for both (docs/connections.md, Kerberos)",
        )


def _broker(gssapi: Any, settings: KerberosSettings, host: str) -> Any:
    return gssapi.Name(f"{settings.service}@{host}", name_type=gssapi.NameType.hostbased_service)


def _credentials(settings: KerberosSettings, where: Where) -> Any:
    """Return our credentials; the library fetches or renews the ticket where that is due."""
    gssapi = _library()
    ours = gssapi.Name(settings.principal, gssapi.NameType.kerberos_principal) if settings.principal else None
    if not settings.keytab:
        return gssapi.Credentials(name=ours, usage="initiate") if ours is not None else None
    try:
        Path(settings.keytab).open("rb").close()
    except OSError as error:
        raise ConnectionInvalid(
            f"the keytab cannot be read: {error.strerror}",
            where=Where(cluster=where.cluster, path=settings.keytab),
            next_step="check sasl.kerberos.keytab on this machine, and who may read the file",
        ) from None
    digest = hashlib.sha256(f"{settings.principal}\0{settings.keytab}".encode()).hexdigest()[:16]
    store = {"client_keytab": f"FILE:{settings.keytab}", "ccache": f"MEMORY:kafka-migration-{digest}"}
    return gssapi.Credentials(name=ours, usage="initiate", store=store)


def _failure(settings: KerberosSettings, where: Where, error: Any) -> MigrationError:
    minor = int(error.min_code) % _CODES
    reason = " ".join(str(error.gen_message()).split())
    if minor in _KDC_UNREACHABLE:
        return KerberosUnavailable(
            f"no Kerberos ticket for {settings.shown}: no KDC answers ({reason})",
            where=where,
            next_step="check the KDCs of the realm in krb5.conf, and the network; then clear the task",
        )
    where_from = "sasl.kerberos.keytab" if settings.keytab else "the ticket cache (klist, KRB5CCNAME)"
    return AuthenticationFailed(
        f"the Kerberos login of {settings.shown} failed: {reason}",
        where=where,
        next_step=_HINTS.get(minor, f"check sasl.kerberos.principal, {where_from} and krb5.conf on this machine"),
    )


def _library() -> Any:
    try:
        import gssapi
    except (ImportError, OSError) as error:
        raise KerberosUnsupported(
            f"Kerberos needs the package gssapi, which cannot be imported: {type(error).__name__}",
            next_step="pip install 'airflow-provider-kafka-migration[kerberos]' on every machine that copies; it is "
            "compiled there, against the headers of MIT Kerberos (Debian: libkrb5-dev, Red Hat: krb5-devel)",
        ) from None
    return gssapi
