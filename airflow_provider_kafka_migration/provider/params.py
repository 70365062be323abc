"""Conversion between a DAG run's Params and a spec.

The generic DAG shows the most used fields as a form; the rest of a spec goes into ``more``. Types, defaults and
descriptions come from the spec's own model, so the form cannot disagree with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from airflow.sdk import Param
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from airflow_provider_kafka_migration.errors import IllegalTransition, SpecInvalid, Where
from airflow_provider_kafka_migration.provider.connections import airflow_resolver
from airflow_provider_kafka_migration.spec import MIGRATION_ID_PATTERN, MigrationSpec, parse_spec

if TYPE_CHECKING:
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.spec import MigrationSpec


Kind = Literal["migration", "mirror"]

#: Param that holds every part of the spec that has no field in the form.
MORE = "more"
#: Param of runs that are the way back of the migration that their other Params name.
WAY_BACK = "way_back"
#: Param that lets this run take the migration over from another one.
TAKEOVER = "takeover"
#: Of the DAG that rolls back.
WITHDRAW_ACCESS = "withdraw_access"
#: Params of a comparison: patterns of topic names, and the number of last offsets of each partition.
COMPARED_TOPICS, COMPARED_LAST = "compared_topics", "compared_last"


@dataclass(frozen=True)
class FormField:
    """One field of the form.

    :param name: key among the DAG run's Params.
    :param path: dotted path in the spec.
    :param required: the form requires a value.
    :param pattern: Airflow also checks it at the start of each task, even in runs that an earlier version started. So
        a pattern must never become stricter, or the tasks that lift a freeze could not start; such rules belong in the
        spec.
    """

    name: str
    path: str
    section: str
    title: str
    required: bool = False
    pattern: str | None = None


FIELDS: tuple[FormField, ...] = (
    FormField("migration_id", "migration_id", "Migration", "Migration id", True, MIGRATION_ID_PATTERN),
    FormField("description", "description", "Migration", "Description"),
    FormField("source", "source.conn_id", "Clusters", "Source connection", True),
    FormField("target", "target.conn_id", "Clusters", "Target connection", True),
    FormField("journal", "storage.journal", "Storage", "Journal location", True, r"^(s3|file)://.+"),
    FormField("archive", "storage.archive", "Storage", "Archive location"),
    FormField("evidence", "storage.evidence", "Storage", "Evidence location"),
    FormField("storage", "storage.conn_id", "Storage", "AWS connection"),
    FormField("topics_include", "topics.include", "Topics and groups", "Topics to migrate"),
    FormField("topics_exclude", "topics.exclude", "Topics and groups", "Topics to leave out"),
    FormField("groups_include", "groups.include", "Topics and groups", "Consumer groups to migrate"),
    FormField("groups_exclude", "groups.exclude", "Topics and groups", "Consumer groups to leave out"),
    FormField("acls_policy", "acls.policy", "Topics and groups", "ACLs"),
    FormField("offsets", "offsets.mode", "Copy", "Offsets"),
    FormField("seed_via", "seed.via", "Copy", "Seed through"),
    FormField("spark", "spark.conn_id", "Copy", "Spark connection"),
    FormField("drain_max_partition_lag", "tail.drain_max_partition_lag", "Copy", "Largest lag to be ready"),
    FormField("freeze", "cutover.freeze", "Cutover", "How producers are frozen"),
    FormField("freeze_webhook", "cutover.producer_freeze_webhook", "Cutover", "Freeze webhook"),
    FormField("webhook_secret", "cutover.webhook_secret", "Cutover", "Webhook secret (a reference)"),
    FormField("sentinel", "cutover.sentinel", "Cutover", "Sentinels"),
    FormField("on_bypass", "cutover.on_bypass", "Cutover", "When a producer continues to write"),
    FormField("approvers", "approvals.assigned_users", "Approvals and evidence", "Who may approve"),
    FormField("signing_key", "evidence.signing_key", "Approvals and evidence", "Signing key (a reference)"),
)


_ALIAS = r"^[a-zA-Z0-9._-]+$"

#: Fields of a mirror's form that a migration's has not.
MIRROR_FIELDS: tuple[FormField, ...] = (
    FormField("source_alias", "mirror.source_alias", "Clusters", "Alias of the source", True, _ALIAS),
    FormField("target_alias", "mirror.target_alias", "Clusters", "Alias of the target", True, _ALIAS),
    FormField("known_aliases", "mirror.known_aliases", "Clusters", "Other aliases"),
    FormField("naming", "mirror.naming", "Topics and groups", "Names on the target"),
    FormField("two_way", "mirror.two_way", "Topics and groups", "The opposite flow exists, too"),
    FormField("sync_groups", "mirror.sync_groups", "Topics and groups", "Keep groups up to date"),
)

#: Fields that both forms have, with the words of a mirror where they differ.
_SHARED: Mapping[str, str] = {
    "migration_id": "Mirror id",
    "description": "",
    "source": "",
    "target": "",
    "journal": "",
    "storage": "",
    "topics_include": "Topics to mirror",
    "topics_exclude": "",
    "groups_include": "Consumer groups to mirror",
    "groups_exclude": "",
    "acls_policy": "",
    "seed_via": "",
    "archive": "",
    "spark": "",
}


def _mirror_form() -> Iterator[FormField]:
    """Yield the fields of a mirror's form in their order: sections stay together."""
    sections = ("Mirror", "Clusters", "Storage", "Topics and groups", "Copy")
    shared = [
        replace(field, title=_SHARED[field.name] or field.title, section=field.section.replace("Migration", "Mirror"))
        for field in FIELDS
        if field.name in _SHARED
    ]
    for section in sections:
        yield from (field for field in (*shared, *MIRROR_FIELDS) if field.section == section)


