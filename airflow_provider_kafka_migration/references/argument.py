"""The argument ``--references`` of a Spark main, in all its forms. None of them contains a secret in plain text.

* ``file:PATH``, ``env:NAME`` or a plain path: a JSON document, ``{"source": ..., "target": ..., "storage": ...}``.
* ``inline:source=REFERENCE,target=REFERENCE,storage=REFERENCE``: references that each machine resolves itself.
* ``sealed:v1.KEY_ID.CIPHERTEXT``: the connections, encrypted for the machines that copy (:mod:`.sealing`).

The forms use only characters that shells, YARN and the services' APIs leave alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where
from airflow_provider_kafka_migration.references.names import is_self_contained

#: What a job may get: librdkafka keys of the clusters, and S3 settings.
ROLES = ("source", "target", "storage")

INLINE, SEALED = "inline:", "sealed:"

#: Longest sealed argument. EMR Serverless takes 10,280 characters for one, Databricks 10,000 bytes for all together.
MAX_SEALED_CHARS = 6_000

_SAFE = ":/@.-_"


def inline_argument(references: Mapping[str, str | None]) -> str:
    """Return the argument with references that each machine resolves itself.

    :raises ValueError: one of them needs Airflow.
    """
    words = []
    for role in ROLES:
        reference = references.get(role)
        if reference is None:
            continue
        if not is_self_contained(reference):
            raise ValueError(f"the reference of {role} needs Airflow")
        words.append(f"{role}={quote(reference, safe=_SAFE)}")
    return INLINE + ",".join(words)


def parse_inline(argument: str) -> dict[str, str | None]:
    """Read what :func:`inline_argument` has returned.

    :raises ConnectionInvalid: it is malformed, or names something that only Airflow can resolve. It is not quoted.
    """
    found: dict[str, str | None] = dict.fromkeys(ROLES)
    for word in argument.removeprefix(INLINE).split(","):
        role, separator, text = word.partition("=")
        reference = unquote(text)
        if not separator or role not in ROLES or not is_self_contained(reference):
            raise ConnectionInvalid(
                "the argument --references is malformed",
                where=Where(path=INLINE),
                next_step="write inline:source=REFERENCE,target=REFERENCE,storage=REFERENCE with references like "
                "env:NAME, percent-encoded",
            )
        found[role] = reference
    return found
