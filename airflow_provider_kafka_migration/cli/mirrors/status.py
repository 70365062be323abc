"""``kafka-migration mirror status``: what a mirror's journal and its copiers' reports say."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from airflow_provider_kafka_migration.cli.frame import (
    Answer,
    ExitCode,
    answering,
    commands_in,
)
from airflow_provider_kafka_migration.cli.migrate import (
    MigrationOpener,
    VerboseOption,
    make_view,
)
from airflow_provider_kafka_migration.cli.mirrors.flow import load_mirror, state_name
from airflow_provider_kafka_migration.cli.session import SpecArgument
from airflow_provider_kafka_migration.cli.status import (
    Look,
    held_elsewhere,
    holder,
    look,
    mirror_steps,
    raw_rows,
    screen,
    status_data,
    trouble_rows,
)
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State, mirror_name

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, MirrorVerification
    from airflow_provider_kafka_migration.metrics.groups import GroupFigures
    from airflow_provider_kafka_migration.metrics.snapshot import Snapshot
    from airflow_provider_kafka_migration.migration import Status


@answering
def status(file: SpecArgument, verbose: VerboseOption = False) -> Answer:
    """Show a mirror's state, lag, groups, last comparison and last request, from its journal alone.

    Exit status 10 if it is paused.
    """
    return status_answer(file, verbose=verbose)


def status_answer(file: Path, *, verbose: bool) -> Answer:
    """Return the state of a mirror as a command's answer."""
    from airflow_provider_kafka_migration.metrics.snapshot import Snapshot
    from airflow_provider_kafka_migration.mirrors import (
        group_deletions,
        group_sync,
        mirror_maker_state,
        missed_tombstones,
        requests,
        retention,
        verification,
    )

    spec = load_mirror(file)
    with MigrationOpener(spec, make_view(quiet=True)).open() as migration:
        found = migration.status()
        request = requests.read(migration.journal_store, spec.migration_id)
        silence = migration.tail_silence() if found.state is State.TAIL else ""
        with migration.reading() as context:
            seen = look(context, found)
            snapshot = Snapshot.of(context.journal_store, context.record.job_progress("tail"))
            tombstones = missed_tombstones.last_risk(context.record)
            kept = retention.last_problems(context.record)
            missing = group_deletions.read_missing(context.record)
            deleted = group_deletions.deleted(context.record)
            copies = spec.mirror.sync_groups and found.working_state in (State.SEED, State.TAIL)
            synced = group_sync.last_report(context.record) if copies else None
            verified = verification.last_verification(context.record)
            state_topics = mirror_maker_state.last_reports(context.record)
    copied = {} if snapshot is None else _figures(spec, snapshot)
    groups = None if snapshot is None or snapshot.groups is None else _groups(snapshot.groups)
    data = {
        **status_data(found, seen, str(file)),
        "state": None if found.state is None else mirror_name(found.state),
        "lag": copied.get("lag"),
        "verdicts": copied.get("verdicts"),
        "silence": silence,
        "next": [commands_in(line) for line in mirror_steps(found, seen)],
        "groups": groups,
        "group_sync": None if synced is None or not synced.problem else synced.model_dump(mode="json"),
        "groups_missing": [item.model_dump(mode="json") for item in missing],
        "groups_deleted": deleted,
        "verification": None if verified is None else _verified(verified),
        "request": request.model_dump(mode="json"),
        "tombstones_at_risk": tombstones,
        "retention_problems": None if kept is None else kept.model_dump(mode="json"),
        "state_topics": {name: item.model_dump(mode="json") for name, item in state_topics.items()},
    }
    lines = _status_lines(spec, found, request, data, seen, str(file))
    if synced is not None and synced.problem:
        text = f"groups are NOT brought up to date since {synced.failing_since}: {synced.problem}"
        lines.append(f"[bold red]{escape(text)}[/]")
    for item in missing:
        since = f"gone from the source since {item.since}" if item.since else "not listed by the source"
        lines.append(escape(f"group {item.group}: {since}; kept on the target: {item.kept}"))
    if tombstones is not None:
        lines.append(f"{tombstones['at']}: {escape(str(tombstones['reason']))}")
    if kept is not None:
        name, what = next(iter(kept.problems.items()))
        text = f"the target keeps what the source has deleted, {kept.count} problems, the first is {name}: {what}"
        lines.append(escape(f"{kept.at}: {text}"))
    for name, report in state_topics.items():
        if report.problem:
            lines.append(escape(f"{report.at}: {name} of MirrorMaker 2: {report.problem}"))
    lines += [screen(raw_rows(found))] if verbose else []
    paused = found.state is State.PAUSED
    return Answer(data, lines, code=ExitCode.WAITS if paused else ExitCode.OK)


