"""What people write where a reference is needed, and which form it should have had. Pure; repeats no value."""

from __future__ import annotations

import difflib
import re

from airflow_provider_kafka_migration.errors import ConnectionInvalid
from airflow_provider_kafka_migration.references.names import (
    DEFAULT_SCHEME,
    SECRET_STORES,
    SELF_CONTAINED,
    SecretName,
    split_reference,
)

_SCHEMES = (DEFAULT_SCHEME, *SELF_CONTAINED)
_FORMS = "the id of an Airflow connection, env:NAME, file:PATH, or for instance vault:MOUNT/PATH"
#: Registries that are not built yet: the precheck says what to do instead.
_OF_PRECHECK = re.compile(r"glue:|arn:aws[\w-]*:glue:")
_NO_CONNECTIONS = (
    (r"\$", "has a placeholder that nobody has replaced"),
    (r"^\{(?!\{)", "is the content of a connection, and its name is needed here"),
    (r",|:\d{2,5}$", "has the addresses of brokers, which belong into the connection"),
    (r":$", "names nothing behind the colon"),
    (r"\s", "has spaces, and the id of a connection has none"),
)


def why_no_connection(value: str) -> str:
    """Return why a text names no connection; empty if it may. A template of Airflow may."""
    if "{{" in value or value != value.strip() or _OF_PRECHECK.match(value):
        return ""
    scheme, name = split_reference(value)
    if scheme not in SELF_CONTAINED:
        for pattern, why in _NO_CONNECTIONS:
            if re.search(pattern, value):
                return f"it {why}: write {_FORMS}"
    return why_no_reference(value) if name != value else ""


def why_no_reference(value: str) -> str:
    """Return why a text with a colon is no reference; empty if it is one."""
    scheme, _, rest = value.partition(":")
    if scheme not in _SCHEMES:
        near = difflib.get_close_matches(scheme.lower(), _SCHEMES, n=1, cutoff=0.6)
        return f"there is no such kind of reference; did you mean {near[0]}:?" if near else f"it is none of {_FORMS}"
    if not rest.strip() or (scheme != "file" and re.search(r"\s", rest)):
        return f"{scheme}: needs a name without spaces behind it"
    if scheme in SECRET_STORES:
        try:
            SecretName.parse(scheme, rest)
        except ConnectionInvalid as error:
            return f"{error.what}: {error.next_step}"
    return ""
