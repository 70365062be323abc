"""Reads the properties of a MirrorMaker 2 and writes the specs of the same flows.

Nothing is guessed: a property that has no equivalent is named with the reason, and so is one that nobody knows. What
secures a connection is not part of a spec; its keys are translated to librdkafka's, for the connection of each cluster.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import javaproperties

from airflow_provider_kafka_migration.errors import ConnectionInvalid, SpecInvalid, Where
from airflow_provider_kafka_migration.kafka.config import ClientConfig

#: Properties that select or describe what a flow copies, with the spec's key.
COVERED: Mapping[str, str] = {
    "topics": "topics.include",
    "topics.exclude": "topics.exclude",
    "groups": "groups.include",
    "groups.exclude": "groups.exclude",
    "replication.factor": "topology.replication_factor",
    "config.properties.exclude": "topology.config_exclude",
    "use.defaults.from": "topology.use_defaults_from",
    "replication.policy.class": "mirror.naming",
    "replication.policy.separator": "mirror.separator",
    "refresh.topics.enabled": "topology.follow_new",
    "refresh.topics.interval.seconds": "topology.refresh_interval",
    "sync.topic.configs.enabled": "topology.on_source_drift",
    "sync.topic.acls.enabled": "acls.policy, acls.write_grants",
    "sync.group.offsets.enabled": "mirror.sync_groups",
    "sync.group.offsets.interval.seconds": "mirror.sync_interval",
    "consumer.auto.offset.reset": "mirror.start",
    "source.consumer.auto.offset.reset": "mirror.start",
    "emit.checkpoints.enabled": "mirror.state_topics.checkpoints",
    "emit.checkpoints.interval.seconds": "mirror.state_topics.checkpoints_interval",
    "offset-syncs.topic.location": "mirror.state_topics.offset_syncs",
    "emit.heartbeats.enabled": "mirror.state_topics.heartbeats",
    "emit.heartbeats.interval.seconds": "mirror.state_topics.heartbeats_interval",
    "heartbeats.replication.enabled": "mirror.state_topics.heartbeats",
    "source.cluster.alias": "mirror.naming",
    "replication.policy.internal.topic.separator.enabled": "mirror.state_topics.internal_separator",
}

#: Names that properties had before 4.0, with those of today.
FORMER: Mapping[str, str] = {
    "topics.blacklist": "topics.exclude",
    "groups.blacklist": "groups.exclude",
    "config.properties.blacklist": "config.properties.exclude",
}

#: Properties that need no equivalent, and why.
NOT_NEEDED: Mapping[str, str] = {
    "tasks.max": "lanes share the partitions out by size (seed.lanes)",
    "offset.lag.max": "the offset map is exact; there is no distance between offset syncs",
    "offset-syncs.topic.replication.factor": "state topics that are missing get the brokers' default",
    "emit.offset-syncs.enabled": "offset syncs are written with the checkpoints",
    "checkpoints.topic.replication.factor": "state topics that are missing get the brokers' default",
    "heartbeats.topic.replication.factor": "state topics that are missing get the brokers' default",
    "refresh.groups.enabled": "groups are listed again in each round",
    "refresh.groups.interval.seconds": "groups are listed again in each round",
    "sync.topic.configs.interval.seconds": "topology.refresh_interval is the interval of all of them",
    "sync.topic.acls.interval.seconds": "topology.refresh_interval is the interval of all of them",
    "offset.flush.interval.ms": "positions are not stored: the target's log is the checkpoint",
    "offset.flush.timeout.ms": "positions are not stored: the target's log is the checkpoint",
    "offset.storage.replication.factor": "there is no Connect cluster",
    "offset.storage.topic": "there is no Connect cluster",
    "status.storage.replication.factor": "there is no Connect cluster",
    "config.storage.replication.factor": "there is no Connect cluster",
    "dedicated.mode.enable.internal.rest": "there is no Connect cluster",
    "exactly.once.source.support": "each copy is exactly once",
    "exactly.once.support": "each copy is exactly once",
    "transaction.boundary": "each copy is exactly once",
    "consumer.poll.timeout.ms": "the copiers wait as long as a slice lasts",
    "admin.timeout.ms": "waits are bounded by the package",
    "metric.names.formats": "metrics have names of their own",
    "key.converter": "batches are copied as the bytes they are",
    "value.converter": "batches are copied as the bytes they are",
    "header.converter": "batches are copied as the bytes they are",
    "target.cluster.alias": "state topics on the source are named after the cluster of the flow",
    "name": "a flow is named after its two clusters",
    "connector.class": "there is no Connect cluster",
    "group.id": "the copiers join no group",
    "rest.port": "there is no Connect cluster",
    "listeners": "there is no Connect cluster",
    "worker.": "there is no Connect cluster",
}

#: Properties whose meaning is lost: a person has to decide.
NO_EQUIVALENT: Mapping[str, str] = {
    "topic.filter.class": "a class of your own selects topics; write its rules as topics.include and topics.exclude",
    "group.filter.class": "a class of your own selects groups; write its rules as groups.include and groups.exclude",
    "config.property.filter.class": "a class of your own selects configs; write its rules as topology.config_exclude",
    "forwarding.admin.class": "a class of your own changes topics and ACLs; here the brokers do, so the migration's "
    "principal needs their rights",
    "transforms": "records are never changed; keep MirrorMaker 2 for this flow, or transform them in the consumers",
    "predicates": "records are never changed",
    "errors.": "a record that cannot be copied stops its partition with a named error; none is skipped",
    "producer.compression.type": "batches keep the codec of their producers",
    "consumer.isolation.level": "only committed records are copied: read_uncommitted would copy aborted ones",
}

_HOST_NAME = "ssl.endpoint.identification.algorithm"
#: Keys of Java's clients with those of librdkafka, for connections.
_CONNECTION = {
    "bootstrap.servers": "bootstrap.servers",
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    _HOST_NAME: _HOST_NAME,
    "ssl.key.password": "ssl.key.password",
    "sasl.kerberos.service.name": "sasl.kerberos.service.name",
    "sasl.oauthbearer.token.endpoint.url": "sasl.oauthbearer.token.endpoint.url",
}
_JAAS = re.compile(r"""(\w[\w.]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))""")
_JAAS_KEYS = {
    "username": "sasl.username",
    "password": "sasl.password",
    "principal": "sasl.kerberos.principal",
    "keyTab": "sasl.kerberos.keytab",
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_POLICIES = {
    "DefaultReplicationPolicy": "default",
    "IdentityReplicationPolicy": "identity",
}
_OFFSET_RESET = "consumer.auto.offset.reset"
_FROM_PROVIDER = "comes from a config provider of MirrorMaker 2: put a reference to the secret there"
_PROVIDER = re.compile(r"\$\{[^}]*\}")
#: What MirrorMaker 2 writes into state topics, by the names of its properties and of the spec's keys.
_EMITTED = ("checkpoints", "heartbeats")
_ALIASES = ("source.cluster.alias", "target.cluster.alias")
_FLOW = re.compile(r"^(.+)->(.+?)\.(.+)$")


def table() -> str:
    """Return the properties and what becomes of them, as a Markdown table for the documentation."""
    rows = [(name, f"`{key}`") for name, key in COVERED.items()]
    rows += [(name, f"`{COVERED[now]}`, as `{now}`, if that is not set") for name, now in FORMER.items()]
    rows += [(name, f"not needed: {why}") for name, why in NOT_NEEDED.items()]
    rows += [(name, f"**no equivalent**: {why}") for name, why in NO_EQUIVALENT.items()]
    lines = [f"| `{name}{'*' if name.endswith('.') else ''}` | {becomes} |" for name, becomes in rows]
    return "\n".join(["| property of MirrorMaker 2 | becomes |", "|---|---|", *lines]) + "\n"


#: ``config.properties.exclude`` of MirrorMaker 2 (DefaultConfigPropertyFilter of 4.3), in the names of topic configs.
_CONFIG_EXCLUDE = (
    r"follower\.replication\.throttled\.replicas, leader\.replication\.throttled\.replicas, "
    r"message\.timestamp\.difference\.max\.ms, message\.timestamp\.type, unclean\.leader\.election\.enable, "
    r"min\.insync\.replicas"
)


@dataclass
class ImportedFlow:
    """One flow: its spec without the sections that a MirrorMaker 2 does not know, and what a person has to look at.

    :param notes: property to why it is not in the spec; only those that were set.
    :param to_correct: key of the spec to what a person has to write there: otherwise topics would get other names.
    """

    source_alias: str
    target_alias: str
    spec: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)
    to_correct: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return ``source->target``."""
        return f"{self.source_alias}->{self.target_alias}"


