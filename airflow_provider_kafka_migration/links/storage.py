"""Links on a task's page to its documents in object storage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

#: Where AWS shows an object. No other store has pages there.
AWS_CONSOLE = "https://s3.console.aws.amazon.com/s3/object/{bucket}?prefix={key}"


def browser_url(uri: str, template: str) -> str:
    """Return an address for a browser: the filled-in template for ``s3://``.

    It is empty for folders, which no browser reaches, and where nothing says how a browser opens the store's objects.
    """
    scheme, _, rest = uri.partition("://")
    if scheme != "s3" or not template:
        return ""
    bucket, _, key = rest.partition("/")
    return template.format(uri=quote(uri, safe=""), bucket=bucket, key=quote(key))


class StorageLink(BaseOperatorLink):
    """A link to an object below the migration's locations. It is built from the task's arguments when its page is
    opened; these hold references, so the link contains no secret.

    :cvar location: the location in the spec.
    :cvar suffix: the object below ``<location>/<migration_id>/``.
    """

    location = "journal"
    suffix = ""

    @property
    def name(self) -> str:
        """Text of the button."""
        return "Object"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the address; empty if there is none."""
        uri = getattr(operator, "storage_uris", {}).get(self.location)
        template = _configured_template() or (AWS_CONSOLE if getattr(operator, "stores_on_aws", False) else "")
        return browser_url(f"{uri}/{self.suffix}", template) if uri else ""


def _configured_template() -> str:
    from airflow.providers.common.compat.sdk import conf

    return str(conf.get("kafka_migration", "object_url_template", fallback=""))


def is_on_aws(settings: Mapping[str, Any]) -> bool:
    """Return whether the store of these S3 settings is that of AWS: nothing names another endpoint.

    :param settings: fields of :class:`~..storage.s3.S3Config`; empty for the machine's own identity.
    """
    named = (settings.get("endpoint_url"), os.environ.get("AWS_ENDPOINT_URL_S3"), os.environ.get("AWS_ENDPOINT_URL"))
    return not any(named)


class JournalLink(StorageLink):
    """A link to the journal as text."""

    suffix = "journal.jsonl"

    @property
    def name(self) -> str:
        """Text of the button."""
        return "Journal"


class PlanLink(StorageLink):
    """A link to the plan."""

    suffix = "plan.json"

    @property
    def name(self) -> str:
        """Text of the button."""
        return "Plan"


class VerificationLink(StorageLink):
    """A link to the last comparison of a mirror."""

    suffix = "results/verification.json"

    @property
    def name(self) -> str:
        """Text of the button."""
        return "Comparison"


class EvidenceLink(StorageLink):
    """A link to the signed evidence."""

    location = "evidence"
    suffix = "evidence.json"

    @property
    def name(self) -> str:
        """Text of the button."""
        return "Evidence"
