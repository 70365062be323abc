"""Precheck of Spark: what the probe saw on the driver and on executors. A missing or outdated probe proves nothing."""

from __future__ import annotations

import importlib.metadata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime

from packaging.version import InvalidVersion, Version

from airflow_provider_kafka_migration.checks.spark_probe import SparkSide, outdated, read_probe
from airflow_provider_kafka_migration.documents.plan import Finding, Plan
from airflow_provider_kafka_migration.documents.spark_probe import AddressLook, MachineLook, SparkProbe
from airflow_provider_kafka_migration.lanes.libraries import python_bounds, requirements
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import finding, some

#: Clocks that differ by more than this are named; leases and slices do not depend on them, logs and tokens do.
SKEW_SECONDS = 2.0
#: From here on S3 signatures, tokens and certificates begin to fail.
WORST_SKEW_SECONDS = 30.0
_AGAIN = "clear spark_check; precheck follows it"


def check_spark(context: PhaseContext, plan: Plan) -> Iterator[Finding]:
    """Judge the stored probe, unless the data plane runs in this process."""
    runner = context.runner
    if runner is not None and not isinstance(runner, SparkSide):
        return
    probe = read_probe(context.record)
    if probe is None:
        yield finding("W130", "there is no result of the task spark_check")
        return
    # Airflow's precheck has no runner; there spark_check, which comes before it, has compared the masters.
    master = "" if runner is None else runner.spark_master(context.spec)
    why = outdated(probe, context.spec, context.now(), master)
    if why:
        yield finding("B131", f"it was probed at {probe.at}, and {why}", fix=_AGAIN)
        return
    yield from judge(probe, context.now())


def judge(probe: SparkProbe, now: datetime) -> list[Finding]:
    """Return what is wrong, or unknown, according to a probe."""
    found = [finding("B138", problem, subject=probe.master) for problem in probe.unsafe_settings]
    if probe.kind == "failed":
        error = probe.error or {}
        seen = f"[{error.get('code', 'UNKNOWN')}] {error.get('what', 'no reason is known')}"
        return [*found, finding("B132", seen, subject=probe.master, fix=str(error.get("next_step") or ""))]
    if probe.kind == "local":
        return found
    found += _versions(probe)
    found += _libraries(probe)
    found += _references(probe)
    found += _brokers(probe)
    found += _storage(probe)
    found += _clocks(probe)
    found += _not_asked(probe)
    found += _unknown(probe)
    return found


def _names(machines: Iterable[MachineLook]) -> str:
    """Return machines for people: ``driver (host-1), executor 3 (host-2)``."""
    return some([_name(machine) for machine in machines], 5)


def _name(machine: MachineLook) -> str:
    what = machine.name if machine.name == "driver" else f"executor {machine.name}"
    return f"{what} ({machine.host})"


# -- versions ---------------------------------------------------------------------------------------------------------


def _versions(probe: SparkProbe) -> Iterator[Finding]:
    other: dict[str, list[MachineLook]] = defaultdict(list)
    absent: dict[str, list[MachineLook]] = defaultdict(list)
    for machine in probe.machines:
        if machine.package_version is None:
            absent[machine.package_error].append(machine)
        elif machine.package_version != probe.airflow_package_version:
            other[machine.package_version].append(machine)
    for version, machines in sorted(other.items()):
        seen = f"{version} on {_names(machines)}; Airflow's side has {probe.airflow_package_version}"
        yield finding("B133", seen, subject=version)
    for why, machines in sorted(absent.items()):
        yield finding("B134", f"this package cannot be imported on {_names(machines)}: {why}", subject="this package")
    try:
        allowed = python_bounds()
    except importlib.metadata.PackageNotFoundError:
        return
    wrong: dict[str, list[MachineLook]] = defaultdict(list)
    for machine in probe.machines:
        if machine.python and machine.python not in allowed:
            wrong[machine.python].append(machine)
    for version, machines in sorted(wrong.items()):
        yield finding("B134", f"Python {version} on {_names(machines)}; {allowed} is needed", subject="Python")


def _libraries(probe: SparkProbe) -> Iterator[Finding]:
    missing: dict[str, list[MachineLook]] = defaultdict(list)
    wrong: dict[tuple[str, str], list[MachineLook]] = defaultdict(list)
    unknown: dict[str, list[MachineLook]] = defaultdict(list)
    try:
        bounds = requirements()
    except importlib.metadata.PackageNotFoundError:
        bounds = {}
    for machine in probe.machines:
        for name, version in machine.packages.items():
            if version is None:
                missing[name].append(machine)
            elif name not in bounds or (accepted := _accepts(version, bounds[name].specifier)) is None:
                unknown[name].append(machine)
            elif not accepted:
                wrong[(name, version)].append(machine)
    for name, machines in sorted(missing.items()):
        yield finding("B134", f"{name} is missing on {_names(machines)}", subject=name)
    for (name, version), machines in sorted(wrong.items()):
        yield finding(
            "B134", f"{name} {version} on {_names(machines)}; {bounds[name].specifier} is needed", subject=name
        )
    for name, machines in sorted(unknown.items()):
        yield finding("W141", f"the version of {name} is not known on {_names(machines)}", subject=name)


