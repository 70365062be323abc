"""Documents of the schemas of a migration: the plan, the id map, and the result of a synchronization."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, GrownPart, Part

IdMode = Literal["keep", "translate", "topic"]
#: The parts of a topic's records that carry schema ids.
IdParts = Literal["none", "key", "value", "both"]


class DecodedPart(Part):
    """Keys or values that begin like serialized records, in a topic that no subject is named after."""

    carries: bool = Field(description="they are serialized records, so their ids are translated")
    tried_records: int = Field(0, description="sampled payloads whose schema can be read")
    decoded_records: int = Field(0, description="of these: the payload decodes with the schema of its id")
    ids: list[int] = Field(default_factory=list, description="ids whose payloads decode, ascending")


class TopicIds(GrownPart):
    """Where the records of a topic carry schema ids, and the sample that this was decided from."""

    LATER_FIELDS: ClassVar[tuple[str, ...]] = ("by_decoding", "unclear")

    topic: str
    parts: IdParts
    decided_by: Literal["spec", "sample", "name"] = Field(
        "sample",
        description="name: a part has no sampled payload, but a subject is named after the topic and this part",
    )
    context: str = Field(".", description="context of the source registry in which the ids are looked up")
    sampled_records: int = 0
    key_ids: int = Field(0, description="sampled keys that begin like a serialized record, or have an id in a header")
    key_known_ids: int = Field(0, description="of these: the id is known to the source registry")
    value_ids: int = 0
    value_known_ids: int = 0
    unknown_ids: list[int] = Field(default_factory=list, description="ids that the source registry does not have")
    unread: str = Field("", description="why no records could be sampled; empty: they were")
    note: str = Field("", description="what a person should check in this decision; empty: nothing")
    by_decoding: dict[Literal["key", "value"], DecodedPart] = Field(
        default_factory=dict, description="parts that were decided without a subject that is named after them"
    )
    unclear: str = Field(
        "", description="why nothing that was seen decides, so that ids must not be translated; empty: something does"
    )


class TopicIdSettings(GrownPart):
    """What copiers and the content comparison do about the schema ids in the records of one topic."""

    LATER_FIELDS: ClassVar[tuple[str, ...]] = ("topic", "decoded")

    parts: Literal["key", "value", "both"]
    context: str = Field(".", description="context of the source registry in which the ids are looked up")
    rewrite: bool = Field(True, description="the target's records carry the ids of the id map; false: the same ids")
    topic: str = Field("", description="source topic, if it has parts in ``decoded``")
    decoded: dict[Literal["key", "value"], list[int]] = Field(
        default_factory=dict,
        description="parts that no subject is named after: only these ids of their payloads are rewritten, and those "
        "that the id map has as ``decided``",
    )

    @property
    def rule(self) -> str:
        """These settings in one line: results of a comparison under other settings are not comparable."""
        decoded = f", decoded {' and '.join(sorted(self.decoded))}" if self.decoded else ""
        return f"{self.parts}, context {self.context}, {'rewritten' if self.rewrite else 'kept'}{decoded}"


class SchemaIdSettings(Part):
    """The topics whose records carry schema ids, and where the id map is."""

    id_map_key: str = Field(description="key of the SchemaIdMap below the journal location")
    strict: bool = Field(False, description="an id that the source registry does not have stops its partition")
    topics: dict[str, TopicIdSettings] = Field(default_factory=dict, description="by source topic")

    def rule(self, topic: str) -> str:
        """How the ids of a topic are gathered and compared (:attr:`TopicIdSettings.rule`); empty: it has none."""
        found = self.topics.get(topic)
        return "" if found is None else found.rule


def id_rule(settings: SchemaIdSettings | None, topic: str) -> str:
    """Return :meth:`SchemaIdSettings.rule`; empty without settings."""
    return "" if settings is None else settings.rule(topic)


class SchemaConflict(Part):
    """Something on the target that keeps a schema, level or mode from being written as planned."""

    kind: Literal["id", "version", "content", "compatibility", "reference", "mode", "level", "unsupported"] = Field(
        description="level: a level or mode of the target's own, which stays"
    )
    subject: str = Field(description="source subject, qualified; for a level of a context its scope, :.context:")
    target_subject: str = ""
    version: int = 0
    id: int = 0
    what: str = Field(description="a sentence for people")


class PlannedVersion(Part):
    """One version of a subject, and what the target gets."""

    version: int
    id: int
    deleted: bool = False
    digest: str = Field(description="SHA-256 over type, text and references as they are on the source")
    action: Literal["register", "exists", "conflict"] = "register"
    target_version: int = Field(0, description="0: decided by the target registry")
    target_id: int = Field(0, description="0: decided by the target registry")


class PlannedSubject(Part):
    """One subject of the migration."""

    subject: str
    target_subject: str
    type: str = ""
    versions: list[PlannedVersion] = Field(default_factory=list, description="ascending")
    config: dict[str, Any] = Field(default_factory=dict, description="explicit config of the source; empty: none")
    mode: str = Field("", description="explicit mode of the source; empty: none")
    as_reference: bool = Field(False, description="outside the filter; moved because another schema refers to it")
    topics: list[str] = Field(default_factory=list, description="migrated topics that use it, by its name")


class SchemaPlan(Document):
    """``schemas/plan-<digest>.json``: what moves from one registry to the other."""

    LATER_FIELDS: ClassVar[tuple[str, ...]] = ("stays_live", "kept_configs", "kept_modes", "present")

    version: int = 1
    migration_id: str
    id_mode: IdMode
    reason: str = Field(description="why this id mode, for people")
    source_kind: str = Field("", description="confluent, karapace, redpanda, apicurio, unknown")
    target_kind: str = ""
    import_scope: Literal["", "subject", "context", "registry", "apicurio"] = Field(
        "", description="where fixed ids can be written on the target; empty: nowhere, or not needed"
    )
    subjects: list[PlannedSubject] = Field(default_factory=list, description="ascending by source subject")
    context_configs: dict[str, dict[str, Any]] = Field(default_factory=dict, description="by source context")
    context_modes: dict[str, str] = Field(default_factory=dict)
    global_config: dict[str, Any] = Field(default_factory=dict)
    global_mode: str = ""
    conflicts: list[SchemaConflict] = Field(default_factory=list)
    stays_live: list[tuple[str, int]] = Field(
        default_factory=list,
        description="source (subject, version), deleted there; the target has it live, and not from this migration",
    )
    kept_configs: list[str] = Field(
        default_factory=list, description="scopes of the target whose level is not written: a conflict, or unread"
    )
    kept_modes: list[str] = Field(default_factory=list, description="likewise for modes")
    present: dict[str, list[int]] = Field(
        default_factory=dict,
        description="live versions that the target had of subjects that get further ones, by target subject",
    )
    left_out: dict[str, str] = Field(default_factory=dict, description="source subject to why it does not move")
    topics: list[TopicIds] = Field(default_factory=list, description="ascending by topic")
    notes: list[str] = Field(default_factory=list, description="what is not copied and why, for people")
    unread: dict[str, str] = Field(
        default_factory=dict, description="what could not be read, and why; never taken as 'there is none'"
    )


class SchemaTopics(Document):
    """``schemas/topics-<digest>.json``: decisions about topics from a later sample than that of the plan."""

    version: int = 1
    migration_id: str
    topics: list[TopicIds] = Field(default_factory=list, description="ascending by topic; they replace earlier ones")


class SchemaIdMap(Document):
    """``schemas/id-map.json``: source ids to target ids. Copiers read it, and read it again for an unknown id.

    It only grows: an entry never changes, because records may have been rewritten with it.
    """

    LATER_FIELDS: ClassVar[tuple[str, ...]] = ("decided",)

    version: int = 1
    migration_id: str
    id_mode: IdMode
    ids: list[tuple[str, int, int]] = Field(
        default_factory=list, description="(source context, source id, target id), ascending"
    )
    guids: list[tuple[str, str]] = Field(default_factory=list, description="(source GUID, target GUID), ascending")
    absent: list[tuple[str, int]] = Field(
        default_factory=list,
        description="(source context, id): found in records, and the source registry answered that it has no such id",
    )
    absent_guids: list[str] = Field(default_factory=list)
    decided: list[tuple[str, Literal["key", "value"], int, bool]] = Field(
        default_factory=list,
        description="(source topic, part, source id, whether payloads with it decode), for parts without a subject",
    )


class SchemaFailure(Part):
    """One schema, level or mode that could not be written, or one id for whose schema copiers wait."""

    subject: str
    version: int = 0
    schema_id: str = Field("", description="the id or GUID that copiers wait for; then there is no subject")
    error: dict[str, Any] = Field(description="MigrationError.as_dict()")

    @property
    def name(self) -> str:
        """What it is, for people."""
        if self.schema_id:
            return f"schema {self.schema_id} in records"
        return f"{self.subject or 'the registry'}{f' version {self.version}' if self.version else ''}"


class SchemasResult(Document):
    """``results/schemas.json``: the last synchronization."""

    version: int = 1
    migration_id: str
    reason: str = Field(description="schemas, tail, final, validate, cli")
    at: str
    id_mode: IdMode
    subjects: int = 0
    versions: int = 0
    registered: int = Field(0, description="versions written by this synchronization")
    deleted: int = Field(0, description="versions deleted again by this synchronization")
    configs: int = 0
    ids: int = Field(0, description="different ids in the id map")
    plan_digest: str = Field("", description="of the schema plan that was carried out")
    conflicts: list[SchemaConflict] = Field(default_factory=list)
    failed: list[SchemaFailure] = Field(default_factory=list)
    unread: dict[str, str] = Field(default_factory=dict)


class SchemaDifference(Part):
    """One difference between both registries after the copy."""

    subject: str
    version: int = 0
    what: str
    only_on_target: bool = Field(False, description="the target has more than the source; nothing is missing there")


class SchemaSettingLeft(Part):
    """A mode or level of the target registry that is not as it should be when the migration is validated."""

    scope: str = Field(description="empty: the registry; ``:.ctx:``: a context; else a subject")
    what: str
    by_migration: bool = Field(True, description="false: the migration has not changed it, so it is only named")


class SchemaCheck(Document):
    """``results/schemas-check.json``: both registries compared, and the ids that occur in copied records."""

    LATER_FIELDS: ClassVar[tuple[str, ...]] = ("ids_not_asked",)

    version: int = 1
    migration_id: str
    at: str
    id_mode: IdMode
    subjects: int = 0
    versions: int = 0
    deleted_versions: int = 0
    ids_in_records: int = 0
    ids_resolved: int = Field(0, description="resolved on the target to the schema of the source")
    ids_unknown_to_source: list[int] = Field(
        default_factory=list, description="bytes that look like an id which the source registry does not have either"
    )
    ids_not_asked: int = Field(
        0, description="of the ids that the source does not have: the target was not asked whether it has them"
    )
    differences: list[SchemaDifference] = Field(default_factory=list)
    settings_left: list[SchemaSettingLeft] = Field(default_factory=list)
    unread: dict[str, str] = Field(default_factory=dict, description="what could not be compared, and why")