@dataclass
class Imported:
    """What a properties file becomes.

    :param connections: librdkafka keys by alias. They hold secrets.
    :param connection_notes: alias to what could not be translated.
    :param unknown: properties that neither MirrorMaker 2 nor this importer knows.
    """

    flows: list[ImportedFlow]
    connections: dict[str, dict[str, str]]
    connection_notes: dict[str, dict[str, str]]
    unknown: list[str]


def read_properties(text: str, *, path: str = "") -> Imported:
    """Read ``mm2.properties`` of a dedicated MirrorMaker 2.

    :raises SpecInvalid: it names no clusters, or enables no flow.
    """
    try:
        given = {key.strip(): value.strip() for key, value in javaproperties.loads(text).items()}
    except ValueError as error:
        raise SpecInvalid(
            f"not a properties file: {error}", where=Where(path=path), next_step="check the file"
        ) from None
    aliases = _names(given.get("clusters", ""))
    if not aliases:
        raise SpecInvalid(
            "the property clusters is missing: this is not the file of a dedicated MirrorMaker 2",
            where=Where(path=path),
            next_step="give its mm2.properties; for connectors, write such a file from their configs",
        )
    sorted_out = _SortedOut(given, aliases)
    flows = [sorted_out.flow(source, target) for source in aliases for target in aliases if source != target]
    enabled = [flow for flow in flows if flow is not None]
    if not enabled:
        strangers = ", ".join(sorted_out.of_unknown_clusters())
        raise SpecInvalid(
            "no flow is enabled"
            + (f" between two of the clusters ({strangers}: not both in clusters)" if strangers else ""),
            where=Where(path=path),
            next_step="set for instance A->B.enabled = true, as MirrorMaker 2 needs it, too",
        )
    connections = {alias: sorted_out.connection(alias) for alias in aliases}
    return Imported(
        enabled,
        {alias: keys for alias, (keys, _) in connections.items()},
        {alias: notes for alias, (_, notes) in connections.items() if notes},
        sorted_out.unknown(),
    )


