"""Which ACLs, users, quotas and group configs were copied, which were not and why; and the access map for IAM."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part

# -- topology ---------------------------------------------------------------------------------------------------------
#
# Settings of the target's topics: before the copy, during the copy, and at the end.
#
# Written to the journal store before the first setting is changed, so that a crash in between loses none of them.


class TopicSettings(Part):
    """One target topic."""

    before: dict[str, str] | None = Field(
        None, description="overrides of a topic that existed before the migration; None: the migration created it"
    )
    copy_time: dict[str, str] = Field(description="overrides during the copy")
    final: dict[str, str] = Field(description="overrides at the end")


class CopySettings(Document):
    """All target topics by name."""

    version: int = 1
    migration_id: str
    topics: dict[str, TopicSettings]


class TopologyResult(Document):
    """``results/topology.json``: the changes to the target's topics. Lists hold target names."""

    version: int = 1
    migration_id: str
    summary: str
    topics: int
    created: list[str] = Field(default_factory=list)
    adopted: list[str] = Field(default_factory=list, description="empty topics that existed before")
    widened: dict[str, int] = Field(default_factory=dict, description="target topic to its partitions now")
    log_starts_filled: dict[str, int] = Field(default_factory=dict, description="partitions and offsets")
    dropped_configs: dict[str, dict[str, str]] = Field(default_factory=dict, description="topic to config to reason")
    replication_factors: dict[str, list[int]] = Field(
        default_factory=dict, description="topic to [source, target] where they differ; -1: the target's default"
    )
    copy_settings: dict[str, Any] = Field(default_factory=dict, description="document and digest of the settings")


# -- target -----------------------------------------------------------------------------------------------------------


class Left(Part):
    """Something on the source that is not copied to the target."""

    name: str
    reason: str


class AccessResult(Document):
    """``results/acls.json``. ACLs are in readable form, as they are on the target."""

    version: int = 1
    migration_id: str
    policy: str
    target_auth: str
    summary: str
    created: list[str] = Field(default_factory=list)
    existed: list[str] = Field(default_factory=list)
    deferred: list[str] = Field(default_factory=list, description="created when clients may switch")
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
    acls: list[str] = Field(description="the ACLs that it replaces")


class AccessMap(Document):
    """``access-map.json``: principal to IAM statements, and what has no equivalent."""

    version: int = 1
    migration_id: str
    cluster_arn: str = Field(description="of the target; a placeholder if the spec does not have it")
    principals: dict[str, list[IamStatement]]
    without_equivalent: list[Left] = Field(default_factory=list)
