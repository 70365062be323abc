"""The names of the documents that phases leave for each other, below ``<migration_id>/`` in one of the three stores.

What copiers write in bulk (segments, offset maps, leases, proofs) has its keys with the module that writes it.
"""

from __future__ import annotations

from typing import Final

# -- journal store ----------------------------------------------------------------------------------------------------

PLAN: Final = "plan.json"
MEASURED_RATES: Final = "plan/measured-rates.json"
#: Exclusive source offsets at which the tail ends.
TAIL_STOP: Final = "control/tail-stop.json"
#: What a person asks of a mirror: the last request, or one shortly before it. Those after it are create-only objects.
MIRROR_REQUEST: Final = "control/mirror.json"
#: Remote topics that a person has approved to delete.
TOPIC_DELETIONS: Final = "control/topic-deletions.json"
#: Source schema ids to target ids, for copiers, which read it again for each id that they do not know. It is a copy of
#: the newest version below SCHEMA_ID_MAPS.
SCHEMA_ID_MAP: Final = "schemas/id-map.json"
#: All versions of the map of schema ids. Each is a create-only object and holds at least what the one before it holds.
SCHEMA_ID_MAPS: Final = "schemas/id-map/"


def mirror_request(number: int) -> str:
    """A request to a mirror, from 1. It is create-only, so no two people get the same number."""
    return f"control/mirror-requests/{number:08d}.json"


def copy_settings(digest: str) -> str:
    """The configs of all target topics; the digest makes each version a document of its own."""
    return f"topology/copy-settings-{digest[:16]}.json"


def supplement(number: int, digest: str) -> str:
    """A supplement of the plan."""
    return f"plan-supplements/{number:04d}-{digest[:16]}.json"


def schema_id_map_version(number: int) -> str:
    """A version of the map of schema ids, from 1."""
    return f"{SCHEMA_ID_MAPS}{number:08d}.json"


def schema_plan(digest: str) -> str:
    """What moves from one schema registry to the other; the digest makes each version a document of its own."""
    return f"schemas/plan-{digest[:16]}.json"


def adoption(digest: str) -> str:
    """Where adopted partitions begin; the digest makes each version a document of its own."""
    return f"adoption/starts-{digest[:16]}.json"


def map_below(topic: str, partition: int, digest: str) -> str:
    """Positions below the boundary of an adopted partition.

    :param topic: source topic, as a part of a key.
    """
    return f"adoption/below/{topic}/{partition}-{digest[:16]}.json"


def schema_topics(digest: str) -> str:
    """Where records of topics carry schema ids, by a later sample than that of the plan."""
    return f"schemas/topics-{digest[:16]}.json"


def job(name: str) -> str:
    """The job document of a phase: what copiers are to do."""
    return f"jobs/{name}.json"


def comparison_job(digest: str) -> str:
    """The name of a job that compares a mirror on Spark: at most 15 characters, so that its tokens begin with it."""
    return f"compare-{digest[:7]}"


def independent_comparison_job(digest: str) -> str:
    """The name of such a job whose reader is Spark's own Kafka source; "i" is in no digest."""
    return f"{comparison_job('')}i{digest[:6]}"


def is_independent_comparison(name: str) -> bool:
    """Whether Spark's own Kafka source reads both sides for a job of this name."""
    return name.startswith(independent_comparison_job(""))


def is_comparison_job(name: str) -> bool:
    """Whether a job of this name compares a mirror."""
    return name.startswith(comparison_job(""))


def job_end(token: str) -> str:
    """How a submitted job has ended, as its driver says; a document of its own for each submission."""
    return f"jobs/ends/{token}.json"


def progress(name: str) -> str:
    """The progress of a job, which its driver rewrites every few seconds."""
    return f"progress/{name}.json"


def result(name: str) -> str:
    """A result of a phase; the names follow."""
    return f"results/{name}.json"


PRECHECK: Final = "precheck"
#: What the probe saw of Spark.
SPARK_PROBE: Final = "spark-probe"
TOPOLOGY: Final = "topology"
ACCESS: Final = "acls"
BOUNDARY: Final = "boundary"
FROZEN_TIME: Final = "frozen-time"
GROUPS_SNAPSHOT: Final = "groups-snapshot"
#: The last commit or sync of the groups.
GROUPS: Final = "groups"
#: The last sync before the switch was acknowledged; a sync that is still under way may rewrite GROUPS.
FINAL_GROUPS: Final = "groups-final"
#: The last sync of a migration's groups before its cutover.
EARLY_GROUPS: Final = "groups-early"
#: What was written for groups while records were still copied, and what they had on the target before.
WRITTEN_GROUPS: Final = "groups-written"
#: Whether the groups of a mirror are brought up to date, and since when not.
GROUP_SYNC: Final = "group-sync"
#: Groups of a mirror that the source no longer has, and why the target still has them.
MISSING_GROUPS: Final = "groups-missing"
LEFT_OUT: Final = "left-out"
#: The final drain's own copy of the offset map.
FINAL_OFFSET_MAP: Final = "offset-map"
CONTENT_PASSED: Final = "content-passed"
VALIDATION: Final = "validation"
#: Why Spark could not run the independent proof.
INDEPENDENT_NOT_RUN: Final = "independent-not-run"
#: How far each partition was mirrored when its mirror was promoted.
PROMOTION: Final = "promotion"
#: The last comparison of the contents of a mirror.
VERIFICATION: Final = "verification"
RESTORE: Final = "restore"
#: The last synchronization of the schema registries.
SCHEMAS: Final = "schemas"
#: The validation's comparison of the schema registries.
SCHEMAS_CHECK: Final = "schemas-check"


def copied_records(job_name: str) -> str:
    """The totals of a copy job by partition."""
    return f"{job_name}-records"


# -- archive store ----------------------------------------------------------------------------------------------------

MANIFEST: Final = "manifest.json"
BACKUP_SOURCE: Final = "backup/source.json"
BACKUP_END: Final = "backup/end.json"
BACKUP_GROUPS: Final = "backup/groups.json"

# -- evidence store ---------------------------------------------------------------------------------------------------

OFFSET_MAP: Final = "offset-map.json"
#: The id map of the schemas after the last synchronization before the groups are committed.
FINAL_SCHEMA_IDS: Final = "schema-ids.json"
ROLLBACK_REPORT: Final = "rollback-report.json"

#: What the last pass over the retention of a mirror's target could not do.
TARGET_RETENTION: Final = "target-retention"
#: What a mirror has last written into MirrorMaker 2's state topics.
MIRROR_MAKER_CHECKPOINTS: Final = "mirror-maker-checkpoints"
MIRROR_MAKER_HEARTBEATS: Final = "mirror-maker-heartbeats"