def _accepts(version: str, specifier: object) -> bool | None:
    """Return whether a version is within bounds; None if it is not a version."""
    try:
        Version(version)
    except InvalidVersion:
        return None
    return version in specifier  # type: ignore[operator]


# -- reachability -----------------------------------------------------------------------------------------------------


def _references(probe: SparkProbe) -> Iterator[Finding]:
    by_error: dict[tuple[str, str, str], list[MachineLook]] = defaultdict(list)
    for machine in probe.machines:
        for role, error in machine.unresolved.items():
            by_error[(role, _said(error), str(error.get("next_step", "")))].append(machine)
    for (role, said, next_step), machines in sorted(by_error.items()):
        yield finding(
            "B137", f"{role}: {said}, on {_names(machines)}", subject=role, fix=f"{next_step} (on that machine)"
        )


def _brokers(probe: SparkProbe) -> Iterator[Finding]:
    failed: dict[tuple[str, str], list[tuple[MachineLook, AddressLook]]] = defaultdict(list)
    for machine in probe.machines:
        answered = {(look.cluster, look.role) for look in machine.addresses if look.error is None}
        for look in machine.addresses:
            # A bootstrap server may be away as long as another one answers; lanes use the advertised addresses.
            spare = look.role == "bootstrap" and (look.cluster, "bootstrap") in answered
            if look.error is not None and not spare:
                failed[(look.cluster, look.address)].append((machine, look))
    for (cluster, address), seen in sorted(failed.items()):
        _, first = seen[0]
        error = first.error or {}
        yield finding(
            "B135",
            f"{cluster} {address} ({first.role}): {_said(error)}, from {_names(machine for machine, _ in seen)}",
            subject=f"{cluster} {address}",
            fix=str(error.get("next_step") or ""),
        )
    yield from _spare_bootstrap(probe, set(failed))


def _spare_bootstrap(probe: SparkProbe, named: set[tuple[str, str]]) -> Iterator[Finding]:
    away: dict[tuple[str, str], list[MachineLook]] = defaultdict(list)
    for machine in probe.machines:
        for look in machine.addresses:
            if look.error is not None and look.role == "bootstrap" and (look.cluster, look.address) not in named:
                away[(look.cluster, look.address)].append(machine)
    for (cluster, address), machines in sorted(away.items()):
        yield finding(
            "W142",
            f"{cluster} {address} does not answer {_names(machines)}; another bootstrap server does",
            subject=f"{cluster} {address}",
        )


def _storage(probe: SparkProbe) -> Iterator[Finding]:
    failed: dict[tuple[str, str, str], list[MachineLook]] = defaultdict(list)
    for machine in probe.machines:
        for store in machine.stores:
            if store.error is not None:
                key = (store.location, _said(store.error), str(store.error.get("next_step", "")))
                failed[key].append(machine)
    for (location, said, next_step), machines in sorted(failed.items()):
        yield finding("B136", f"{said}, from {_names(machines)}", subject=location, fix=next_step)


def _said(error: dict[str, object]) -> str:
    return f"[{error.get('code', 'UNKNOWN')}] {error.get('what', 'no reason is known')}"


# -- clocks, and what is not known ------------------------------------------------------------------------------------


def _clocks(probe: SparkProbe) -> Iterator[Finding]:
    for machine in probe.machines:
        least = 0.0 if machine.clock is None else machine.clock.least
        if abs(least) <= SKEW_SECONDS:
            continue
        other = "Airflow's task" if machine.name == "driver" else "the driver"
        direction = "ahead of" if least > 0 else "behind"
        code = "B139" if abs(least) >= WORST_SKEW_SECONDS else "W140"
        seen = f"the clock of {_name(machine)} is at least {abs(least):.1f} s {direction} that of {other}"
        yield finding(code, seen, subject=machine.host)


def _not_asked(probe: SparkProbe) -> Iterator[Finding]:
    why = f": {probe.not_asked_reason}" if probe.not_asked_reason else ""
    if not probe.executors:
        yield finding("B132", f"no executor could be asked{why}", subject=probe.master)
    elif probe.not_asked:
        yield finding("W141", f"executors that did not answer: {some(probe.not_asked)}{why}", subject="executors")
    if 0 <= len(probe.executors) < probe.executors_asked:
        seen = f"{probe.executors_asked} executors are asked for, {len(probe.executors)} answered"
        yield finding("W143", seen, subject=probe.master)


def _unknown(probe: SparkProbe) -> Iterator[Finding]:
    parts: dict[tuple[str, str], list[MachineLook]] = defaultdict(list)
    left: dict[str, list[str]] = defaultdict(list)
    for machine in probe.machines:
        for part, why in machine.not_looked_at.items():
            # What is missing, or cannot be resolved, is a finding of its own.
            if part not in machine.unresolved and machine.package_version is not None:
                parts[(part, why)].append(machine)
        for store in machine.stores:
            if store.left_behind:
                left[store.location].append(store.left_behind)
    for (part, why), machines in sorted(parts.items()):
        yield finding("W141", f"{part} was not tried on {_names(machines)}: {why}", subject=part)
    for location, keys in sorted(left.items()):
        yield finding("I144", f"{len(keys)} objects, the first is {keys[0]}", subject=location, keys=keys)