def mirror_params() -> dict[str, Param]:
    """Return the Params of the generic DAG of mirrors, in the order of the form."""
    params = {field.name: _param(field) for field in _mirror_form()}
    params[MORE] = _more('{"topology": {"refresh_interval": "30s"}}')
    params.update(run_params("mirror"))
    return params


def migration_params() -> dict[str, Param]:
    """Return the Params of the generic DAG, in the order of the form."""
    params = {field.name: _param(field) for field in FIELDS}
    params[MORE] = _more('{"tail": {"drain_stable_window": "1m"}}')
    params.update(run_params())
    return params


def _more(example: str) -> Param:
    return Param(
        {},
        type=["object", "null"],
        title="Everything else",
        description_md=f"Any other part of the spec as JSON, for instance `{example}`. "
        "It overrides the fields above. All keys: docs/spec.md.",
        section="More",
    )


def run_params(kind: Kind = "migration") -> dict[str, Param]:
    """Return the Params that concern this run rather than the spec."""
    return {
        TAKEOVER: Param(
            False,
            type="boolean",
            title="Take over",
            description_md=f"Only when another run or the CLI holds this {kind} and will not come back: its next "
            "write is then refused. A run takes over once.",
            section="More",
        )
    }


def verify_params(topics: Sequence[str] = (), last: int | None = None, *, generic: bool = False) -> dict[str, Param]:
    """Return the Params of a DAG that compares a mirror.

    :param topics: what a run compares if nobody says otherwise, also ``last``.
    :param generic: the spec comes from the Params, too.
    """
    section = "Comparison"
    params = {
        COMPARED_TOPICS: Param(
            list(topics),
            type="array",
            items={"type": "string"},
            title="Topics to compare",
            description="Regular expressions for whole topic names, on either side. Empty: all topics.",
            section=section,
        ),
        COMPARED_LAST: Param(
            last,
            type=["null", "integer"],
            minimum=1,
            title="Last offsets",
            description="Compare only so many last offsets of each partition. Empty: all that both sides still have.",
            section=section,
        ),
    }
    if not generic:
        return params
    return {**{name: item for name, item in mirror_params().items() if name != TAKEOVER}, **params}


def spec_from_params(params: Mapping[str, Any]) -> MigrationSpec:
    """Return the spec in a DAG run's Params.

    :raises SpecInvalid: with every mistake.
    """
    return parse_spec(spec_data(params))


def spec_data(params: Mapping[str, Any], kind: Kind | None = "migration") -> dict[str, Any]:
    """Return the spec data in a DAG run's Params, complete or not, without checking it.

    :param kind: what the DAG is for. Its form does not ask for it.
    """
    data: dict[str, Any] = {"kind": kind} if kind == "mirror" else {}
    for field in (*FIELDS, *MIRROR_FIELDS) if kind == "mirror" else FIELDS:
        value = params.get(field.name)
        if value is not None and value != "":
            _put(data, field.path, value)
    return _merged(data, params.get(MORE) or {})


#: Fields of the form needed to find and open a migration's journal; the journal has the rest.
JOURNAL_FIELDS = ("migration_id", "journal", "storage")
#: Fields that override the journal: the same clusters, reached in another way.
CONNECTION_FIELDS = ("source", "target")


def journal_params() -> dict[str, Param]:
    """Return the Params of a DAG that reads its spec from the journal."""
    by_name = {field.name: field for field in FIELDS}
    params = {name: _param(by_name[name]) for name in JOURNAL_FIELDS}
    for name in CONNECTION_FIELDS:
        params[name] = Param(
            None,
            type=["null", "string"],
            title=by_name[name].title,
            description="Only to reach the same cluster through another connection; empty: the one in the journal.",
            section=by_name[name].section,
        )
    return params


def params_from_spec(spec: Mapping[str, Any] | MigrationSpec) -> dict[str, Any]:
    """Return the ``conf`` that triggers the generic DAG of its kind for a spec (REST, CLI)."""
    data = spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, MigrationSpec) else dict(spec)
    fields = _mirror_form() if data.get("kind") == "mirror" else FIELDS
    required = {field.name: _get(data, field.path) for field in fields if field.required}
    return {**required, MORE: data}


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        data = data.setdefault(section, {})
    data[last] = value


