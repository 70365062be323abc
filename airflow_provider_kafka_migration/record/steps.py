"""The names of all journal steps that phases write, in the order of a migration. The key of a step is in brackets.

The journal's own steps (its creation, claims, the spec) are in :mod:`~.documents.journal`.
"""

from __future__ import annotations

from typing import Final

# -- plan and precheck ------------------------------------------------------------------------------------------------

PLANNED: Final = "planned"
#: Where a mirror with ``start: latest`` begins. The details hold
#: ``{"topics": {source topic: {"topic_id": id, "offsets": [by partition]}}}``.
MIRROR_STARTS: Final = "mirror_starts"
#: Points to what the probe saw of Spark: its digest, and how many machines answered.
SPARK_CHECKED: Final = "spark_checked"
PRECHECKED: Final = "prechecked"
#: Who accepted which warnings.
FINDINGS_WAIVED: Final = "findings_waived"
#: The outcomes of the last probe of the target that found something new.
PROBED: Final = "probed"

# -- topics and access on the target ----------------------------------------------------------------------------------

#: Journaled before the topics are created; the details hold a list of names.
TOPIC_CREATING: Final = "topic_creating"
#: The details hold ``{"topics": {target topic: topic id}}``, as those of TOPIC_ADOPTED.
TOPIC_CREATED: Final = "topic_created"
TOPIC_ADOPTED: Final = "topic_adopted"
#: Topics that others write to as well, and that the user wants to copy into; they never become the migration's own.
TOPIC_SHARED: Final = "topic_shared"
#: Points to the document with the configs of all target topics: before, during and after the copy.
COPY_SETTINGS: Final = "copy_settings"
#: Partitions that topology_copy has added to the plan.
PARTITIONS_FOLLOWED: Final = "partitions_followed"
TOPOLOGY_COPIED: Final = "topology_copied"
#: Topics with records that are larger than the copy-time limit, and the limit that they get.
LARGE_BATCHES: Final = "large_batches"
#: Journaled before the bindings, the quotas and the user are created. What the brokers then refuse is journaled as
#: removed, or as set back: if it is there later, others have made it.
ACLS_CREATING: Final = "acls_creating"
ACLS_REMOVED: Final = "acls_removed"
QUOTAS_SETTING: Final = "quotas_setting"
USERS_CREATING: Final = "users_creating"
#: [user]
USER_CREATED: Final = "user_created"
#: [user]
USER_REMOVED: Final = "user_removed"
#: Before it, the target has no access settings that could be kept up to date.
ACLS_COPIED: Final = "acls_copied"

# -- schemas ----------------------------------------------------------------------------------------------------------

#: Modes of a registry, journaled before they are set: ``registry`` (source, target), ``wanted``, and ``former`` by
#: scope; null where the scope had no mode of its own [scope, if it is only one].
#: A scope is empty for the whole registry, ``:.ctx:`` for a context, or a qualified subject.
SCHEMA_MODE_SETTING: Final = "schema_mode_setting"
#: The former modes are back: ``registry`` and ``scopes`` [scope, if it is only one].
SCHEMA_MODE_RESTORED: Final = "schema_mode_restored"
#: Compatibility levels that are lifted while old versions are registered; details as those of modes.
SCHEMA_LEVEL_SETTING: Final = "schema_level_setting"
SCHEMA_LEVEL_RESTORED: Final = "schema_level_restored"
#: Levels and modes of the source that the target gets for good, journaled before they are set: ``kind`` (config, mode),
#: ``former`` and ``wanted`` by scope.
SCHEMA_LEVELS_COPIED: Final = "schema_levels_copied"
#: A synchronization is about to register schemas, or to copy what a copier asks for; the details name the plan.
SCHEMAS_COPYING: Final = "schemas_copying"
#: A synchronization of both registries that has changed something, and the first one; the details hold its counts.
SCHEMAS_COPIED: Final = "schemas_copied"
#: Topics whose records carry ids by a later sample than that of the plan; ``document`` has the decisions.
SCHEMA_TOPICS_JUDGED: Final = "schema_topics_judged"
#: A synchronization failed while the tail ran [error code].
SCHEMAS_FAILED: Final = "schemas_failed"

# -- copy -------------------------------------------------------------------------------------------------------------

