"""``vault:``: the key-value engine of HashiCorp Vault, version 2 (``?kv=1``: version 1).

A secret is named ``MOUNT/PATH``; ``?mount=a/b`` is a mount whose name has slashes, and all before ``?`` is then the
path. Vault's own variables say where it is and who this machine is: ``VAULT_ADDR``, ``VAULT_NAMESPACE``,
``VAULT_CACERT``, and the first of these that is set:

* ``VAULT_TOKEN``, ``VAULT_TOKEN_FILE``: a token; the file may be replaced at any time, as Vault Agent does.
* ``VAULT_ROLE_ID`` with ``VAULT_SECRET_ID``: AppRole.
* ``VAULT_KUBERNETES_ROLE``: the pod's service account.
* ``~/.vault-token``: a person's login.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    MigrationError,
    SecretAccessDenied,
    SecretNotFound,
    SecretStoreUnavailable,
)
from airflow_provider_kafka_migration.references.local import this_machine
from airflow_provider_kafka_migration.references.names import SecretName
from airflow_provider_kafka_migration.references.secret_stores import (
    ATTEMPTS,
    CONNECT_SECONDS,
    READ_SECONDS,
    library_missing,
)

#: The name of a secret, for messages -> a client of hvac that is logged in.
MakeClient = Callable[[SecretName], Any]

_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/token"


class VaultSecrets:
    """Reads secrets with hvac.

    :param make_client: makes a client that is logged in; None: with the identity of this machine.
    """

    def __init__(self, make_client: MakeClient | None = None) -> None:
        self._make_client = make_client or _machine_client

    def secret(self, name: SecretName) -> Mapping[str, Any]:
        """Return the keys and values of a secret; ``?version=`` is the number of a version.

        :raises MigrationError: see :func:`as_error`.
        """
        try:
            import hvac.exceptions
            import requests
        except ImportError:
            raise library_missing(name, "hvac", "vault") from None
        mount, path = _place(name)
        try:
            client = self._make_client(name)
            if name.options.get("kv") == "1":
                found = client.secrets.kv.v1.read_secret(path=path, mount_point=mount)["data"]
            else:
                found = client.secrets.kv.v2.read_secret_version(
                    path=path, version=_version(name), mount_point=mount, raise_on_deleted_version=True
                )["data"]["data"]
        except MigrationError:
            raise
        except (hvac.exceptions.VaultError, requests.RequestException) as error:
            raise as_error(name, error) from None
        except (KeyError, TypeError):
            found = None
        if not isinstance(found, Mapping):
            raise SecretNotFound(
                "Vault's answer has no keys and values",
                where=name.where,
                next_step="check the path; for version 1 of the key-value engine append ?kv=1",
            )
        return found


def read(name: SecretName) -> Mapping[str, Any]:
    """Return a secret, with this machine's identity."""
    return VaultSecrets().secret(name)


def _place(name: SecretName) -> tuple[str, str]:
    mount = name.options.get("mount")
    if mount:
        return mount.strip("/"), name.name.strip("/")
    first, _, path = name.name.strip("/").partition("/")
    if not path or name.options.get("kv", "2") not in ("1", "2"):
        raise ConnectionInvalid(
            "the reference does not name a mount and a path",
            where=name.where,
            next_step="write vault:MOUNT/PATH, for instance vault:secret/kafka; kv is 1 or 2",
        )
    return first, path


def _version(name: SecretName) -> int | None:
    if name.version is None:
        return None
    if not name.version.isdigit():
        raise ConnectionInvalid(
            "a version of a secret in Vault is a number", where=name.where, next_step="correct ?version="
        )
    return int(name.version)


# -- client -----------------------------------------------------------------------------------------------------------


def _machine_client(name: SecretName) -> Any:
    import hvac

    address = os.environ.get("VAULT_ADDR")
    if not address:
        raise ConnectionInvalid(
            f"{this_machine()} does not know where Vault is",
            where=name.where,
            next_step="set VAULT_ADDR on that machine, for instance https://vault.example:8200",
        )
    client = hvac.Client(
        url=address,
        token="",
        verify=_verify(),
        timeout=(CONNECT_SECONDS, READ_SECONDS),
        session=session(),
        namespace=os.environ.get("VAULT_NAMESPACE") or None,
    )
    _log_in(client, name)
    return client


