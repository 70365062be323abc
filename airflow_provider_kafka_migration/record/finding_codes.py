"""All findings of the precheck: stable codes with severity, title and fix. docs/precheck.md has this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_kafka_migration.documents.plan import Finding, Severity

_SEVERITIES = {"B": Severity.BLOCKER, "W": Severity.WARNING, "I": Severity.INFO}


@dataclass(frozen=True)
class Code:
    """One kind of finding. The first letter of the code is its severity."""

    code: str
    title: str
    fix: str

    @property
    def severity(self) -> Severity:
        """Blocker, Warning or Info."""
        return _SEVERITIES[self.code[0]]


_ALL = (
    # -- whether the checks could run at all
    Code("B001", "a check could not run", "correct the error that the finding shows; then clear precheck"),
    Code("B002", "source and target are the same cluster", "correct one of the two connections"),
    Code("B003", "a cluster cannot be reached", "check bootstrap.servers, the network and that the brokers run"),
    Code("B004", "authentication failed", "check user, password, mechanism and certificates of the connection"),
    Code("B005", "a permission is missing", "grant it to the migration's principal; permissions.md has the commands"),
    Code("I006", "a permission cannot be checked beforehand", "nothing; topology_copy checks it once the topics exist"),
    Code("B007", "something may not be read", "grant the rights in permissions.md, or leave that part out of the spec"),
    # -- topics
    Code("B010", "target topic holds foreign data", "delete the topic on the target, exclude it, or rename it"),
    Code("B011", "config drift is refused", "make the configs equal, or set topology.on_config_drift"),
    Code("W012", "replication factor differs", "add brokers to the target, or accept it"),
    Code("B013", "target topic has more partitions", "delete the topic on the target, or add partitions on the source"),
    Code("I014", "target topic has fewer partitions", "nothing; topology_copy adds them"),
    Code("W015", "target topic has another cleanup policy", "check who uses that topic; it gets the planned policy"),
    Code("W016", "target topic has other configs", "check the drift in the plan; topology.on_config_drift decides"),
    Code("W017", "configs are left out or changed", "check that the topic works with the configs that the target has"),
    Code("W018", "defaults differ", "set them on the source's topics, or topology.use_defaults_from: source"),
    Code(
        "W049",
        "the target deletes records that the source keeps",
        "set the source's retention on the target topic (leave it out of topology.config_exclude, or set "
        "topology.on_config_drift: repair), or accept the loss",
    ),
    Code("B019", "the target refuses a topic as planned", "fix what the broker reports: policy, config or permission"),
    # -- what the target accepts
    Code(
        "B020",
        "the target does not compare sequences",
        "set offsets.mode: auto or transactional: such a target can only be copied to in transactions",
    ),
    Code("B021", "log starts cannot be filled", "set offsets.mode: shifted, or correct what the broker reports"),
    Code("B022", "control markers cannot be written", "grant Alter (3.8 and later) or ClusterAction on the target"),
    Code("W023", "the log end cannot be queried", "exactly-once after a crash depends on prompt replication"),
    Code("W024", "offsets may not stay equal", "raise the budgets in offsets, or accept mapped and shifted partitions"),
    Code(
        "W025",
        "holes are filled by empty transactions, since control markers may not be written",
        "grant Alter (3.8 and later) or ClusterAction on the target if logs have many holes, or accept it",
    ),
    Code(
        "B026", "transactions do not work on the target", "fix what the broker reports: permission, version or setting"
    ),
    Code(
        "W027",
        "the target does not compare sequences, so all partitions are copied in transactions",
        "nothing; offsets are mapped, and the plan was made again",
    ),
    Code(
        "W028",
        "the migration copies into topics of others on the target",
        "check that these are the right topics; offsets are mapped, and copy-time settings affect their writers, too",
    ),
    Code(
        "B029",
        "a shared topic has fewer partitions than the source",
        "add partitions together with those who write to it, or exclude it",
    ),
    Code(
        "W035",
        "the copiers cannot be fenced before the client switch",
        "grant what is missing (the finding has the command), or make sure at the cutover that no copier still runs",
    ),
    Code(
        "I036",
        "the copiers are fenced by aborted transactions, since control markers may not be written",
        "nothing; with the right to write markers the fence needs no transactional id",
    ),
    # -- topics with the records of both clusters
    Code(
        "B037",
        "the target already has copies of these records, and this mirror has no position",
        "run the mirror under the migration_id that has copied them, or leave these topics out (topics.exclude): from "
        "the source's log start on, all records would arrive twice",
    ),
    Code(
        "B038", "a cluster reports no cluster id", "use mirror.naming: default, which tells clusters by their aliases"
    ),
    Code(
        "W039",
        "clusters may end with different values of a key",
        "let only one cluster write each key: each cluster keeps the record that arrived there last",
    ),
    # -- storage and evidence
    Code("B030", "storage is not writable", "check bucket, credentials and policy"),
    Code("B031", "storage does not read back what was written", "check the object store"),
    Code("B032", "storage overwrites what must be new", "use a store that honours If-None-Match on PutObject"),
    Code("W033", "the evidence bucket has no Object Lock", "use a bucket with Object Lock, or accept it"),
    Code("W034", "the clocks differ", "synchronise the clock of this machine (NTP)"),
    Code(
        "W047",
        "the bucket removes, archives or locks what the journal's prefix has",
        "exclude the prefix of storage.journal from the rule, or use another bucket: a migration whose journal has "
        "lost an entry cannot go on, also not to free stopped producers",
    ),
    Code(
        "I048",
        "the bucket's rules for the journal could not be checked",
        "check by hand that no lifecycle rule deletes or archives objects below storage.journal; to have it checked, "
        "grant s3:GetLifecycleConfiguration and s3:GetBucketObjectLockConfiguration",
    ),
    Code("B040", "the evidence cannot be signed", "set evidence.signing_key to a reference to an Ed25519 seed"),
    Code(
        "B041",
        "the freeze webhook cannot be resolved",
        "make what cutover.producer_freeze_webhook and cutover.webhook_secret refer to available to every process that "
        "may freeze or free producers: the workers of precheck, cutover.* and rollback, and the command line",
    ),
    Code(
        "B042",
        "ACLs cannot stop the producers",
        "see the reason; or use cutover.freeze: webhook or manual, or way_back.freeze_old: none",
    ),
    Code(
        "B043",
        "a state topic of MirrorMaker 2 cannot be used",
        "delete the topic if nothing uses it, or switch off what needs it in mirror.state_topics",
    ),
    Code(
        "W044",
        "heartbeats of MirrorMaker 2 would be mirrored as records, so that no promotion could end",
        "add the alias in front of the topic to mirror.known_aliases of this flow and of all flows behind it",
    ),
    # -- transactions on the source
    Code("W050", "open transactions", "they have to end before the cutover"),
    Code("W051", "a hanging transaction", "abort it: kafka-transactions.sh abort"),
    Code("W052", "topics coupled by transactions are split", "migrate these topics together"),
    Code("W053", "transaction timeouts above the target's limit", "raise transaction.max.timeout.ms on the target"),
    Code(
        "B054",
        "a topic of the source would refuse the sentinel of the cutover",
        "set cutover.sentinel: end_offsets, which writes nothing to the source, or change the topic's config there",
    ),
    # -- limits
    Code("W060", "the target accepts only smaller messages", "raise max.message.bytes there before clients switch"),
    Code("B061", "requests would be too large for the target", "raise socket.request.max.bytes on the target"),
    Code(
        "W062", "the target refuses some timestamps", "set message.timestamp.*.max.ms on the topics if clients need it"
    ),
    Code("W063", "retention is shorter than the copy", "raise retention on the source until the cutover"),
    Code("B064", "not enough disk on the target", "add disk, or migrate fewer topics at a time"),
    Code("W065", "little disk left on the target", "watch the target's disks, or add some"),
    Code(
        "I066",
        "holes become control markers, which carry the time of the copy",
        "nothing, unless clients look up offsets by time: for a time before the copy they may find a marker, and thus "
        "an offset that is too early; offsets.by_topic can make a topic mapped, which writes none",
    ),
    Code(
        "W067",
        "markers delay the deletion of segments by time",
        "plan disk space for it, or make the topic mapped (offsets.by_topic): a segment is deleted by its latest "
        "timestamp, and a marker has the timestamp of the copy",
    ),
    Code(
        "W068",
        "tombstones may be removed before they are copied",
        "raise delete.retention.ms on the source until the cutover, or copy faster: a key whose tombstone is missed "
        "stays on the target; a partition that is read too late stops (offsets.on_overtaken_tombstones)",
    ),
    # -- adoption
    Code(
        "B120",
        "a partition cannot be adopted",
        "see the reason; exclude the topic, or move what is on the target out of the way and copy it from its start",
    ),
    Code(
        "B121",
        "an adopted partition no longer ends where the plan says",
        "stop whoever writes to the target topic, and what else copies to it; then clear plan",
    ),
    Code(
        "W122",
        "another copier has left duplicates, aborted or missing records below the boundary",
        "decide whether consumers may see them (adopt.on_duplicates); nothing below the boundary is changed",
    ),
    Code(
        "W123", "something about the boundary is not as expected", "read the note; the copy checks what it appends to"
    ),
    Code(
        "W125",
        "partitions are left out: the logs of both clusters do not agree there",
        "keep the target's records apart and decide what becomes of them; where the target only has more records, "
        "adopt.on_diverged: repair copies behind them",
    ),
    Code(
        "W126",
        "the fence of the former copiers is forgotten, or could not be checked",
        "make sure that no copier of the former migration is left, also on machines that are suspended; brokers forget "
        "a fence after producer.id.expiration.ms (24 hours by default)",
    ),
    Code("I124", "partitions are taken over", "nothing; the copy begins behind what is already on both clusters"),
    # -- groups
    Code("W070", "group is active on the target", "stop its members there: their offsets cannot be set"),
    Code("W071", "group of a kind that is not moved", "move it with its own tools; the evidence names it"),
    Code("W072", "group reads topics outside of the migration", "migrate these topics together, or accept it"),
    Code("W073", "group offsets cannot be read", "grant Describe on the group"),
    Code(
        "W074",
        "a group that reads migrated topics is left out",
        "include it (groups.include, groups.exclude), or accept that its consumers start by auto.offset.reset",
    ),
    Code("I075", "groups are left out", "check that none is missing; groups.include and groups.exclude decide"),
    Code(
        "W076",
        "the target forgets offsets of idle groups earlier",
        "raise offsets.retention.minutes on the target's brokers, or start each consumer there within that time",
    ),
    # -- access
    Code(
        "W077",
        "ACLs that only the target has deny access to clients of what is migrated",
        "remove these bindings on the target before clients switch, or accept that these clients get no access there",
    ),
    Code(
        "W078",
        "ACLs reach beyond the migrated topics on a target that others use",
        "leave the principals out (acls.exclude_principals) and grant narrower ones by hand, or accept that they get "
        "the same rights over what others have there",
    ),
    Code(
        "W079",
        "others may write to the remote topics",
        "take WRITE away from them on the target, or accept it: the mirror takes nothing away that it has not given",
    ),
    Code("W080", "the target has no authorizer", "configure one, or set acls.policy: skip"),
    Code("I081", "the source has no authorizer", "nothing; there are no ACLs to copy"),
    Code("B082", "ACL differences are refused", "make them equal, or set acls.policy: merge"),
    Code("W083", "ACLs without an equivalent", "see the plan; the evidence names them"),
    Code("W084", "ACLs that only the target has", "remove them by hand if they are not wanted"),
    Code("W085", "users that cannot be created", "add secret references to acls.users, or create them by hand"),
    Code("B086", "a secret reference cannot be resolved", "correct acls.users"),
    Code("W087", "client quotas are overwritten", "set acls.quotas: keep_target to keep the target's"),
    Code("B088", "quota differences are refused", "make them equal, or set acls.quotas"),
    Code("W089", "group configs that the target does not have", "nothing; the evidence names them"),
    # -- selection
    Code("B090", "selected topics do not exist", "correct topics.include, or grant Describe on them"),
    Code(
        "I091",
        "internal topics are left out",
        "restart Connect, MirrorMaker and Streams on the target; name a topic in topics.include to migrate it",
    ),
    Code("I092", "topics are left out", "check that none is missing; topics.include and topics.exclude decide"),
    Code(
        "I093",
        "producers are denied already, by ACLs that others have made",
        "nothing, if they are to stay denied: a freeze that is lifted leaves these ACLs, and frees only those whom the "
        "migration itself has denied; remove them if these producers are to write",
    ),
    Code(
        "W094",
        "many ACLs would stop the producers",
        "use cutover.freeze: webhook or manual, have fewer principals write, or move fewer topics at a "
        "time: producers stand still while these ACLs are created, and after a lift until they are removed",
    ),
    # -- schemas
    Code("B100", "a schema registry cannot be reached", "check the address in its connection, and that it runs"),
    Code(
        "B101",
        "a schema registry refuses the migration's user",
        "check the login in its connection, and grant that user the rights in permissions.md",
    ),
    Code(
        "B102",
        "the target registry accepts no new schemas",
        "set the mode of the registry, the context or the subject to READWRITE on the target",
    ),
    Code(
        "B103",
        "the target registry cannot keep what the source has",
        "set schemas.ids: translate, use a registry that can import fixed ids, or schemas.on_conflict: note",
    ),
    Code(
        "B104",
        "schemas conflict with what is on the target",
        "remove the foreign schemas there, rename or exclude the subjects, or set schemas.ids: translate or "
        "schemas.on_conflict: note",
    ),
    Code(
        "W105",
        "schemas conflict with what is on the target, and are left out (schemas.on_conflict: note)",
        "check that no consumer needs them; plan and approvals name them",
    ),
    Code(
        "W106",
        "the target registry checks the versions of some subjects more strictly than the source",
        "nothing: the migration sets level NONE where a version is refused, and puts the former level back; after the "
        "switch the stricter level applies to new versions (schemas.global_config: true copies the source's)",
    ),
    Code(
        "B107",
        "ids are translated, and nothing shows surely where some topics carry them, or of which context they are",
        "say it in the spec: schemas.by_topic with rewrite or context; then clear plan",
    ),
    Code("I108", "subjects that no migrated topic uses by name", "nothing; exclude them if they are not wanted"),
    Code(
        "W109",
        "records have schema ids that the source registry does not know",
        "check that schemas.source is the registry of these topics, and their context (schemas.by_topic); such records "
        "are copied as they are, and consumers cannot decode them today either",
    ),
    Code(
        "B110",
        "AWS Glue Schema Registry is not built in",
        "leave schemas out of the spec and move them with AWS's own tools; docs/schemas.md shows where an adapter fits",
    ),
    Code(
        "I111",
        "a migrated topic is that of a schema registry, but the spec moves no schemas",
        "set schemas.topic to it if the target registry is to be started on its copy; otherwise exclude the topic and "
        "set schemas.source and schemas.target",
    ),
    Code(
        "B112",
        "the target registry has schemas of its own, so it cannot move with its topic",
        "set schemas.source and schemas.target without schemas.topic: then schemas are copied into this registry",
    ),
    Code(
        "W113",
        "the target registry already runs, although it is to be started on the copied topic",
        "stop it until clients may switch, then start it with kafkastore.topic set to the copied topic",
    ),
    Code(
        "B114",
        "a part of a registry could not be read",
        "correct what the registry answers or grant the right, or exclude these subjects; then clear plan",
    ),
    Code(
        "W114",
        "a part of a registry could not be read, and moves with the registry's topic all the same",
        "nothing for the copy; the plan does not show these parts, and the validation cannot compare them",
    ),
    Code(
        "B115",
        "schema ids have to be translated, which seed.via: split cannot do",
        "set seed.via: s3 or direct, or use a target registry that can keep ids",
    ),
    Code(
        "W116",
        "schemas are copied from registry to registry, and so is a registry's own topic",
        "exclude the topic (topics.exclude), unless it belongs to another registry",
    ),
    Code(
        "W117",
        "records could not be sampled for schema ids",
        "grant READ on these topics, or say where they carry ids (schemas.by_topic)",
    ),
    Code("I118", "subjects are left out", "check that none is missing; schemas.include and schemas.exclude decide"),
    Code(
        "B117",
        "ids are translated, and it is unknown whether some topics carry any",
        "grant READ on these topics, or say where they carry ids (schemas.by_topic)",
    ),
    Code(
        "W119",
        "the sample does not clearly show where records carry schema ids",
        "look at the topic's figures in the plan, and decide in the spec: schemas.by_topic with rewrite or context",
    ),
    Code(
        "W120",
        "ids are translated, and no subject is named after keys or values that begin like serialized records",
        "check what decoding the sampled ones has decided, and say it in the spec (schemas.by_topic with rewrite) if "
        "you know better: bytes that only look like an id must not be rewritten",
    ),
    Code(
        "W121",
        "ids are translated, and topics without records do not show whether theirs will carry any",
        "say it in the spec (schemas.by_topic with rewrite); otherwise these topics are copied as they are, and if "
        "ids appear there while the tail runs, the cutover stops until they are copied again",
    ),
    # -- Spark
    Code(
        "W130",
        "Spark has not been looked at",
        "run the task spark_check before precheck; without it, problems of executors show only when the copy starts",
    ),
    Code("B131", "what is known about Spark is outdated", "clear spark_check; precheck follows it"),
    Code(
        "B132",
        "no job runs on Spark",
        "check the spark connection, spark.conf and the cluster's free resources; then clear spark_check",
    ),
    Code(
        "B133",
        "driver or executors have another version of this package",
        "install the version that Airflow has there (kafka-migration executor-package), or let it be shipped",
    ),
    Code(
        "B134",
        "driver or executors lack what a copier imports",
        "build their environment with kafka-migration executor-package, and let spark.pyspark.python point to it",
    ),
    Code(
        "B135",
        "driver or executors cannot reach a broker",
        "open the network from those machines to every advertised address of both clusters",
    ),
    Code(
        "B136",
        "driver or executors cannot use the storage",
        "open the network from those machines to the storage, and check the rights of its connection",
    ),
    Code(
        "B137",
        "driver or executors cannot resolve a reference",
        "make it available there, or choose another spark.executor_references",
    ),
    Code(
        "B138",
        "Spark's settings are not safe for a copy",
        "correct the spark connection, or spark.conf of the spec; then clear spark_check",
    ),
    Code("B139", "a machine's clock is far off", "synchronise that machine's clock (NTP); then clear spark_check"),
    Code("W140", "clocks of Spark's machines differ", "synchronise the clocks (NTP)"),
    Code("W141", "something could not be checked on Spark", "see the finding; clear spark_check to try again"),
    Code(
        "W142",
        "a bootstrap server cannot be reached from driver or executors",
        "correct bootstrap.servers, or open the network: with the other one down, these machines find no broker",
    ),
    Code(
        "W143",
        "fewer executors than asked for",
        "check the cluster's free resources, or accept it: lanes take turns on the executors that are there",
    ),
    Code(
        "I144",
        "objects of the probe could not be removed",
        "nothing: they are small; the migration needs no right to delete objects",
    ),
)

CODES: dict[str, Code] = {item.code: item for item in _ALL}


def finding(code: str, seen: str, *, subject: str = "", fix: str = "", **details: Any) -> Finding:
    """Return a finding of a known code.

    :param fix: what to do in this particular case; the code's general advice if not given.
    """
    known = CODES[code]
    return Finding(
        code=code,
        severity=known.severity,
        title=known.title,
        seen=seen,
        fix=fix or known.fix,
        subject=subject,
        details=details,
    )


def seen_with_subject(item: Mapping[str, Any]) -> str:
    """Return what a finding has seen, with what it is about in front.

    :param item: a finding as JSON data.
    """
    subject, seen = str(item.get("subject") or ""), str(item["seen"])
    return seen if not subject or seen.startswith(subject) else f"{subject}: {seen}"


def some(names: list[str], limit: int = 10) -> str:
    """Return the first names, and how many more there are."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def as_markdown() -> str:
    """Return the table of docs/precheck.md."""
    lines = ["| code | severity | what | what to do |", "|---|---|---|---|"]
    lines += [f"| `{item.code}` | {item.severity} | {item.title} | {item.fix} |" for item in _ALL]
    return "\n".join(lines) + "\n"