#: The name of the data id, journaled before the id is allocated.
DATA_TRANSACTIONAL_ID: Final = "data_transactional_id"
PRODUCER_IDS: Final = "producer_ids"
SEED_DONE: Final = "seed_done"
RESTORED: Final = "restored"
TAIL_DONE: Final = "tail_done"
#: The target's log end went back below what had been copied [topic-partition/log end-when it was seen].
TARGET_LOST_RECORDS: Final = "target_lost_records"
#: The token of a job that is about to be submitted to a Spark engine [name of the job document].
SPARK_JOB_SUBMITTING: Final = "spark_job_submitting"
#: The engine's id of that job [name of the job document].
SPARK_JOB_SUBMITTED: Final = "spark_job_submitted"
#: The job has ended, and a task has taken up its end [name of the job document].
SPARK_JOB_ENDED: Final = "spark_job_ended"
#: Points to a supplement of the plan [number].
PLAN_SUPPLEMENTED: Final = "plan_supplemented"
#: [error code]
FOLLOW_FAILED: Final = "follow_failed"
SOURCE_TOPIC_GONE: Final = "source_topic_gone"
#: A remote topic of a mirror is about to be deleted, because a person has approved it: its source topic is gone
#: [remote topic: id].
REMOTE_TOPIC_DELETING: Final = "remote_topic_deleting"
#: All brokers of the target answer that the topic of that id is gone. From then on, what the source has under this name
#: is a new topic [remote topic: id].
REMOTE_TOPIC_DELETED: Final = "remote_topic_deleted"
#: Offsets of groups are about to be written on the target while records are still copied; the details name the document
#: that has them.
GROUPS_WRITTEN: Final = "groups_written"
#: Target topics that were deleted and are created again, to be copied from the source's log start [phase].
TOPICS_MADE_AGAIN: Final = "topics_made_again"
TOPICS_MADE_AGAIN_DONE: Final = "topics_made_again_done"
#: Topics deleted by policy, by name, with their ids at that time [phase/run].
TOPICS_RECOPIED: Final = "topics_recopied"
#: Changes of the source that the target has now.
DRIFT_FOLLOWED: Final = "source_drift_followed"
#: Changes of the source that can only be named, each once.
DRIFT_NAMED: Final = "source_drift_named"
#: Write grants that the tail has seen held back since the plan, each binding once.
#: Of a mirror: offsets of idle groups were written again, so that they expire later.
GROUPS_REFRESHED: Final = "groups_refreshed"
WRITE_GRANTS_SEEN: Final = "write_grants_seen"
#: [time]
DRAIN_READY: Final = "drain_ready"
#: What the comparisons before the client switch have proven [occasion of the check].
CONTENT_PROVEN: Final = "content_proven"

# -- approvals and cutover; the key of a freeze's steps is the number of the attempt ----------------------------------

#: [kind]
APPROVAL_SHOWN: Final = "approval_shown"
#: [kind, and whether it is the second answer]
APPROVAL: Final = "approval"
#: [kind, and whether it is the second answer]
APPROVAL_REFUSED: Final = "approval_refused"
#: Write grants that were held back when the freeze began.
WRITE_GRANTS_HELD: Final = "write_grants_held"
FREEZE_REQUESTED: Final = "freeze_requested"
#: DENY bindings on the source that stop producers, journaled before they are created.
FREEZE_ACLS: Final = "freeze_acls"
FREEZE_VERIFIED: Final = "freeze_verified"
#: Journaled before the webhook's receiver is asked to drop the deadline: after that it might no longer lift by itself.
FREEZE_HELD: Final = "freeze_held"
#: A mirror gives a freeze up: its promotion cannot follow any more. Journaled before the first producer is freed; a
#: migration goes back to ``tail`` instead.
FREEZE_GIVEN_UP: Final = "freeze_given_up"
FREEZE_LIFTED: Final = "freeze_lifted"
#: Clients were told to switch, and people have decided that none does: the details say who, and what the target's logs
#: have shown. From here on only the rest of that runs. Journaled before the first producer is freed.
ABANDONED: Final = "abandoned"
#: A request to stop producers took effect after the lift and could not be undone: the freeze is open again.
FREEZE_CAME_LATE: Final = "freeze_came_late"
#: A change that somebody may have to undo is about to be made, and its outcome (``record.changes``) [number of the
#: freeze, for requests that stop producers].
CHANGE_BEGUN: Final = "change_begun"
CHANGE_ENDED: Final = "change_ended"
#: The source registry stays read-only after a freeze: it could not be given its former modes. The details hold what a
#: person has to do [attempt].
SOURCE_REGISTRY_READONLY: Final = "source_registry_still_readonly"
#: Partitions that did not exist, or were not followed yet, when the boundary was set.
BORN_AFTER_FREEZE: Final = "born_after_freeze"
SENTINEL_PRODUCER: Final = "sentinel_producer"
SENTINELS_WRITTEN: Final = "sentinels_written"
GROUPS_INCOMPLETE: Final = "groups_incomplete"
#: A step of the cutover has ended [attempt/name]; the names follow.
CUTOVER_STEP: Final = "cutover_step"
SENTINELS: Final = "sentinels"
FINAL_DRAIN: Final = "final_drain"
FINAL_SCHEMAS: Final = "final_schemas"
SNAPSHOT_GROUPS: Final = "snapshot_groups"
COMMIT_GROUPS: Final = "commit_groups"
FENCE: Final = "fence"
FLOOR_GUARD: Final = "floor_guard"
READY: Final = "ready_for_client_switch"

