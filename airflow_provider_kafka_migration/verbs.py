"""The three verbs of all ``on_*`` keys, what each key means by them, and the words that earlier versions had. Pure.

Old words are read where a spec or a recorded document is parsed, and nowhere else: all other code knows three words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo

#: stop: nothing goes on until a person has decided. note: it goes on, and is named. repair: the migration mends it.
Choice = Literal["stop", "note", "repair"]


@dataclass(frozen=True)
class Verbs:
    """What an ``on_*`` key is about, and what each verb does.

    :param when: what happens, as the beginning of its description.
    :param means: each verb that the key takes, with its meaning.
    :param former: words of earlier versions, with the verb that each is read as.
    """

    when: str
    means: Mapping[Choice, str]
    former: Mapping[str, Choice] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The text of docs/spec.md."""
        return f"{self.when}. " + "; ".join(f"{verb}: {means}" for verb, means in self.means.items()) + "."


VERBS: Mapping[str, Verbs] = {
    "topology.on_config_drift": Verbs(
        "A target topic exists with other configs",
        {
            "stop": "the precheck blocks",
            "note": "the target keeps them, and the plan names them",
            "repair": "the source's configs overwrite them",
        },
        {"refuse": "stop", "keep_target": "note", "overwrite_with_source": "repair"},
    ),
    "topology.on_source_drift": Verbs(
        "Topic configs, ACLs, SCRAM users or quotas change on the source after the plan",
        {
            "stop": "they stop the cutover",
            "note": "they are only named (approval, validation, evidence)",
            "repair": "the tail applies them to the target",
        },
        {"refuse": "stop", "ignore": "note", "follow": "repair"},
    ),
    "topology.on_topic_deleted": Verbs(
        "A topic is deleted or recreated on the source while the tail runs",
        {
            "stop": "nothing goes on before the cutover, or the promotion",
            "note": "continue without it (its copy stays; the evidence names it)",
            "repair": "as note, and in a mirror a person may have its copy deleted (kafka-migration mirror topics "
            "--delete), so that a recreated topic is mirrored afresh",
        },
        {"fail": "stop", "drop": "note", "delete": "repair"},
    ),
    "groups.on_active_source": Verbs(
        "Groups still have members on the source at the acknowledgement of the client switch",
        {
            "stop": "wait ten minutes for their consumers to stop, then refuse the acknowledgement",
            "note": "name them, and go on",
        },
        {"fail": "stop", "wait": "stop", "warn": "note"},
    ),
    "groups.on_deleted": Verbs(
        "A group was deleted on the source of a mirror",
        {
            "note": "the target keeps it",
            "repair": "it is deleted there, too, if nobody but the mirror has ever used it there",
        },
        {"keep": "note", "delete": "repair"},
    ),
    "offsets.on_mismatch": Verbs(
        "A hole was filled twice, or the remaining holes exceed the budget",
        {"stop": "the partition fails", "note": "it goes on as mapped, and is named so"},
        {"fail": "stop", "mapped": "note"},
    ),
    "offsets.on_foreign_writer": Verbs(
        "A target topic holds foreign data or has a foreign producer",
        {
            "stop": "nothing is copied into it",
            "note": "copy into it in transactions alongside, and name it (planned; a foreign producer that appears "
            "while copying stops the partition)",
        },
        {"fail": "stop", "transactional": "note"},
    ),
    "offsets.on_source_gap": Verbs(
        "The source's retention overtook the copy",
        {"stop": "the partition fails", "note": "it goes on behind the gap, which the evidence names"},
        {"fail": "stop", "record": "note"},
    ),
    "offsets.on_overtaken_tombstones": Verbs(
        "A compacted partition was read so late (delete.retention.ms) that tombstones may already be removed, and "
        "deleted keys may survive on the target",
        {
            "stop": "the partition fails",
            "note": "it goes on, approvals and evidence name it, and all of it is compared again",
            "repair": "it fails, and the task's next run copies its topic again",
        },
        {"fail": "stop", "warn": "note", "recopy": "repair"},
    ),
    "offsets.on_source_truncation": Verbs(
        "The source has lost records that were already copied (unclean election)",
        {
            "stop": "the partition fails",
            "repair": "it fails, and the task's next run copies its topic again (the target topic is deleted and "
            "recreated)",
        },
        {"fail": "stop", "recopy": "repair"},
    ),
    "schemas.on_conflict": Verbs(
        "The target registry has something that differs",
        {"stop": "no schema is copied", "note": "all others are copied, and the conflicts are named"},
        {"fail": "stop", "report": "note"},
    ),
    "cutover.on_bypass": Verbs(
        "A producer continues to write after the freeze, before clients have switched",
        {
            "stop": "the freeze fails and is lifted; behind READY the client switch is refused",
            "note": "go on without what it writes, and name it",
        },
        {"fail": "stop", "wait": "stop", "continue": "note"},
    ),
    "validation.on_difference": Verbs(
        "A difference is found before the cutover",
        {"stop": "the approval is refused", "note": "the approval shows it"},
        {"block": "stop", "warn": "note"},
    ),
    "validation.on_late_writes": Verbs(
        "Records that were written to the source after the cutover are not on the target",
        {
            "stop": "the validation fails",
            "note": "it warns and names them; so it always does with cutover.on_bypass: note",
        },
        {"fail": "stop", "warn": "note"},
    ),
    "adopt.on_diverged": Verbs(
        "A partition to which the former source got records that were not mirrored before the promotion (from: mirror)",
        {
            "stop": "the precheck blocks",
            "note": "nothing is copied to it, all others go on",
            "repair": "what clients wrote since the promotion follows behind these records, so offsets are shifted by "
            "one constant",
        },
        {"fail": "stop", "leave_out": "note", "append": "repair"},
    ),
    "adopt.on_duplicates": Verbs(
        "A partition on which the other tool wrote records twice, lost some, or copied aborted ones",
        {"stop": "it is not taken over", "note": "it is taken over, and they are named"},
        {"refuse": "stop", "afresh": "stop", "report": "note"},
    ),
}