def _figures(spec: MigrationSpec, snapshot: Snapshot) -> dict[str, Any]:
    """Return what the copiers have last reported, as the metrics have it: the lag, and partitions by verdict."""
    from airflow_provider_kafka_migration.jobs.copy_jobs import metrics_settings

    found = list(snapshot.samples(metrics_settings(spec), time.time(), recent=None))
    values = {item.metric.name: item.value for item in found if item.metric.level == "migration"}
    verdicts = {item.labels["verdict"]: int(item.value) for item in found if item.metric.name == "partitions"}
    unknown = int(values["lag_unknown_partitions"])
    if unknown == len(snapshot.standings):
        return {"lag": None, "verdicts": verdicts}
    lag = {
        "total": int(values["lag_records"]),
        "largest": int(values["largest_lag_records"]),
        "seconds": values.get("lag_seconds"),
        "held_back": int(values["held_back_records"]),
        "partitions_unknown": unknown,
        "at": snapshot.document.get("at"),
    }
    if spec.mirror.merges and "skipped_records" in values:
        lag["skipped"] = int(values["skipped_records"])
    return {"lag": lag, "verdicts": verdicts}


def _groups(found: GroupFigures) -> dict[str, Any]:
    at = datetime.fromtimestamp(found.at, UTC).isoformat(timespec="milliseconds")
    return {
        "at": at,
        "groups": found.groups,
        "behind": found.behind,
        "failed": found.failed,
        "left_alone": found.left_alone,
    }


def _lag_text(lag: dict[str, Any] | None, seen: Look) -> str:
    if lag is None:
        return ""
    text = f"{lag['total']} offsets, the largest {lag['largest']}, seen at {lag['at']}, {seen.ago(lag['at'] or '')}"
    if lag["seconds"] is not None:
        text += f"; the oldest missing record is {lag['seconds']:.1f} s old"
    if lag["held_back"]:
        text += f"; open transactions hold {lag['held_back']} more back"
    if "skipped" in lag:
        text += f"; {lag['skipped']} records came through the target or over too many clusters, and were not copied"
    return text


def _groups_text(groups: dict[str, Any] | None) -> str:
    if groups is None:
        return ""
    text = f"{groups['groups']} brought up to date at {groups['at']}"
    return text + f"; {groups['behind']} behind ({groups['failed']} failed), {groups['left_alone']} left alone"


def _deleted_text(groups: list[str]) -> str:
    if not groups:
        return ""
    return f"{len(groups)} deleted on the target because the source deleted them, the last is {groups[-1]}"


def _heartbeat_text(reports: dict[str, Any]) -> str:
    found = reports.get("heartbeats")
    at = found["written_at"] if found else ""
    return f"the newest of the source on the target is of {at}" if at else ""


def _verified(found: MirrorVerification) -> dict[str, Any]:
    return {
        "finished_at": found.finished_at,
        "equal": found.is_equal,
        "topics": found.topics,
        "last": found.last,
        "partitions": {outcome: found.count(outcome) for outcome in ("equal", "different", "unchecked", "nothing")},
        "records": sum(item.compared for item in found.partitions),
    }


def _verified_text(found: dict[str, Any] | None) -> str:
    if found is None:
        return "never"
    counts = found["partitions"]
    what = f"the last {found['last']} offsets of " if found["last"] is not None else ""
    what += f"the topics {' '.join(found['topics'])}" if found["topics"] else "all topics"
    parts = [f"{counts['equal']} partitions equal"]
    names = {"different": "DIFFERENT", "unchecked": "not checked", "nothing": "with nothing to compare"}
    parts += [f"{counts[outcome]} {name}" for outcome, name in names.items() if counts[outcome]]
    return f"{what} at {found['finished_at']}: {', '.join(parts)}; {found['records']} equal records"


def _status_lines(
    spec: MigrationSpec, found: Status, request: MirrorRequest, data: dict[str, Any], seen: Look, file: str
) -> list[Any]:
    flow = f"{spec.mirror.source_alias} -> {spec.mirror.target_alias}, naming {spec.mirror.naming}"
    since = f", since {seen.since} ({seen.ago(seen.since)})" if seen.since else ""
    rows = {
        "mirror": f"{found.migration_id} ({flow})",
        "state": f"{state_name(found.state)}{since}",
        "failed in": state_name(found.working_state) if found.working_state is not found.state else "",
        "silent": data["silence"],
        "lag": _lag_text(data["lag"], seen),
        "partitions": ", ".join(f"{count} {name}" for name, count in sorted((data["verdicts"] or {}).items())),
        "groups": _groups_text(data["groups"]),
        "groups deleted": _deleted_text(data["groups_deleted"]),
        "heartbeat": _heartbeat_text(data["state_topics"]),
        "compared": _verified_text(data["verification"]),
        "held by": holder(found, seen),
        "last": f"{seen.ago(found.last.at)}: {found.last.reason}" if found.last else "",
        "request": "" if not request.number else f"{request.want} by {request.requested_by} at {request.requested_at}",
        "refused": request.refused,
    }
    frozen = [*found.freeze.lines(file), *held_elsewhere(seen)] if found.freeze is not None else []
    alarms = [("PRODUCERS" if not number else "", line) for number, line in enumerate(frozen)]
    steps = [("next" if not number else "", line) for number, line in enumerate(data["next"])]
    return [screen([*alarms, *rows.items(), *steps, *trouble_rows(found)])]