def meant(key: str) -> str:
    """Return the property that somebody may have meant by an unknown one; empty if there is none."""
    known = sorted({*COVERED, *NO_EQUIVALENT, *NOT_NEEDED, "clusters"})
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.75)), "")


def _names(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


class _SortedOut:
    """The properties by what they are about: a flow, a cluster, or all flows."""

    def __init__(self, given: Mapping[str, str], aliases: list[str]) -> None:
        self._aliases = aliases
        self._flows: dict[tuple[str, str], dict[str, str]] = {}
        self._clusters: dict[str, dict[str, str]] = {alias: {} for alias in aliases}
        self._common: dict[str, str] = {}
        self._unknown: list[str] = []
        for key in sorted(given):
            self._sort(key, given[key])

    def _sort(self, key: str, value: str) -> None:
        if key == "clusters":
            return
        # Also beside a cluster whose alias is `source`: MirrorMaker 2 reads it as a setting of all flows.
        if key in _ALIASES:
            self._common[key] = value
            return
        if match := _FLOW.match(key):
            self._flows.setdefault((match[1].strip(), match[2].strip()), {})[match[3]] = value
            return
        # The longest alias first: `a.b` is a cluster of its own beside `a`.
        for alias in sorted(self._aliases, key=len, reverse=True):
            if key.startswith(f"{alias}."):
                self._clusters[alias][key.removeprefix(f"{alias}.")] = value
                return
        self._common[key] = value

    def flow(self, source: str, target: str) -> ImportedFlow | None:
        """Return a flow with the common properties below its own; None if it is not enabled."""
        own = self._flows.get((source, target), {})
        values = {**{key: value for key, value in self._common.items() if not _is_of_connection(key)}, **own}
        if values.pop("enabled", "false").lower() != "true":
            return None
        notes = self._take_offset_reset(source, own, values)
        for former, now in FORMER.items():
            if former in values:
                values.setdefault(now, values[former])
        flow = ImportedFlow(source, target, _spec(source, target, self._aliases, values), notes)
        _name_topics(flow, values)
        for key, value in sorted(values.items()):
            self._note(flow, key, value)
        return flow

    def _take_offset_reset(self, source: str, own: Mapping[str, str], values: dict[str, str]) -> dict[str, str]:
        """Put where the flow begins under one name, as MirrorMaker 2 finds it; return notes about what it ignores.

        A value for the source takes precedence over one for the flow's consumers; a value for all flows is ignored.
        """
        names = (f"source.{_OFFSET_RESET}", _OFFSET_RESET)
        ignored = [name for name in names if name in self._common and name not in own]
        for name in names:
            values.pop(name, None)
        found = own.get(names[0]) or self._clusters[source].get(_OFFSET_RESET) or own.get(names[1])
        if found:
            values[_OFFSET_RESET] = found
        why = "MirrorMaker 2 ignores it unless it is set for one flow or cluster, and begins at the logs' starts"
        return dict.fromkeys(ignored, f"{why}; so do the flows here: set mirror.start if that is not meant")

    def _note(self, flow: ImportedFlow, key: str, value: str) -> None:
        if key in FORMER:
            flow.notes[key] = f"taken as {FORMER[key]}, if that is not set; MirrorMaker 2 from 4.0 on ignores it"
            return
        if key in COVERED:
            if why := _why_not(key, value):
                flow.notes[key] = why
            return
        for table in (NO_EQUIVALENT, NOT_NEEDED):
            for name, reason in table.items():
                if key == name or (key.startswith(name) and (name.endswith(".") or key[len(name)] == ".")):
                    flow.notes[key] = reason
                    return
        if key.split(".")[0] in ("producer", "consumer", "admin", "source", "target"):
            flow.notes[key] = "a setting of one client; the copiers have seed.* and tail.* instead"
            return
        self._unknown.append(key)

    def connection(self, alias: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return librdkafka's keys of a cluster, and what could not be translated."""
        keys, notes = dict[str, str](), dict[str, str]()
        for key, value in sorted(self._of_cluster(alias).items()):
            if key in _CONNECTION:
                # Java's clients check no host name if this is empty.
                keys[_CONNECTION[key]] = value or ("none" if key == _HOST_NAME else "")
            elif key == "sasl.jaas.config":
                found = _jaas(value)
                keys.update(found)
                if not found:
                    notes[key] = _FROM_PROVIDER if _PROVIDER.search(value) else "has no user, principal or client id"
            elif key.startswith(("ssl.truststore.", "ssl.keystore.")):
                notes[key] = (
                    "a Java key store: export PEM files, and set ssl.ca.location, ssl.certificate.location and "
                    "ssl.key.location"
                )
            elif key.startswith(("security.", "sasl.", "ssl.")):
                notes[key] = "set it in the connection by hand; docs/connections.md lists the keys"
            else:
                notes[key] = "not a key of a connection; a setting of MirrorMaker 2's own clients"
        for key, value in sorted(keys.items()):
            if _PROVIDER.search(value):
                notes[key] = _FROM_PROVIDER
                del keys[key]
        try:
            ClientConfig.from_librdkafka(keys, alias)
        except ConnectionInvalid as error:
            notes["to correct"] = "; ".join(error.details["problems"])
        return keys, notes

    def _of_cluster(self, alias: str) -> dict[str, str]:
        """Return a cluster's own properties and those that secure all clusters, except where its flows begin."""
        of_all = {key: value for key, value in self._common.items() if _is_of_connection(key)}
        return {key: value for key, value in {**of_all, **self._clusters[alias]}.items() if key != _OFFSET_RESET}

    def unknown(self) -> list[str]:
        """Return properties that nobody knows, each once."""
        return sorted({*self._unknown, *(f"{flow}.*" for flow in self.of_unknown_clusters())})

    def of_unknown_clusters(self) -> list[str]:
        """Return the flows whose two ends are not two of the clusters."""
        both = set(self._aliases)
        return sorted(
            f"{source}->{target}" for source, target in self._flows if {source, target} - both or source == target
        )


def _is_of_connection(key: str) -> bool:
    """Whether a property secures connections. Without an alias in front it counts for all clusters."""
    return key in _CONNECTION or key.startswith(("security.", "sasl.", "ssl."))


def _jaas(text: str) -> dict[str, str]:
    """Return the options of a JAAS configuration that librdkafka has keys for."""
    found = {}
    for match in _JAAS.finditer(text):
        name = match[1]
        value = next(part for part in match.groups()[1:] if part is not None)
        if name in _JAAS_KEYS:
            found[_JAAS_KEYS[name]] = re.sub(r"\\(.)", r"\1", value)
    return found


def _why_not(key: str, value: str) -> str:
    """Return why the value of a covered property has no place in the spec; empty if it has one."""
    if key.endswith(".enabled") and value.lower() not in ("true", "false"):
        return "neither true nor false, with which MirrorMaker 2 does not start: correct it and import again"
    if key == "replication.policy.class" and value.rpartition(".")[2] not in _POLICIES:
        return "a Java class of your own names topics: write its two methods in Python (mirror.naming: custom)"
    if key == "sync.topic.configs.enabled" and value.lower() == "false":
        return "configs of new topics are copied all the same; changes are reported and not applied"
    if key == "consumer.auto.offset.reset" and value.lower() == "latest":
        return "topics and partitions that appear later are copied from their beginning"
    if key == "consumer.auto.offset.reset" and value.lower() != "earliest":
        return "a mirror begins at the logs' starts (earliest) or ends (latest); it begins at their starts now"
    if key == "heartbeats.replication.enabled" and value.lower() == "false":
        return "heartbeats of the source are copied whenever heartbeats are written"
    return ""


def _spec(source: str, target: str, aliases: Iterable[str], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of a flow. Sections and keys that keep their default are left out."""
    spec: dict[str, Any] = {
        "kind": "mirror",
        "migration_id": re.sub(r"[^a-z0-9-]+", "-", f"{source}-to-{target}".lower()).strip("-"),
        "source": {"conn_id": f"kafka_{_identifier(source)}", "name": source},
        "target": {"conn_id": f"kafka_{_identifier(target)}", "name": target},
        "mirror": dict(_mirror(source, target, aliases, values)),
    }
    for name, value in _sections(values):
        section, _, key = name.partition(".")
        spec.setdefault(section, {})[key] = value
    return spec


def _name_topics(flow: ImportedFlow, values: Mapping[str, str]) -> None:
    """Give a flow the naming that MirrorMaker 2's own policy has with these properties.

    That policy puts ``source.cluster.alias``, which is the flow's source unless it is set, and the separator in front
    of each name. Both are empty where topics were to keep their names before there was a policy for it.
    """
    mirror = flow.spec["mirror"]
    alias = values.get("source.cluster.alias", flow.source_alias)
    separator = values.get("replication.policy.separator", ".")
    if mirror["naming"] != "default" or (alias == flow.source_alias and separator):
        return
    if not alias and not separator:
        mirror["naming"] = "identity"
        for name in ("source.cluster.alias", "replication.policy.separator"):
            flow.notes[name] = (
                "empty, as MirrorMaker 2 needs it so that topics keep their names: mirror.naming: identity"
            )
        return
    named = f"MirrorMaker 2 names topics {alias}{separator}TOPIC here"
    if separator and alias:
        what = f"{named} (source.cluster.alias): name the cluster {alias} in this file, in clusters and in the flow"
        flow.to_correct["mirror.source_alias"] = what
        return
    mirror["naming"] = "custom"
    flow.to_correct["mirror.naming"] = (
        f"{named}, which no naming of a mirror does: write a class for mirror.naming: custom; `default` or `identity` "
        "would begin a second copy of each topic under another name"
    )


def _identifier(alias: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", alias)


def _mirror(source: str, target: str, aliases: Iterable[str], values: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    yield "source_alias", source
    yield "target_alias", target
    others = sorted(set(aliases) - {source, target})
    if others:
        yield "known_aliases", others
    policy = values.get("replication.policy.class", "DefaultReplicationPolicy").rpartition(".")[2]
    yield "naming", _POLICIES.get(policy, "custom")
    if values.get("replication.policy.separator"):
        yield "separator", values["replication.policy.separator"]
    if values.get("consumer.auto.offset.reset", "").lower() == "latest":
        yield "start", "latest"
    # MirrorMaker 2 does not sync the offsets of groups by default.
    yield "sync_groups", values.get("sync.group.offsets.enabled", "false").lower() == "true"
    if "sync.group.offsets.interval.seconds" in values:
        yield "sync_interval", f"{values['sync.group.offsets.interval.seconds']}s"
    yield "state_topics", dict(_state_topics(values))


def _state_topics(values: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of the state topics, which MirrorMaker 2 writes by default.

    Nothing is written to the source unless the file says so: MirrorMaker 2's own default would need rights there that
    a mirror does not need.
    """
    writes = {name: values.get(f"emit.{name}.enabled", "true").lower() == "true" for name in _EMITTED}
    yield from writes.items()
    for name in _EMITTED:
        if writes[name] and f"emit.{name}.interval.seconds" in values:
            yield f"{name}_interval", f"{values[f'emit.{name}.interval.seconds']}s"
    if writes["checkpoints"] and "offset-syncs.topic.location" in values:
        yield "offset_syncs", values["offset-syncs.topic.location"].lower()
    if values.get("replication.policy.internal.topic.separator.enabled", "true").lower() == "false":
        yield "internal_separator", "."


def _replication_factor(text: str) -> int | str:
    """Return the spec's value. What is no number stays as it is: the check of the spec names it."""
    if text == "-1":
        return "target_default"
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text


def _sections(values: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the spec's keys in MirrorMaker 2's meaning: without a property, its default."""
    yield "topics.include", _names(values.get("topics", ".*"))
    if "topics.exclude" in values:
        yield "topics.exclude", _names(values["topics.exclude"])
    yield "groups.include", _names(values.get("groups", ".*"))
    yield "groups.exclude", _names(values.get("groups.exclude", "console-consumer-.*, connect-.*, __.*"))
    # It never looks at the source's replication factor.
    yield "topology.replication_factor", _replication_factor(values.get("replication.factor", "2"))
    yield "topology.config_exclude", _names(values.get("config.properties.exclude", _CONFIG_EXCLUDE))
    if "use.defaults.from" in values:
        yield "topology.use_defaults_from", values["use.defaults.from"]
    if values.get("refresh.topics.enabled", "true").lower() == "false":
        yield "topology.follow_new", False
    if "refresh.topics.interval.seconds" in values:
        yield "topology.refresh_interval", f"{values['refresh.topics.interval.seconds']}s"
    if values.get("sync.topic.configs.enabled", "true").lower() == "false":
        yield "topology.on_source_drift", "note"
    if values.get("sync.topic.acls.enabled", "true").lower() == "false":
        yield "acls.policy", "skip"
    else:
        # It never copies WRITE, and makes READ of ALL. Here a promotion gives what was held back.
        yield "acls.write_grants", "at_cutover"
    # It copies from cluster to cluster, and so does the mirror: otherwise its seed would pass through a bucket.
    yield "seed.via", "direct"