# -- way back; "old" is the target of these migrations ----------------------------------------------------------------

#: DENY bindings that keep producers out of the old cluster, journaled before they are created.
OLD_CLUSTER_GUARDED: Final = "old_cluster_guarded"
#: The way back is about to write offsets of groups on the old cluster; the details name the document that has them.
OLD_GROUPS_WRITTEN: Final = "old_groups_written"
#: The old cluster has everything, its copiers are fenced, and its producers are let in: clients may return.
READY_FOR_CLIENT_RETURN: Final = "ready_for_client_return"
#: The new cluster is kept: the old one has its settings and ACLs back.
OLD_CLUSTER_RELEASED: Final = "old_cluster_released"

# -- after the cutover ------------------------------------------------------------------------------------------------

CLIENT_SWITCH_ACKNOWLEDGED: Final = "client_switch_acknowledged"
#: Once it exists, ``plan_acls`` no longer defers anything.
WRITE_GRANTS: Final = "write_grants"
#: The cutover that gave them was abandoned.
WRITE_GRANTS_TAKEN_BACK: Final = "write_grants_taken_back"
PRODUCER_VISIBLE_RESTORED: Final = "producer_visible_restored"
#: All content is proven equal; journaled before anything may be deleted on the target.
CONTENT_PASSED: Final = "content_passed"
#: The registries were compared; the details hold the outcome and the digest of the document.
SCHEMAS_CHECKED: Final = "schemas_checked"
DELETING_RESTORED: Final = "deleting_restored"
VALIDATED: Final = "validated"
EVIDENCE_UPLOADED: Final = "evidence_uploaded"
#: A rollback has given the target topics the configs that they had before the migration.
ROLLBACK_CONFIGS_RESTORED: Final = "rollback_configs_restored"
#: The producers are free, and a rollback begins to undo the rest; from here on no other phase may run.
ROLLBACK_BEGUN: Final = "rollback_begun"
ROLLED_BACK: Final = "rolled_back"

# -- mirrors ----------------------------------------------------------------------------------------------------------

#: Topics that are copied once, so that the target may delete and compact from now on what it should; journaled before
#: their settings are changed. The details hold ``{"topics": {target topic: topic id}}``.
TARGET_RETENTION: Final = "target_retention"
#: The mirror went on so late that tombstones may be gone from the source; the details hold the topics [digest of it].
TOMBSTONES_AT_RISK: Final = "tombstones_at_risk"
#: A group that was deleted on the source is about to be deleted on the target, by policy [group: missing since].
GROUP_DELETING: Final = "group_deleting"
#: The group is gone from the target [group: missing since].
GROUP_DELETED: Final = "group_deleted"
#: A request was turned down; the mirror goes on [number of the request].
REQUEST_REFUSED: Final = "request_refused"
#: Partitions had not reached the source's end when their copiers ended; they go on [request/round].
PROMOTION_ROUND: Final = "promotion_round"
#: How far each partition was mirrored; the details name the document. From here on the promotion is only completed.
PROMOTED: Final = "promoted"
#: The mirror's producer is fenced on the target: where its markers are, and what is not fenced.
COPIERS_FENCED: Final = "copiers_fenced"