def session() -> Any:
    """Return a session of requests that tries again, a bounded number of times, what may pass."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    passing = Retry(
        total=ATTEMPTS - 1,
        backoff_factor=0.5,
        status_forcelist=(412, 429, 500, 502, 503, 504),
        allowed_methods=None,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    found = requests.Session()
    for scheme in ("http://", "https://"):
        found.mount(scheme, HTTPAdapter(max_retries=passing))
    return found


def _verify() -> bool | str:
    if os.environ.get("VAULT_SKIP_VERIFY", "").lower() in ("1", "t", "true"):
        return False
    return os.environ.get("VAULT_CACERT") or os.environ.get("VAULT_CAPATH") or True


def _log_in(client: Any, name: SecretName) -> None:
    variables = os.environ
    if variables.get("VAULT_TOKEN"):
        client.token = variables["VAULT_TOKEN"]
    elif variables.get("VAULT_TOKEN_FILE"):
        client.token = _file(variables["VAULT_TOKEN_FILE"], name)
    elif variables.get("VAULT_ROLE_ID"):
        client.auth.approle.login(
            role_id=variables["VAULT_ROLE_ID"],
            secret_id=variables.get("VAULT_SECRET_ID"),
            mount_point=variables.get("VAULT_APPROLE_MOUNT", "approle"),
        )
    elif variables.get("VAULT_KUBERNETES_ROLE"):
        client.auth.kubernetes.login(
            role=variables["VAULT_KUBERNETES_ROLE"],
            jwt=_file(variables.get("VAULT_KUBERNETES_TOKEN_FILE", _SERVICE_ACCOUNT), name),
            mount_point=variables.get("VAULT_KUBERNETES_MOUNT", "kubernetes"),
        )
    elif Path("~/.vault-token").expanduser().exists():
        client.token = _file("~/.vault-token", name)
    else:
        raise SecretAccessDenied(
            f"{this_machine()} has no identity for Vault",
            where=name.where,
            next_step="set VAULT_TOKEN_FILE, VAULT_ROLE_ID and VAULT_SECRET_ID, or VAULT_KUBERNETES_ROLE on that "
            "machine",
        )


def _file(path: str, name: SecretName) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretAccessDenied(
            f"the file with this machine's identity for Vault cannot be read on {this_machine()}: "
            f"{type(error).__name__}: {path}",
            where=name.where,
            next_step="check the path, and that the user of the process may read it",
        ) from None


def as_error(name: SecretName, error: Exception) -> MigrationError:
    """Return our error for one of hvac or requests; none quotes what Vault wrote.

    ``SecretNotFound``, ``SecretAccessDenied``, ``ConnectionInvalid`` (TLS, malformed address),
    ``SecretStoreUnavailable`` (all others).
    """
    import requests
    from hvac import exceptions

    if isinstance(error, exceptions.InvalidPath):
        return SecretNotFound(
            "Vault has no such secret, or this version of it was deleted",
            where=name.where,
            next_step="check mount, path and version; for version 1 of the key-value engine append ?kv=1",
        )
    if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized | exceptions.InvalidRequest):
        return SecretAccessDenied(
            f"Vault does not let {this_machine()} read the secret: {type(error).__name__}",
            where=name.where,
            next_step="check its login, and that a policy allows read on MOUNT/data/PATH (version 1: MOUNT/PATH); "
            "Vault also answers so where there is no such mount",
        )
    if isinstance(error, requests.exceptions.SSLError):
        return ConnectionInvalid(
            f"{this_machine()} does not accept Vault's certificate",
            where=name.where,
            next_step="set VAULT_CACERT on that machine to the certificate of the authority",
        )
    if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.MissingSchema):
        return ConnectionInvalid(
            f"VAULT_ADDR on {this_machine()} is no address", where=name.where, next_step="write https://HOST:8200"
        )
    return SecretStoreUnavailable(
        f"Vault did not answer {this_machine()}: {type(error).__name__}",
        where=name.where,
        next_step="check that VAULT_ADDR can be reached from that machine and that Vault is unsealed; then clear the "
        "task",
    )
