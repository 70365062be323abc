"""Which subjects move, and what they are called on the target.

A subject follows its topic: if ``topics.rename`` changes the topic ``orders`` to ``eu.orders``, the subjects
``orders-key`` and ``orders-value`` become ``eu.orders-key`` and ``eu.orders-value``, because the serializers of the
target build these names from the new topic (TopicNameStrategy). ``schemas.rename`` wins where it names the subject or
has a prefix. Names that a record gives (RecordNameStrategy) stay. Schema ids do not depend on any of this.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_kafka_migration.registry.model import DEFAULT_CONTEXT, Subject
from airflow_provider_kafka_migration.spec import SchemasSection

#: What TopicNameStrategy appends to a topic's name.
SUFFIXES = ("-key", "-value")


@dataclass(frozen=True)
class Selection:
    """The part of the spec that decides about names. All names of subjects are qualified.

    :param include: regular expressions, full match on the qualified name of the source.
    :param exclude: likewise; exclude wins.
    :param contexts: ``all``, ``default``, or source contexts to target contexts (only these move).
    :param renames: exact renames, source subject to target subject, within the context: ids are per context.
    :param topics: source topics to target topics of the migration.
    """

    include: tuple[str, ...] = (".*",)
    exclude: tuple[str, ...] = ()
    contexts: Literal["all", "default"] | Mapping[str, str] = "all"
    prefix: str = ""
    renames: Mapping[str, str] = field(default_factory=dict)
    versions: Literal["all", "latest"] = "all"
    include_deleted: bool = True
    topics: Mapping[str, str] = field(default_factory=dict)
    #: Set by :meth:`exactly`: the only subjects that are selected.
    names: frozenset[str] | None = None
    #: Names whose level and mode are to be read even if they have no versions: no list shows them.
    asked: frozenset[str] = frozenset()
    #: Further contexts of :meth:`exactly` whose level and mode are to be read.
    named_contexts: frozenset[str] = frozenset()

    @classmethod
    def from_spec(cls, section: SchemasSection, topics: Mapping[str, str]) -> Selection:
        """Return the selection of a spec.

        :param topics: source topics to target topics of the migration.
        """
        return cls(
            include=tuple(section.include),
            exclude=tuple(section.exclude),
            contexts=section.contexts,
            prefix=section.rename.prefix,
            renames=dict(section.rename.subjects),
            versions=section.versions,
            include_deleted=section.include_deleted,
            topics=dict(topics),
        )

    @classmethod
    def exactly(cls, names: Iterable[str], contexts: Iterable[str] = (), asked: Iterable[str] = ()) -> Selection:
        """Select some subjects by name, with all their versions: for the target registry.

        :param contexts: further ones whose level and mode are to be read.
        :param asked: further subjects whose level and mode are to be read even if they have no versions.
        """
        asked = frozenset(asked)
        chosen = frozenset(names) | asked
        return cls(
            names=chosen,
            asked=asked,
            named_contexts=frozenset({*contexts, *(Subject.parse(name).context for name in chosen)}),
        )

    def why_left_out(self, subject: str) -> str:
        """Return why a subject does not move by its own name; empty if it does."""
        if self.names is not None:
            return "" if subject in self.names else "not asked for"
        context = Subject.parse(subject).context
        if not self.selects_context(context):
            return f"schemas.contexts does not have the context {context}"
        for pattern in self.exclude:
            if re.fullmatch(pattern, subject, re.DOTALL):
                return f"schemas.exclude: {pattern}"
        if any(re.fullmatch(pattern, subject, re.DOTALL) for pattern in self.include):
            return ""
        return "not in schemas.include"

    def selects(self, subject: str) -> bool:
        """Whether a subject of the source moves by its own name."""
        return not self.why_left_out(subject)

    def selects_context(self, context: str) -> bool:
        """Whether subjects of a source context move."""
        if self.names is not None:
            return context in self.named_contexts
        if self.contexts == "all":
            return True
        if self.contexts == "default":
            return context == DEFAULT_CONTEXT
        return context in self.contexts

    def target_context(self, context: str) -> str:
        """Return the context of the target for a source context."""
        return self.contexts.get(context, context) if isinstance(self.contexts, Mapping) else context

    def target_subject(self, subject: str) -> str:
        """Return the qualified name of a source subject on the target."""
        exact = self.renames.get(subject)
        if exact is not None:
            return exact
        context, name = Subject.parse(subject)
        renamed = f"{self.prefix}{name}" if self.prefix else self._by_topic(name)
        return Subject(self.target_context(context), renamed).qualified

    def _by_topic(self, name: str) -> str:
        for suffix in SUFFIXES:
            topic = name.removesuffix(suffix)
            if topic != name and topic in self.topics:
                return f"{self.topics[topic]}{suffix}"
        return name


def topics_of(subject: str, topics: Container[str], record_names: Iterable[str] = ()) -> list[str]:
    """Return the topics whose records use a subject, judged by its name, ascending.

    ``orders-value`` belongs to the topic ``orders`` (TopicNameStrategy). ``orders-t.Order`` does if the subject's
    schemas have a record of that name (TopicRecordNameStrategy). A subject that is called like its record
    (RecordNameStrategy) may be used by any topic; its name does not show which.
    """
    name = Subject.parse(subject).name
    endings = [*SUFFIXES, *(f"-{record}" for record in record_names)]
    bases = {name.removesuffix(ending) for ending in endings if name.endswith(ending)}
    return sorted(base for base in bases if base in topics)