#: No two keys have one name, so a field of a section or of a recorded document needs no more than its own.
_BY_NAME = {path.rpartition(".")[2]: path for path in VERBS} | {"on_overtaken": "offsets.on_overtaken_tombstones"}


def verb_of(path: str, value: Any) -> Any:
    """Return the verb that a recorded or written value means; all else stays as it is.

    :param path: a key of the spec, or its last part.
    """
    known = _BY_NAME.get(path.rpartition(".")[2])
    return VERBS[known].former.get(value, value) if known is not None and isinstance(value, str) else value


def former_word(path: str, verb: Choice) -> str:
    """Return the first word that earlier versions had for a verb: what must not change by an update is kept in them."""
    return next(word for word, meant in VERBS[path].former.items() if meant == verb)


def in_former_words(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec as JSON data in the words of earlier versions, so that its digest is the one that they recorded."""
    found = dict(spec)
    for path in VERBS:
        section, _, key = path.partition(".")
        if isinstance(found.get(section), Mapping) and key in found[section]:
            found[section] = {**found[section], key: former_word(path, found[section][key])}
    return found


def choose(path: str, value: Any) -> Any:
    """Return the verb that a key of a spec, or a field that carries it, has.

    :raises ValueError: the key does not take it; the text lists what it takes.
    """
    verb, verbs = verb_of(path, value), VERBS[path]
    if not isinstance(verb, str) or verb not in verbs.means:
        raise ValueError(f"{path} takes " + " or ".join(f"{item} ({means})" for item, means in verbs.means.items()))
    return verb


def on(path: str, default: Choice) -> Any:
    """Return the field of an ``on_*`` key; its JSON schema takes former words, as deprecated."""
    verbs = VERBS[path]

    def with_former_words(schema: dict[str, Any]) -> None:
        words = {"enum": schema.pop("enum"), "type": schema.pop("type")}
        schema["anyOf"] = [words, {"enum": list(verbs.former), "deprecated": True}]

    return Field(default, description=verbs.description, json_schema_extra=with_former_words)


def _choose(value: Any, info: ValidationInfo) -> Any:
    return choose(_BY_NAME[str(info.field_name)], value)


def recorded(path: str) -> PlainSerializer:
    """Return what writes the former word of a verb.

    For documents that keep their digest over an update, or that a process of an earlier version may read.
    """
    return PlainSerializer(partial(former_word, path), return_type=str)


AnyVerb = Annotated[Choice, BeforeValidator(_choose)]
StopOrNote = Annotated[Literal["stop", "note"], BeforeValidator(_choose)]
StopOrRepair = Annotated[Literal["stop", "repair"], BeforeValidator(_choose)]
NoteOrRepair = Annotated[Literal["note", "repair"], BeforeValidator(_choose)]


def as_markdown() -> str:
    """Return the table of docs/spec.md: what each key takes, with the words of earlier versions."""
    rows = ["| key | `stop` | `note` | `repair` |", "|---|---|---|---|"]
    for path, verbs in VERBS.items():
        cells = [_cell(verbs, verb) for verb in ("stop", "note", "repair")]
        rows.append(f"| `{path}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _cell(verbs: Verbs, verb: Choice) -> str:
    words = [f"`{word}`" for word, meant in verbs.former.items() if meant == verb]
    return f"yes ({', '.join(words)})" if verb in verbs.means else ""
