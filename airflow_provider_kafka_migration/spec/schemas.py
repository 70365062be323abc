"""The section ``schemas`` of the spec: which schemas move from one registry to the other, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from airflow_provider_kafka_migration.spec.sections import Section, why_not_selected
from airflow_provider_kafka_migration.spec.types import Duration, Regex
from airflow_provider_kafka_migration.verbs import StopOrNote, on

#: Where the records of a topic carry schema ids; ``detect`` decides it from a sample when the plan is made.
RewriteMode = Literal["detect", "key", "value", "both", "none"]

#: A context begins with a dot; the dot alone is the default context.
_CONTEXT = re.compile(r"\.[^:/\s]*")


def check_context(value: str) -> str:
    """Check the name of a context: ``.`` or ``.payments``."""
    if not _CONTEXT.fullmatch(value):
        raise ValueError(
            "a context begins with a dot and has no colon, slash or space: .payments, or . for the default"
        )
    return value


def check_contexts(value: Any) -> Any:
    """Check ``all``, ``default`` or a mapping of source contexts to target contexts."""
    if value in ("all", "default"):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("write all, default, or a mapping of source contexts to target contexts: {.payments: .pay}")
    if not value:
        raise ValueError("an empty mapping selects no context; write all or default, or name at least one context")
    for name in (*value.keys(), *value.values()):
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is not the name of a context")
        check_context(name)
    return dict(value)


#: ``all``, ``default``, or source contexts to target contexts: only these move.
Contexts = Annotated[Literal["all", "default"] | dict[str, str], BeforeValidator(check_contexts)]


class SubjectRenameSection(Section):
    """Names of the subjects on the target. By default TOPIC-key and TOPIC-value follow a renamed topic.

    References to renamed subjects follow, too.
    """

    prefix: str = Field(
        "",
        pattern=r"^[^:/\s]*$",
        description="Prepended to each subject name, behind the context if it has one; then no subject "
        "follows its topic.",
    )
    subjects: dict[str, str] = Field(
        default_factory=dict, description="Exact renames, source subject to target subject, both qualified."
    )


class TopicIdsSection(Section):
    """Where the records of some topics carry schema ids."""

    topics: list[Regex] = Field(min_length=1, description="Names or regular expressions of source topics, full match.")
    rewrite: RewriteMode | None = Field(None, description="Like schemas.rewrite, for these topics; empty: the same.")
    context: Annotated[str, BeforeValidator(lambda value: check_context(str(value)))] | None = Field(
        None,
        description="Context of the source registry in which the ids of these topics are looked up; empty: found by "
        "the sample.",
    )


class SchemasSection(Section):
    """Schema registries: what moves between them, and whether ids in records change. Default: no schemas move."""

    source: str | None = Field(
        None,
        description="Registry of the source: an Airflow connection of type http, env:NAME or file:PATH. Empty: no "
        "registry is read.",
    )
    target: str | None = Field(
        None, description="Registry of the target, likewise. Empty: no registry is written (only with schemas.topic)."
    )
    ids: Literal["auto", "keep", "translate"] = Field(
        "auto",
        description="keep: the target gets the same ids and versions, and records stay as they are; translate: the "
        "target assigns ids, and copiers write these into the records; auto: keep where the target registry can.",
    )
    topic: str | None = Field(
        None,
        min_length=1,
        description="The source registry's own Kafka topic, for instance _schemas: the registry moves with its topic, "
        "and the target registry is started on the copy.",
    )
    include: list[Regex] = Field(
        [".*"], min_length=1, description="Subjects or regular expressions, full match on the qualified name."
    )
    exclude: list[Regex] = Field(
        default_factory=list,
        description="Exclude wins. A subject that a selected one refers to moves anyway, as a reference.",
    )
    rename: SubjectRenameSection = Field(default_factory=lambda: SubjectRenameSection())
    versions: Literal["all", "latest"] = Field("all", description="all versions, or the latest of each subject.")
    include_deleted: bool = Field(
        True, description="Register soft-deleted subjects and versions on the target, and delete them there again."
    )
    normalize: bool = Field(False, description="Ask the target registry to normalize schemas (only with translate).")
    contexts: Contexts = Field(
        "all", description="all, default, or a mapping of source contexts to target contexts: only these move."
    )
    global_config: bool = Field(
        False, description="Also set the global compatibility level and mode of the target registry."
    )
    strict: bool = Field(
        False,
        description="A record whose id the source registry does not know stops its partition; otherwise it is copied "
        "as it is.",
    )
    interval: Duration = Field("30s", description="How often new schemas are copied while records are.")  # type: ignore[assignment]
    on_conflict: StopOrNote = on("schemas.on_conflict", "stop")
    rewrite: RewriteMode = Field(
        "detect",
        description="Where records carry schema ids (translate): in keys, in values, in both (each with their "
        "headers), in none, or detected from a sample when the plan is made.",
    )
    by_topic: list[TopicIdsSection] = Field(
        default_factory=list, description="Different for some topics; the first entry that matches a topic applies."
    )
    source_registry: Literal["leave", "readonly"] = Field(
        "leave", description="readonly: the source registry refuses new schemas from the freeze on, until a rollback."
    )
    max_parallel_requests: int = Field(10, ge=1, le=100, description="Requests to one registry at the same time.")

    @property
    def configured(self) -> bool:
        """Whether anything of a registry moves."""
        return self.source is not None or self.topic is not None

    @property
    def copies(self) -> bool:
        """Whether schemas are copied from registry to registry, and not with the registry's own topic."""
        return self.source is not None and self.topic is None

    def selects(self, subject: str) -> bool:
        """Whether a subject (qualified name) is selected by name; references may move without it."""
        return not self.why_left_out(subject)

    def why_left_out(self, subject: str) -> str:
        """Return why a subject does not move by its own name or context; empty if it does."""
        if why := self._why_not_in_contexts(subject):
            return why
        return why_not_selected("schemas", subject, self.include, self.exclude)

    def _why_not_in_contexts(self, subject: str) -> str:
        context = context_of_subject(subject)
        if self.contexts == "all" or (self.contexts == "default" and context == "."):
            return ""
        if isinstance(self.contexts, dict) and context in self.contexts:
            return ""
        return f"schemas.contexts: {context} is not among them"

    def rewrite_of(self, topic: str) -> RewriteMode:
        """Return where the records of a source topic carry ids."""
        item = self._by_topic(topic)
        return (item.rewrite if item else None) or self.rewrite

    def context_of(self, topic: str) -> str | None:
        """Return the context that the spec names for the ids of a source topic; None if it names none."""
        item = self._by_topic(topic)
        return item.context if item else None

    def _by_topic(self, topic: str) -> TopicIdsSection | None:
        for item in self.by_topic:
            if any(re.fullmatch(pattern, topic) for pattern in item.topics):
                return item
        return None


def context_of_subject(subject: str) -> str:
    """Return the context of a qualified subject name.

    >>> context_of_subject(":.payments:orders-value"), context_of_subject("orders-value")
    ('.payments', '.')
    """
    match = re.match(r":(\.[^:]*):", subject)
    return match[1] if match else "."
