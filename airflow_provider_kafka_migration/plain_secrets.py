"""Finds plain-text secrets in a spec, by the names of their keys and by the look of their values. Pure.

A spec is kept in the journal, in Airflow's database and in evidence, so it must hold references (``env:NAME``,
``file:PATH``, ``airflow:CONN_ID``, ``vault:MOUNT/PATH`` ...) instead. No reason ever repeats a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, urlsplit

#: (path in the spec, reason)
Finding = tuple[str, str]

REFERENCE = re.compile(r"(?:env|file|airflow|secretsmanager|ssm|gcp-sm|vault):[^\s/]\S*|(?:file|ssm):/(?!/)\S+")

#: How to give a secret instead of writing it into the spec.
_REFERENCE_FORMS = (
    "write it into an environment variable, a file of mode 0600, an Airflow connection or a secret store, and give its "
    "reference here: env:NAME, file:PATH, airflow:CONN_ID, or for instance vault:MOUNT/PATH#KEY"
)
_SPARK_FORMS = (
    "Spark shows its conf in its arguments and its UI, and resolves no references: put the secret into "
    "spark-defaults.conf of the machine that submits, or mount it into the executors (docs/spark.md)"
)

_ENGINE_FORMS = (
    "this looks like a secret: the journal keeps these arguments, and engines resolve no references in them. Put it "
    "into the connection of the engine, or into its service's store of secrets (docs/spark-engines.md)"
)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    {
        *("apikey", "authorization", "credential", "credentials", "passphrase", "passwd", "password", "pwd", "secret"),
        *("token",),
    }
)
#: "key" names a secret only after one of these words: records and deduplication have keys as well.
_KINDS_OF_KEYS = frozenset(
    {"access", "account", "api", "auth", "encryption", "integration", "private", "routing", "secret", "shared"}
    | {"signing", "storage"}
)
#: How Databricks names a secret of its own store.
_DATABRICKS_SECRET = re.compile(r"\{\{\s*secrets/[^{}\s]+\s*\}\}")
#: Names of mounted secrets, not their content.
_SPARK_NAMES = re.compile(r"spark\.kubernetes\.(?:driver|executor)\.(?:secrets|secretKeyRef)\..+")

_KNOWN_TOKENS = re.compile(
    r"xox[abeprs]-[\w-]{10}|gh[pousr]_\w{20}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10}|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|kmpriv1_|\b[Bb]earer [\w.~+/=-]{12}|\b[Bb]asic [\w+/=-]{12}"
)
#: ``-Dx.password=...`` and ``{"sasl.password": "..."}``
_NAMED_INSIDE = re.compile(
    r"(?i)(?:password|passwd|passphrase|secret|token|(?:api|access|account|private|secret)[._-]?key)"
    r"""(?:=|["']\s*:\s*)["']?[^\s"'{$]"""
)
#: Only with a password: ``abfss://container@account`` is an ordinary location.
_LOGIN_INSIDE = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://[^\s/?#@:]*:[^\s/?#@]+@")
_KEY = re.compile(r"(?:[0-9A-Fa-f]{64}){1,2}|[\w+/-]{43}=|[\w+/-]{86}==", re.ASCII)
#: Without padding it may be a path or a name of that length, too.
_KEY_OR_PATH = re.compile(r"[\w+/-]{43}|[\w+/-]{86}", re.ASCII)
#: Places where letters of one case, or digits, follow another kind: 32 random bytes in base64 have about 25,
#: and names of that length, which are made of words, less than half of that.
_CHANGE = re.compile(r"(?=[a-z][A-Z0-9]|[A-Z][a-z0-9]|[0-9][A-Za-z])")
_MOST_CHANGES_OF_A_NAME = 12 / 43
#: Schemes whose names may have an @; a login has a colon before it.
_NAMES_WITH_AT = re.compile(
    r"(?:file|secretsmanager|ssm|gcp-sm|vault):(?:arn:[\w:-]*:secret:|[A-Za-z]:(?=[\\/]))?[^\s:@]*@\S*"
)
_ADDRESS = re.compile(r"(?i)https?://\S*")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def is_reference(text: str) -> bool:
    """Return whether a text is a reference to a secret and nothing else."""
    return REFERENCE.fullmatch(text) is not None


def is_address(text: str) -> bool:
    """Return whether a text is an http or https address and nothing else."""
    return _ADDRESS.fullmatch(text) is not None and _place(text) is not None


def shown_address(address: str) -> str:
    """Return what may be logged and kept: the scheme, host and port of an address, or a whole reference."""
    if is_reference(address):
        return address
    return _place(address) or "the webhook"


def _place(address: str) -> str | None:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host:
        return None
    place = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{place}" + (f":{port}" if port else "")


def why_no_plain_address(address: str) -> str:
    """Return which part of an http(s) address may be a secret; empty if the address is only a location."""
    _, _, rest = address.partition("://")
    place, _, path = rest.partition("/")
    if "@" in re.split(r"[?#]", place)[0]:
        return "it has a user name or password"
    if "?" in rest.partition("#")[0]:
        return "it has a query"
    if "#" in rest:
        return "it has a fragment"
    if any(_looks_random(segment) for segment in path.split("/")):
        return "a part of its path looks like a token"
    return ""


def in_webhook(path: str, address: str | None) -> Iterator[Finding]:
    """Check the address that freezes producers."""
    if address and not is_reference(address) and (why := why_no_plain_address(address)):
        yield path, f"this address may hold a secret: {why}. {_REFERENCE_FORMS}"


def in_connection(path: str, value: str | None) -> Iterator[Finding]:
    """Check the name of a connection: the address and the login belong into the connection, not into the spec."""
    has_login = value is not None and "@" in value and not _NAMES_WITH_AT.fullmatch(value)
    if value and ("://" in value or has_login or _looks_secret(value) or is_key(value)):
        # The value may be the secret itself, so the reason does not repeat it.
        yield (
            path,
            "not the name of a connection: put the address and the login into an Airflow connection, and give its id "
            "here, or env:NAME or file:PATH with the same JSON",
        )


def in_secret(path: str, value: str | None) -> Iterator[Finding]:
    """Check a field that refers to a secret: a text without a scheme may be the secret itself, so it is none."""
    if value and (not is_reference(value) or is_key(value)):
        yield path, f"not a reference to a secret: {_REFERENCE_FORMS}"


def is_key(text: str) -> bool:
    """Return whether a text, or what follows its scheme, has the form of a key: 32 or 64 bytes in hex or base64."""
    bare = text.partition(":")[2] or text
    if _KEY_OR_PATH.fullmatch(bare):
        return len(_CHANGE.findall(bare)) > _MOST_CHANGES_OF_A_NAME * len(bare)
    return _KEY.fullmatch(bare) is not None


def in_spark_conf(path: str, conf: Mapping[str, str]) -> Iterator[Finding]:
    """Check the settings of Spark. References are findings as well: Spark does not resolve them."""
    for key in sorted(conf):
        value = conf[key]
        named = names_a_secret(key) and not _SPARK_NAMES.fullmatch(key) and value.lower() not in ("", "true", "false")
        if named or _looks_secret(value):
            yield f"{path}.{key}", f"this looks like a secret. {_SPARK_FORMS}"


def in_engine_arguments(path: str, value: Any) -> Iterator[Finding]:
    """Check the arguments of an engine of Spark, including nested lists and mappings.

    ``secrets``, ``secret_variables`` and the like say under which name a service keeps what a variable gets.
    """
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            item, place = value[key], f"{path}.{key}"
            is_text = isinstance(item, str) and bool(_DATABRICKS_SECRET.sub("", item))
            if is_text and names_a_secret(str(key)) and not _holds_names(path):
                yield place, _ENGINE_FORMS
            else:
                yield from in_engine_arguments(place, item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from in_engine_arguments(f"{path}[{index}]", item)
    elif isinstance(value, str) and _looks_secret(value):
        yield path, _ENGINE_FORMS


def _holds_names(path: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(path.rpartition(".")[2])]
    return bool({"secret", "secrets"} & set(words))


def in_arguments(path: str, value: Any, *, named: bool = False) -> Iterator[Finding]:
    """Check the arguments of a notifier, including nested lists and mappings. References and templates are fine.

    :param named: the name of a key above marks the value as a secret.
    """
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from in_arguments(f"{path}.{key}", value[key], named=named or names_a_secret(str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from in_arguments(f"{path}[{index}]", item, named=named)
    elif _is_plain_secret(value, named=named):
        yield path, f"this looks like a secret. {_REFERENCE_FORMS}; a template ({{{{ ... }}}}) works as well"


def _is_plain_secret(value: Any, *, named: bool) -> bool:
    if isinstance(value, str):
        if not value or is_reference(value) or "{{" in value:
            return False
        return named or _looks_secret(value)
    return named and value is not None and not isinstance(value, bool)


def names_a_secret(key: str) -> bool:
    """Return whether the name of a key marks its value as a secret."""
    words = [word.lower() for word in _WORDS.findall(key)]
    if words and words[-1] in _SECRET_WORDS:
        return True
    pairs = list(pairwise(words))
    # ssl.key.pem and the like hold the key itself; ssl.key.location holds a path.
    if words[-2:] == ["key", "pem"]:
        return True
    # In the name of an Azure account key the account follows the key.
    return ("account", "key") in pairs or bool(pairs and pairs[-1][1] == "key" and pairs[-1][0] in _KINDS_OF_KEYS)


def _looks_secret(value: str) -> bool:
    if any(pattern.search(value) for pattern in (_KNOWN_TOKENS, _NAMED_INSIDE, _LOGIN_INSIDE)):
        return True
    return is_address(value) and _is_secret_address(value)


def _is_secret_address(address: str) -> bool:
    """Return whether a part of an address looks like a secret; an address in an argument may have a query."""
    try:
        parts = urlsplit(address)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return True
    values = [parts.fragment, *parts.path.split("/"), *(text for pair in pairs for text in pair)]
    named = "@" in parts.netloc or any(names_a_secret(key) for key, _ in pairs)
    return named or any(_looks_random(text) for text in values)


def _looks_random(text: str) -> bool:
    """Return whether a text is unlikely to be a chosen name: a UUID, or letters and digits mixed at random."""
    if _UUID.search(text):
        return True
    runs = re.findall(r"[A-Za-z0-9]{16,}", text)
    if re.search("[a-z]", text) and re.search("[A-Z]", text) and len(text) >= 20:
        runs.append(re.sub(r"[-_]", "", text))
    return any(len(re.findall(r"(?<=[0-9])(?=[A-Za-z])|(?<=[A-Za-z])(?=[0-9])", run)) >= 4 for run in runs)
