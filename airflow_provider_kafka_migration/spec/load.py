"""The whole spec, and how it is read. One error reports all its mistakes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from airflow_provider_kafka_migration.errors import SpecInvalid, Where
from airflow_provider_kafka_migration.spec.adoption import AdoptSection
from airflow_provider_kafka_migration.spec.conflicts import Mistake, ValidKeys, conflicts
from airflow_provider_kafka_migration.spec.mirror import MirrorSection
from airflow_provider_kafka_migration.spec.mistakes import describe
from airflow_provider_kafka_migration.spec.schemas import SchemasSection
from airflow_provider_kafka_migration.spec.sections import (
    AclsSection,
    ApprovalsSection,
    ClusterSection,
    CutoverSection,
    EstimateSection,
    EvidenceSection,
    GroupsSection,
    MetricsSection,
    NotificationsSection,
    OffsetsSection,
    QuotaPolicy,
    Section,
    SeedSection,
    SparkSection,
    StorageSection,
    TailSection,
    TopicsSection,
    TopologySection,
    ValidationSection,
)
from airflow_provider_kafka_migration.spec.way_back import WayBackSection

#: Sections that not every spec has. Those that are absent are not written, so a spec that was digested or journaled
#: before a section existed stays the same.
OPTIONAL_SECTIONS = ("adopt", "way_back")

MIGRATION_ID_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,99}$"


class MigrationSpec(Section):
    """One migration, or one flow of a mirror. ``kafka-migration validate FILE`` checks a file against this model."""

    version: Literal[1] = Field(1, description="Version of this format.")
    kind: Literal["migration", "mirror"] = Field(
        "migration",
        description="migration ends with clients that have switched; mirror goes on until somebody stops it.",
    )
    migration_id: str = Field(
        pattern=MIGRATION_ID_PATTERN, description="Name of the migration: lower case letters, digits and . _ -"
    )
    description: str = Field("", description="For people.")
    source: ClusterSection
    target: ClusterSection
    storage: StorageSection
    mirror: MirrorSection = Field(default_factory=lambda: MirrorSection())
    topics: TopicsSection = Field(default_factory=lambda: TopicsSection())
    topology: TopologySection = Field(default_factory=lambda: TopologySection())
    acls: AclsSection = Field(default_factory=lambda: AclsSection())
    groups: GroupsSection = Field(default_factory=lambda: GroupsSection())
    offsets: OffsetsSection = Field(default_factory=lambda: OffsetsSection())
    schemas: SchemasSection = Field(default_factory=lambda: SchemasSection())
    estimate: EstimateSection = Field(default_factory=lambda: EstimateSection())
    seed: SeedSection = Field(default_factory=lambda: SeedSection())
    tail: TailSection = Field(default_factory=lambda: TailSection())
    cutover: CutoverSection = Field(default_factory=lambda: CutoverSection())
    approvals: ApprovalsSection = Field(default_factory=lambda: ApprovalsSection())
    validation: ValidationSection = Field(default_factory=lambda: ValidationSection())
    evidence: EvidenceSection = Field(default_factory=lambda: EvidenceSection())
    spark: SparkSection = Field(default_factory=lambda: SparkSection())
    notifications: NotificationsSection = Field(default_factory=lambda: NotificationsSection())
    adopt: AdoptSection | None = Field(None, description="Take logs over that are already on both clusters.")
    metrics: MetricsSection = Field(default_factory=lambda: MetricsSection())
    way_back: WayBackSection | None = Field(None, description="How clients can return after they have switched.")
    waive: list[str] | dict[str, str] = Field(
        default_factory=list,
        description="Codes of accepted precheck warnings; or a mapping of code to reason, which is journaled.",
    )

    @model_validator(mode="after")
    def _keys_go_together(self, info: ValidationInfo) -> MigrationSpec:
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        recorded = bool((info.context or {}).get("recorded"))
        given = {name: item for name, item in sections.items() if name == "kind" or isinstance(item, Section)}
        found = conflicts(given, recorded=recorded)
        if found:
            raise _ConflictsError(found)
        if self.kind == "mirror":
            # The selection and the names of topics follow from the aliases; all callers ask the section for them.
            rename = self.topics.rename
            topics = self.topics.of_flow(self.mirror.rename(rename), self.mirror.names(rename))
            object.__setattr__(self, "topics", topics)
        return self

    @property
    def freezes_promotion(self) -> bool:
        """Whether a mirror stops the producers itself before it is promoted; in a migration the cutover does."""
        return self.kind == "mirror" and self.cutover.freeze != "manual" and not self.mirror.merges

    @property
    def is_way_back(self) -> bool:
        """Whether the target is the old cluster of a migration whose clients have switched."""
        return self.adopt is not None and self.adopt.from_ == "way_back"

    @property
    def is_two_way(self) -> bool:
        """Whether another flow copies from the target back to the source."""
        return self.kind == "mirror" and self.mirror.two_way

    @property
    def quota_policy(self) -> QuotaPolicy:
        """What becomes of client quotas. Two flows in opposite directions would set back each other's changes."""
        return "skip" if self.is_two_way else self.acls.quotas

    def check_kind(self, kind: str, *, path: str | None = None) -> MigrationSpec:
        """Return this spec, if it is of a kind.

        :raises SpecInvalid: it is of the other one.
        """
        if self.kind == kind:
            return self
        instead = "run it with kafka-migration mirror" if self.kind == "mirror" else "set kind: mirror and its section"
        raise SpecInvalid(
            f"this is the spec of a {self.kind}, not of a {kind}",
            where=Where(migration_id=self.migration_id, path=path),
            next_step=instead,
        )

    @model_serializer(mode="wrap")
    def _without_later_sections(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what later versions added and this spec does not use, so that its digest stays the same."""
        data: dict[str, Any] = dump(self)
        left_out = {name for name in OPTIONAL_SECTIONS if data.get(name) is None}
        if self.kind == "migration":
            left_out |= {"kind", "mirror"}
        if self.metrics == MetricsSection():
            left_out.add("metrics")
        return {name: value for name, value in data.items() if name not in left_out}


class _ConflictsError(ValueError):
    """Several mistakes in one pydantic error; :func:`parse_spec` separates them again."""

    def __init__(self, found: list[Mistake]) -> None:
        super().__init__("; ".join(f"{path}: {reason}" for path, reason in found))


def parse_spec(data: Any, *, path: str | None = None, recorded: bool = False) -> MigrationSpec:
    """Parse the spec in a mapping and apply all defaults.

    :param recorded: the spec was accepted before, perhaps by an earlier version: what is a mistake only in a new spec,
        such as secrets in plain text, is tolerated, and :func:`with_mirror_defaults` has been applied if it is to be.
    :raises SpecInvalid: with every mistake as ``{"path", "reason", "value"}`` in ``details["mistakes"]``.
    """
    where = Where(path=path)
    if not isinstance(data, Mapping):
        raise SpecInvalid(
            "the spec is not a mapping",
            where=where,
            next_step="start from the example in docs/spec.md",
            details={"mistakes": [{"path": "(whole spec)", "reason": "not a mapping"}]},
        )
    content = dict(data) if recorded else with_mirror_defaults(data)
    try:
        return MigrationSpec.model_validate(content, context={"recorded": recorded})
    except ValidationError as error:
        mistakes = _mistakes(error, content, recorded=recorded)
        listing = "; ".join(f"{mistake['path']}: {mistake['reason']}" for mistake in mistakes)
        raise SpecInvalid(
            f"{len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''} in the spec: {listing}",
            where=where,
            next_step="correct all of them; `kafka-migration validate FILE` checks a spec file",
            details={"mistakes": mistakes},
        ) from None


def with_mirror_defaults(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec that somebody wrote, with those defaults of a mirror that are not the defaults of a migration.

    Nobody but the mirror is to write to its remote topics, so a mirror that copies ACLs holds WRITE back until its
    promotion. A spec that is read from a journal has all its values, and keeps them.
    """
    content, given = dict(data), data.get("acls")
    acls = dict(given) if isinstance(given, Mapping) else {}
    if content.get("kind") != "mirror" or not (given is None or isinstance(given, Mapping)) or "write_grants" in acls:
        return content
    if acls.get("policy") == "mirror_maker":
        acls["write_grants"] = "never"
    elif acls.get("policy") != "skip" and acls.get("target_auth") != "iam":
        acls["write_grants"] = "at_cutover"
    return {**content, "acls": acls} if acls else content


def _mistakes(error: ValidationError, data: dict[str, Any], *, recorded: bool) -> list[dict[str, str]]:
    """Collect the mistakes that pydantic found, and the conflicts between valid keys."""
    items = [
        item
        for item in error.errors(include_url=False, include_input=False)
        if not isinstance(item.get("ctx", {}).get("error"), _ConflictsError)
    ]
    found = [*describe(items, MigrationSpec), *conflicts(_valid_sections(data), recorded=recorded)]
    return [{"path": path or "(whole spec)", "reason": reason} for path, reason in found]


def _valid_sections(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return all sections, with only the valid keys of a section with mistakes; leave out unreadable sections."""
    sections: dict[str, Any] = {"kind": data.get("kind", "migration")}
    for name, field in MigrationSpec.model_fields.items():
        kind: Any = field.annotation
        content = data.get(name, {})
        if name in OPTIONAL_SECTIONS:
            kind = next(item for item in get_args(kind) if item is not type(None))
            if content is None or name not in data:
                continue
        if isinstance(kind, type) and issubclass(kind, Section) and isinstance(content, Mapping):
            with contextlib.suppress(ValidationError):
                sections[name] = _valid_keys(kind, content)
    return sections


def _valid_keys(kind: type[Section], content: Mapping[str, Any]) -> Section | ValidKeys:
    try:
        return kind.model_validate(dict(content))
    except ValidationError as error:
        rest: dict[str, Any] = copy.deepcopy(dict(content))
        wrong = {_take_out(rest, item["loc"]) for item in error.errors(include_url=False, include_input=False)}
        return ValidKeys(kind.model_validate(rest), wrong)


def _take_out(content: dict[str, Any], location: tuple[int | str, ...]) -> str:
    """Remove a wrong key, or the list that has a wrong item, from a section, and return its path."""
    path: list[str] = []
    place: Any = content
    for part in location:
        path.append(str(part))
        if not isinstance(place.get(part), dict) or len(path) == len(location):
            place.pop(part, None)
            break
        place = place[part]
    return ".".join(path)


def load_spec(path: str | Path, *, recorded: bool = False) -> MigrationSpec:
    """Load the spec from a YAML (or JSON) file.

    :param recorded: as in :func:`parse_spec`.
    :raises SpecInvalid: unreadable file, bad YAML, duplicate keys, or mistakes in the spec.
    """
    return parse_spec(read_yaml(path), path=str(Path(path)), recorded=recorded)


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML (or JSON) file.

    :raises SpecInvalid: unreadable file, bad YAML, or duplicate keys.
    """
    file = Path(path)
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise SpecInvalid(
            f"the file cannot be read: {error.strerror}", where=Where(path=str(file)), next_step="check the path"
        ) from None
    except UnicodeDecodeError:
        raise SpecInvalid(
            "the file is not UTF-8 text", where=Where(path=str(file)), next_step="give the path of a YAML or JSON file"
        ) from None
    except RecursionError:
        raise SpecInvalid(
            "not valid YAML: nested too deeply", where=Where(path=str(file)), next_step="correct the file"
        ) from None
    except yaml.YAMLError as error:
        raise SpecInvalid(
            f"not valid YAML: {error}", where=Where(path=str(file)), next_step="correct the YAML at that line"
        ) from None


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses duplicate keys: plain YAML silently keeps the last one, a spec must not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key_node.start_mark)
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the spec, for editors."""
    schema = MigrationSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