def _get(data: Mapping[str, Any], path: str) -> Any:
    value: Any = data
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings; in all other values ``over`` replaces ``base``."""
    result = dict(base)
    for key, value in over.items():
        mine = result.get(key)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(mine, value) if both else value  # type: ignore[arg-type]
    return result


def _param(field: FormField) -> Param:
    info = _field_info(field.path)
    default = info.get_default(call_default_factory=True)
    schema = dict(_json_schema(info.annotation, required=field.required))
    if field.pattern:
        schema["pattern"] = field.pattern
    extra = {"title": field.title, "description": info.description, "section": field.section, **schema}
    # What a form requires has no value to begin with.
    return Param(**extra) if field.required or default is PydanticUndefined else Param(default, **extra)


def _field_info(path: str) -> FieldInfo:
    model: type[BaseModel] = MigrationSpec
    *sections, last = path.split(".")
    for section in sections:
        annotation = model.model_fields[section].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    return model.model_fields[last]


def _json_schema(annotation: Any, *, required: bool) -> Iterator[tuple[str, Any]]:
    if get_origin(annotation) is Literal:
        yield from (("type", "string"), ("enum", list(get_args(annotation))))
    elif get_origin(annotation) is list:
        yield from (("type", "array"), ("items", {"type": "string"}))
    elif annotation in (bool, int):
        yield ("type", "boolean" if annotation is bool else "integer")
    else:
        yield ("type", "string" if required else ["null", "string"])


# -- recorded ---------------------------------------------------------------------------------------------------------
#
# From a DAG run's Params to the spec in the migration's journal.


def recorded_run_spec(params: Mapping[str, Any], resolver: Resolver | None = None) -> MigrationSpec:
    """Return the spec of the migration that the Params name, from its journal; connections in the Params override it.

    :raises SpecInvalid: the Params do not give the journal's location.
    :raises IllegalTransition: the migration does not exist.
    """
    from airflow_provider_kafka_migration.journal.journal import Journal
    from airflow_provider_kafka_migration.journal.spec_guard import recorded_spec
    from airflow_provider_kafka_migration.storage.open import open_store
    from airflow_provider_kafka_migration.storage.s3 import S3Config

    given = spec_data(params)
    storage = given.get("storage") or {}
    migration_id, location, reference = given.get("migration_id"), storage.get("journal"), storage.get("conn_id")
    if not migration_id or not location:
        raise SpecInvalid(
            "migration_id and the journal's location are needed to read the spec from the journal",
            next_step="fill in both fields of the form",
        )
    known = resolver or airflow_resolver()
    store = open_store(location, S3Config.from_dict(known.mapping(reference)) if reference else None)
    journal = Journal(store, migration_id)
    if not journal.exists:
        raise IllegalTransition(
            "the migration does not exist",
            where=Where(migration_id=migration_id, path=store.uri),
            next_step="check the migration id and the journal's location",
        )
    spec = recorded_spec(journal)
    if reference:
        spec.setdefault("storage", {})["conn_id"] = reference
    for side in CONNECTION_FIELDS:
        connection = (given.get(side) or {}).get("conn_id")
        if connection:
            spec.setdefault(side, {})["conn_id"] = connection
    return parse_spec(spec, recorded=True)


def way_back_params() -> dict[str, Param]:
    """Return the Params of the DAG that runs a way back: they name the first migration."""
    params = journal_params()
    params[WAY_BACK] = Param(
        True, type="boolean", enum=[True], title="Way back", description="Of the migration above.", section="More"
    )
    params[MORE] = Param(
        {},
        type=["object", "null"],
        title="Different from the first migration",
        description_md='Any part of the spec of the way back as JSON, for instance `{"spark": {"conf": {...}}}`, which '
        "no journal has, or another freeze of the new cluster's producers.",
        section="More",
    )
    params.update(run_params())
    return params


def way_back_conf(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``conf`` that triggers the way back of a migration, with what its journal does not have.

    :param spec: the migration's spec as data.
    """
    by_name = {field.name: _get(spec, field.path) for field in FIELDS if field.name in JOURNAL_FIELDS}
    found = {name: value for name, value in by_name.items() if value is not None}
    conf = _get(spec, "spark.conf")
    return {**found, WAY_BACK: True, **({MORE: {"spark": {"conf": dict(conf)}}} if conf else {})}


def way_back_run_spec(params: Mapping[str, Any]) -> MigrationSpec:
    """Return the spec of the way back of the migration that the Params name, derived from its journal.

    :raises SpecInvalid: the Params do not give the journal's location, or this migration cannot go back.
    :raises IllegalTransition: the migration does not exist.
    :raises Terminal: its clients have not switched.
    """
    from airflow_provider_kafka_migration.migration import Migration
    from airflow_provider_kafka_migration.way_back.derived_spec import derive

    first = recorded_run_spec({name: value for name, value in params.items() if name != MORE})
    with (
        Migration.open(first, "way-back", airflow_resolver(), actor="way_back") as migration,
        migration.reading() as context,
    ):
        spec = derive(context.record)
    more = params.get(MORE) or {}
    return parse_spec(_merged(spec.model_dump(mode="json"), more), recorded=True) if more else spec
