"""What was copied of ACLs, users, quotas and group configs, and what was not and why; and the access map for IAM."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part


class Left(Part):
    """Something of the source that the target does not get."""

    name: str
    reason: str


class AccessResult(Document):
    """``results/acls.json``. ACLs are written as people read them, as they are on the target."""

    version: int = 1
    migration_id: str
    policy: str
    target_auth: str
    summary: str
    created: list[str] = Field(default_factory=list)
    existed: list[str] = Field(default_factory=list)
    deferred: list[str] = Field(default_factory=list, description="given when clients may switch")
    target_only: list[str] = Field(default_factory=list, description="left in place, and reported")
    left: list[Left] = Field(default_factory=list, description="ACLs that are not copied")
    renamed: list[Left] = Field(default_factory=list, description="ACLs that follow renamed topics, and why")
    users_created: list[str] = Field(default_factory=list)
    users_left: list[Left] = Field(default_factory=list)
    quotas_set: list[str] = Field(default_factory=list)
    quotas_left: list[Left] = Field(default_factory=list)
    group_configs_set: list[str] = Field(default_factory=list)
    group_configs_left: list[Left] = Field(default_factory=list)
    access_map: dict[str, Any] = Field(default_factory=dict, description="key and digest of access-map.json")


class IamStatement(Part):
    """One statement of an IAM policy, from one or several ACLs."""

    effect: Literal["Allow", "Deny"]
    actions: list[str]
    resources: list[str]
    acls: list[str] = Field(description="the ACLs it stands for")


class AccessMap(Document):
    """``access-map.json``: principal to IAM statements, and what has no equivalent."""

    version: int = 1
    migration_id: str
    cluster_arn: str = Field(description="of the target; a placeholder where the spec does not have it")
    principals: dict[str, list[IamStatement]]
    without_equivalent: list[Left] = Field(default_factory=list)
