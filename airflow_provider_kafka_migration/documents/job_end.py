"""How a submitted Spark job has ended, as its driver says: ``<migration_id>/jobs/ends/<token>.json``.

Engines only know that a driver failed. This document says why, with the same code and kind on each of them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.errors import MigrationError, error_from_dict

#: Code of an exception that is not an error of this package.
UNEXPECTED = "DRIVER_FAILED"
#: Code of a driver that was asked to stop.
TERMINATED = "TERMINATED"


class JobEnd(Document):
    """The end of one submission, as the driver of it has written that ended last: a token may have two on YARN."""

    LATER_FIELDS = ("application_id",)

    version: int = 1
    token: str = Field(description="the submission, as in the journal")
    status: Literal["succeeded", "failed", "terminated"]
    code: str = Field("", description="code of the error; empty after a success")
    kind: Literal["", "terminal", "transient"] = Field("", description="whether trying again may help")
    what: str = Field("", description="what failed")
    where: dict[str, Any] = Field(default_factory=dict, description="the place of the failure")
    next_step: str = Field("", description="what a person should do")
    application_id: str = Field("", description="the driver's application where it runs on YARN")

    @classmethod
    def of(cls, token: str, error: BaseException | None, *, application_id: str = "") -> JobEnd:
        """Build it from what the driver has raised; None: the job is done.

        :param application_id: YARN's id of the driver's application; empty elsewhere.

        The text of an exception that is not ours may quote a secret, so only its kind is stored.
        """
        if error is None:
            return cls(token=token, status="succeeded", application_id=application_id)
        if isinstance(error, MigrationError):
            data = error.as_dict()
            del data["details"]
            return cls(token=token, status="failed", application_id=application_id, **data)
        if isinstance(error, SystemExit):
            return cls(
                token=token,
                status="terminated",
                code=TERMINATED,
                kind="transient",
                what="the driver was asked to stop",
                next_step="clear the task: it continues where the job stopped",
                application_id=application_id,
            )
        return cls(
            token=token,
            status="failed",
            code=UNEXPECTED,
            kind="transient",
            what=f"{type(error).__name__} in the driver; its text is in the driver's log",
            next_step="report it with the driver's log",
            application_id=application_id,
        )

    @property
    def error(self) -> MigrationError | None:
        """The error; None after a success. An unknown code gives a plain ``Terminal`` or ``Transient``."""
        return None if self.status == "succeeded" else error_from_dict(self.model_dump())
