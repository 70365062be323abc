"""Which product a registry is, by paths that only this product has."""

from __future__ import annotations

import json
from typing import Any, Literal

from airflow_provider_kafka_migration.errors import RegistryAnswerInvalid, RegistryForbidden, RegistryUnreachable
from airflow_provider_kafka_migration.registry.rest import Answer, BoundedRestClient

Kind = Literal["confluent", "karapace", "redpanda", "apicurio", "unknown"]

#: What ends Apicurio's base URL for clients of Confluent's API (``/apis/ccompat/v7``).
CCOMPAT = "/apis/ccompat/"


def kind_of(rest: BoundedRestClient) -> tuple[Kind, bool]:
    """Return the kind of a registry, and whether a later call would find the same.

    A gateway may hide the paths that tell; the kind is then ``unknown``. It is uncertain if such a path could not be
    reached although the registry itself answers.

    :raises RegistryUnreachable: the registry does not answer now.
    """
    if apicurio_bases(rest):
        return "apicurio", True
    identity, is_certain = _ask(rest, "v1/metadata/id")
    if "scope" in _object(identity):
        return "confluent", True
    health, health_is_certain = _ask(rest, "_health")
    if any("karapace" in key for key in _object(health)):
        return "karapace", True
    listing = _answer(rest, "subjects?subjectPrefix=kafka-migration-probe")
    if listing is not None and "seastar" in listing.headers.get("server", "").lower():
        return "redpanda", True
    return "unknown", is_certain and health_is_certain


def apicurio_bases(rest: BoundedRestClient) -> list[str]:
    """Return the base URLs of Apicurio's own API; [] if the registry's URL is none of Apicurio's."""
    return [base.partition(CCOMPAT)[0] + "/apis/registry/v3" for base in rest.base_urls if CCOMPAT in base + "/"]


def apicurio_info(rest: BoundedRestClient) -> dict[str, Any] | None:
    """Return the system information of Apicurio 3.x; None for another product or version."""
    bases = apicurio_bases(rest)
    if not bases:
        return None
    try:
        answer = rest.exchange("GET", [f"{base}/system/info" for base in bases])
    except (RegistryForbidden, RegistryAnswerInvalid):
        return None
    info = _object(answer)
    return info if "apicurio" in str(info.get("name", "")).lower() else None


def _ask(rest: BoundedRestClient, path: str) -> tuple[Answer | None, bool]:
    """Return the answer for a path that few registries have, and False if there was none."""
    try:
        return _answer(rest, path), True
    except RegistryUnreachable:
        return None, False  # some gateways answer 502 for paths that they do not know


def _answer(rest: BoundedRestClient, path: str) -> Answer | None:
    try:
        return rest.exchange("GET", [f"{base}/{path}" for base in rest.base_urls])
    except (RegistryForbidden, RegistryAnswerInvalid):
        return None  # rights for such paths are not needed otherwise


def _object(answer: Answer | None) -> dict[str, Any]:
    """Return the JSON object of a successful answer; {} for all others."""
    if answer is None or not answer.succeeded:
        return {}
    try:
        value = json.loads(answer.content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
