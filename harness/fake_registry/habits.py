"""In which habits registries differ from Confluent's, as far as a migration meets them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Habits:
    """Switches of the fake; the defaults are Confluent Schema Registry 8.1.5.

    :param contexts: the answer to ``GET /contexts``; None: 404. ``/contexts/.x/`` paths exist only with "confluent".
    :param mode_writes: PUT and DELETE of modes work; else 405.
    :param mode_enforced: modes have an effect on writes.
    :param fixed_ids: ``id`` and ``version`` in the body count; else they are ignored.
    :param levels: a missing config or mode level is answered by 404; else by 200 with the default.
    :param full_answers: guid, schemaType of Avro, ``ts`` and ``deleted`` are in the answers.
    :param canonical_texts: texts are stored in canonical form; else as they were sent.
    :param subject_prefix: the parameter ``subjectPrefix`` has an effect.
    :param deleted_subjects_read: versions of a subject without live versions can be read with ``deleted=true``.
    :param json_references: JSON Schemas may have references.
    :param metadata: metadata is kept.
    :param rule_sets: rule sets are kept. Confluent's community build, which was recorded, drops them; its other builds
        keep them by their documents.
    :param ids_per_context: each context numbers its ids; else one sequence.
    :param default_level: the global compatibility level at the start.
    :param not_soft_deleted_status: status of a permanent deletion that was not preceded by a soft one.
    :param incompatible_code: error code of a schema that is refused as incompatible.
    :param invalid_mode_code: error code of a mode that does not exist.
    :param context_in_messages: refusals name the context.
    :param server: the header ``Server``; empty: none.
    """

    name: str = "confluent"
    contexts: str | None = "confluent"
    mode_writes: bool = True
    mode_enforced: bool = True
    fixed_ids: bool = True
    levels: bool = True
    full_answers: bool = True
    canonical_texts: bool = True
    subject_prefix: bool = True
    deleted_subjects_read: bool = True
    json_references: bool = True
    metadata: bool = True
    rule_sets: bool = False
    ids_per_context: bool = True
    default_level: str = "BACKWARD"
    not_soft_deleted_status: int = 404
    incompatible_code: int = 40901
    invalid_mode_code: int = 42204
    context_in_messages: bool = True
    server: str = ""


CONFLUENT = Habits()
#: A build with data contracts. Not recorded.
CONFLUENT_WITH_RULES = Habits(rule_sets=True)
KARAPACE = Habits(
    name="karapace",
    contexts=None,
    mode_writes=False,
    fixed_ids=False,
    full_answers=False,
    json_references=False,
    metadata=False,
    ids_per_context=False,
    incompatible_code=409,
    context_in_messages=False,
)
APICURIO = Habits(
    name="apicurio",
    contexts="apicurio",
    mode_enforced=False,
    fixed_ids=False,
    levels=False,
    full_answers=False,
    canonical_texts=False,
    subject_prefix=False,
    deleted_subjects_read=False,
    metadata=False,
    ids_per_context=False,
    default_level="NONE",
    not_soft_deleted_status=409,
    incompatible_code=409,
    invalid_mode_code=42201,
    context_in_messages=False,
)
REDPANDA = Habits(
    name="redpanda",
    contexts=None,
    full_answers=False,
    metadata=False,
    ids_per_context=False,
    incompatible_code=409,
    context_in_messages=False,
    server="Seastar httpd",
)
KINDS = {habits.name: habits for habits in (CONFLUENT, KARAPACE, APICURIO, REDPANDA)}
