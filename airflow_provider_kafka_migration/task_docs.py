"""What a person on call reads on a DAG's and a task's page. Markdown."""

from __future__ import annotations

from airflow_provider_kafka_migration.freeze import words

DAG_DOC = """\
Moves a live Kafka cluster to another one: topics, records, offsets, consumer groups, ACLs, and signed evidence.

```
plan -> precheck -> topology_copy -> seed -+-> tail ------------------------------------+
                                           +-> drain_ready -> approve_cutover -> cutover.freeze -> sentinels
   -> final_drain -> snapshot_groups -> commit_groups -> floor_guard -> approve_client_switch -> validate -> evidence
```

**Any task may be cleared at any time.** What was done before is looked up in the journal, verified on the clusters
and answered at once. The copy goes on from where the target ends. Nothing on the source is changed before
`cutover.freeze`, and nothing is ever deleted there.

**Two tasks wait for a person** (tab *Required Actions*): `approve_cutover` and `approve_client_switch`. Both show what
will happen and a code of 8 characters; type the code and choose. If the page has been open for long, or the task was
cleared, the code in the task's log is the one that holds.

**Two slots are needed at the same time**: `tail` runs until the cutover has told it where to stop.

A red task says in its last log line what failed, where, and what to do next.
"""

ROLLBACK_DOC = f"""\
Ends a migration before its cutover: stops the tail, lifts a freeze, puts back what was set for the copy. Topics and
data on the target stay; `rollback-report.json` lists them. Once the clients may switch it is refused. A freeze is
lifted first, and the target need not be up: {words.LIFTED_IN_GENERAL}.

It takes the migration over from the run that holds it, so use it when that run is gone or hangs. In a run that lives,
answer `approve_cutover` with *Abort* instead.
"""

TASK_DOCS: dict[str, str] = {
    "plan": "Reads both clusters and writes `plan.json`: topics, partitions, offsets, groups, ACLs, and how each "
    "partition's offsets will be kept. Changes nothing.\n\n**Red?** A connection or the spec is wrong; the log says "
    "which. Clear it after correcting. **Clear** it (with everything below) to plan again.",
    "precheck": "Looks for everything that would stop the migration, all at once, and tries out what the target "
    "accepts on a scratch topic. Read-only on the source.\n\n**Red?** Blockers are listed in the log with what to do. "
    "Clear it when they are gone. Warnings can be waived by code in the spec (`waive`).",
    "topology_copy": "Creates topics, configs, ACLs and quotas on the target.\n\n**Red?** All refused items are in the "
    "log. Clear it after deciding; what was created is recognised.",
    "seed": "Copies everything up to the end offsets seen at its first start, on Spark.\n\n**Red?** Clear it: it goes "
    "on from the target's end and copies nothing twice. Partitions that cannot be copied are listed with the reason.",
    "tail": "Follows the source until the cutover says where to stop, on Spark. It is *supposed* to run for long. A "
    "failed cutover leaves it running.\n\n**Red?** Clear it; mirroring goes on where it stopped.",
    "drain_ready": "Waits until all partitions keep up for the whole window. Purple (deferred) is normal.\n\n"
    "**Red?** It waited too long, or the tail does not run. Look at `tail`, then clear it.",
    "approve_cutover": "A person decides: **Approve** starts the cutover and freezes the producers, **Not yet** keeps "
    "mirroring and asks again, **Abort** rolls back. Needs the code from the text.\n\n**Red?** The answer was refused "
    "(no code, an old one, lag has risen, answered within a second): clear it and answer again. The page then still "
    "shows its first text; the log has the present one.",
    "approve_cutover_second": "The second person confirms the cutover. It must be somebody else.\n\n**Red?** Clear it "
    "and answer again.",
    "cutover.freeze_limit": "Stands beside the cutover and lifts a freeze that lasts longer than "
    "`max_producer_freeze` when no other task does it. Purple (deferred) is normal.\n\n**Red?** It had to lift a "
    f"freeze: {words.LIFTED_IN_GENERAL}. Look at the red task of the cutover, then clear `drain_ready` and "
    "everything below (`tail`, too, if it has ended).\n\n**Up for retry?** Producers are still frozen, and it cannot "
    "free them: the last line of its error says what a person has to do.",
    "cutover.freeze": "Stops the producers and verifies that they stand still. With `cutover.in_one_task` it runs the "
    "whole cutover, and the tasks below confirm.\n\n**Red?** The freeze is lifted, or did not begin: "
    f"{words.LIFTED_IN_GENERAL}. "
    "A producer that went on writing is named. Correct it, then clear `approve_cutover` and everything below. Only "
    "with `cutover.in_one_task` and `GROUPS_INCOMPLETE` they stay frozen until `max_producer_freeze`: stop the "
    "consumer that is named, and clear this task alone.",
    "cutover.sentinels": "Marks the end of each source partition.\n\n**Red?** Clear it: each sentinel is written once.",
    "cutover.final_drain": "Tells the tail where to stop and waits for it.\n\n**Red?** Look at `tail`; if it is red, "
    "clear it, then this one.",
    "cutover.snapshot_groups": "Reads and translates the consumer groups' offsets.\n\n**Red?** Clear it.",
    "cutover.commit_groups": "Commits the offsets on the target, never backwards.\n\n**Red?** The groups that could "
    "not be committed are listed; mostly a consumer is already running on the target. Stop it, then clear this.",
    "cutover.floor_guard": "Checks that nothing was cut off on the target. After it: READY_FOR_CLIENT_SWITCH.\n\n"
    "**Red?** Data is missing on the target; the partitions are listed. Do not switch.",
    "sync_groups": "Keeps the groups' offsets fresh while the clients are switched: stop a consumer, wait for one "
    "interval, start it on the target. Ends by itself after the acknowledgement.\n\n**Red?** Clear it. The last sync "
    "is made by `approve_client_switch` itself.",
    "approve_client_switch": "Switch the clients now: READY_FOR_CLIENT_SWITCH. **Approve** when they read and write "
    "on the target. Needs the code from the text.\n\n**Red?** The answer was refused; clear it and answer again.",
    "approve_client_switch_second": "The second person confirms the switch. It must be somebody else.\n\n**Red?** "
    "Clear it and answer again.",
    "validate": "The six checks, content of all records included, on Spark.\n\n**Red?** Every difference is listed. "
    "Clear it after correcting; nothing on the target is deleted before it has passed.",
    "evidence": "Signs and uploads the evidence, and finalizes.\n\n**Red?** Mostly the signing key or the bucket. "
    "Clear it.",
    "rollback": "Runs after *Abort* only.\n\n" + ROLLBACK_DOC,
}
