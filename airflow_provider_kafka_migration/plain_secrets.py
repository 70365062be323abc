"""Secrets that stand in a spec as plain text: found by the names of their keys and by their looks. Pure.

A spec is kept in the journal, in Airflow's database and in evidence, so it holds references (``env:NAME``,
``file:PATH``, ``airflow:CONN_ID``) in their place. No secret is ever repeated in a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, urlsplit

#: (path in the spec, reason)
Finding = tuple[str, str]

REFERENCE = re.compile(r"(?:env|file|airflow):[^\s/]\S*|file:/(?!/)\S+")

#: How whoever wrote a secret can give it instead.
_REFERENCE_FORMS = "write it into an environment variable, a file of mode 0600 or an Airflow connection, and give its "
_REFERENCE_FORMS += "reference here: env:NAME, file:PATH or airflow:CONN_ID"
_SPARK_FORMS = (
    "Spark's conf is shown in its arguments and its UI, and Spark resolves no references: put it into "
    "spark-defaults.conf of the machine that submits, or mount it into the executors (docs/spark.md)"
)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    {
        *("apikey", "authorization", "credential", "credentials", "passphrase", "passwd", "password", "pwd", "secret"),
        *("token",),
    }
)
#: "key" alone names a secret only behind one of these: there are keys of records and of deduplication, too.
_KINDS_OF_KEYS = frozenset(
    {"access", "account", "api", "auth", "encryption", "integration", "private", "routing", "secret", "shared"}
    | {"signing", "storage"}
)
#: Names of what is mounted, not what it holds.
_SPARK_NAMES = re.compile(r"spark\.kubernetes\.(?:driver|executor)\.(?:secrets|secretKeyRef)\..+")

_KNOWN_TOKENS = re.compile(
    r"xox[abeprs]-[\w-]{10}|gh[pousr]_\w{20}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10}|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\b[Bb]earer [\w.~+/=-]{12}|\b[Bb]asic [\w+/=-]{12}"
)
#: ``-Dx.password=...`` and ``{"sasl.password": "..."}``
_NAMED_INSIDE = re.compile(
    r"(?i)(?:password|passwd|passphrase|secret|token|(?:api|access|account|private|secret)[._-]?key)"
    r"""(?:=|["']\s*:\s*)["']?[^\s"'{$]"""
)
#: A password is needed: ``abfss://container@account`` is an ordinary place.
_LOGIN_INSIDE = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://[^\s/?#@:]*:[^\s/?#@]+@")
_ADDRESS = re.compile(r"(?i)https?://\S*")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def is_reference(text: str) -> bool:
    """Whether a text is a reference to a secret and nothing else."""
    return REFERENCE.fullmatch(text) is not None


def is_address(text: str) -> bool:
    """Whether a text is an http or https address and nothing else."""
    return _ADDRESS.fullmatch(text) is not None and _place(text) is not None


def shown_address(address: str) -> str:
    """Of an address its scheme, host and port, of a reference all: what may be logged and kept."""
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
    """Which part of an http(s) address may be a secret; empty if it is only a place."""
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
    """The address that freezes producers."""
    if address and not is_reference(address) and (why := why_no_plain_address(address)):
        yield path, f"this address may hold a secret: {why}. {_REFERENCE_FORMS}"


def in_spark_conf(path: str, conf: Mapping[str, str]) -> Iterator[Finding]:
    """Settings of Spark. References are findings, too: nobody resolves them."""
    for key in sorted(conf):
        value = conf[key]
        named = names_a_secret(key) and not _SPARK_NAMES.fullmatch(key) and value.lower() not in ("", "true", "false")
        if named or _looks_secret(value):
            yield f"{path}.{key}", f"this looks like a secret. {_SPARK_FORMS}"


def in_arguments(path: str, value: Any, *, named: bool = False) -> Iterator[Finding]:
    """Arguments of a notifier, lists and mappings in them included. References and templates are none.

    :param named: the key above says that it is a secret.
    """
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from in_arguments(f"{path}.{key}", value[key], named=named or names_a_secret(str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from in_arguments(f"{path}[{index}]", item, named=named)
    elif _is_plain_secret(value, named=named):
        yield path, f"this looks like a secret. {_REFERENCE_FORMS}; a template ({{{{ ... }}}}) does it, too"


def _is_plain_secret(value: Any, *, named: bool) -> bool:
    if isinstance(value, str):
        if not value or is_reference(value) or "{{" in value:
            return False
        return named or _looks_secret(value)
    return named and value is not None and not isinstance(value, bool)


def names_a_secret(key: str) -> bool:
    """Whether the name of a key says that its value is a secret."""
    words = [word.lower() for word in _WORDS.findall(key)]
    if words and words[-1] in _SECRET_WORDS:
        return True
    pairs = list(pairwise(words))
    # Behind an Azure account's key comes the account.
    return ("account", "key") in pairs or bool(pairs and pairs[-1][1] == "key" and pairs[-1][0] in _KINDS_OF_KEYS)


def _looks_secret(value: str) -> bool:
    if any(pattern.search(value) for pattern in (_KNOWN_TOKENS, _NAMED_INSIDE, _LOGIN_INSIDE)):
        return True
    return is_address(value) and _is_secret_address(value)


def _is_secret_address(address: str) -> bool:
    """An address in an argument may have a query, as long as no part of it looks like a secret."""
    try:
        parts = urlsplit(address)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return True
    values = [parts.fragment, *parts.path.split("/"), *(text for pair in pairs for text in pair)]
    named = "@" in parts.netloc or any(names_a_secret(key) for key, _ in pairs)
    return named or any(_looks_random(text) for text in values)


def _looks_random(text: str) -> bool:
    """Whether nobody would choose this text as a name: an UUID, or letters and digits in a wild mixture."""
    if _UUID.search(text):
        return True
    runs = re.findall(r"[A-Za-z0-9]{16,}", text)
    if re.search("[a-z]", text) and re.search("[A-Z]", text) and len(text) >= 20:
        runs.append(re.sub(r"[-_]", "", text))
    return any(len(re.findall(r"(?<=[0-9])(?=[A-Za-z])|(?<=[A-Za-z])(?=[0-9])", run)) >= 4 for run in runs)
