"""When a group must not be written, and what two writers know together: decided without a cluster."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kafka_migration.documents.way_back import WrittenOffset
from airflow_provider_kafka_migration.groups.offsets import TargetGroup, has_changed, target_states
from airflow_provider_kafka_migration.groups.written import _united
from airflow_provider_kafka_migration.kafka.admin.groups import (
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupOffset,
    GroupOffsets,
    _assigned,
    _described,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError

PLACE = ("orders", 0)
REFUSED = ItemError(30, "GROUP_AUTHORIZATION_FAILED")
EMPTY = GroupDescription("g", "classic", "Empty")


class Admin:
    """A target with one group, whose answers a test changes."""

    alters_share_groups = False

    def __init__(self) -> None:
        self.described: dict[str, GroupDescription] = {"g": EMPTY}
        self.offsets: dict[str, GroupOffsets] = {"g": GroupOffsets("g", {PLACE: GroupOffset(4)})}

    def list_groups(self) -> dict[str, GroupListing]:
        return {"g": GroupListing("g", "classic", "Empty", "consumer", 1)}

    def describe_groups(self, names: Any, **_: Any) -> dict[str, GroupDescription]:
        return self.described

    def groups_offsets(self, names: Any, **_: Any) -> dict[str, GroupOffsets]:
        return self.offsets


def cluster(admin: Admin) -> Any:
    return SimpleNamespace(admin=admin)


# -- what is read of the target --------------------------------------------------------------------------------------


def test_a_group_that_may_not_be_described_has_an_error_and_is_not_empty() -> None:
    """Else it would be skipped as one with members, and the commit would report no failure."""
    admin = Admin()
    admin.described["g"] = GroupDescription("g", "classic", "", error=REFUSED)
    found = target_states(cluster(admin), {"g": "classic"})["g"]
    assert found.error == REFUSED
    assert not found.is_empty


def test_a_group_whose_offsets_may_not_be_read_has_an_error() -> None:
    admin = Admin()
    admin.offsets["g"] = GroupOffsets("g", error=REFUSED)
    assert target_states(cluster(admin), {"g": "classic"})["g"].error == REFUSED


# -- the look before a write -----------------------------------------------------------------------------------------

BEFORE = TargetGroup("Empty", True, {PLACE: GroupOffset(4)}, type="classic")


def changed(admin: Admin, before: TargetGroup = BEFORE) -> bool:
    return has_changed(cluster(admin), "g", "classic", before)


def test_a_group_that_is_as_before_may_be_written() -> None:
    assert not changed(Admin())


@pytest.mark.parametrize(
    "described",
    [
        {},
        {"g": GroupDescription("g", "classic", "Stable", (GroupMember("m", "c", "/h"),))},
        {"g": GroupDescription("g", "classic", "Empty", error=REFUSED)},
    ],
    ids=["no answer", "members", "refused"],
)
def test_a_group_that_is_not_known_to_be_empty_counts_as_changed(described: dict[str, GroupDescription]) -> None:
    admin = Admin()
    admin.described = described
    assert changed(admin)


@pytest.mark.parametrize(
    "offsets",
    [
        {},
        {"g": GroupOffsets("g", error=REFUSED)},
        {"g": GroupOffsets("g", {PLACE: GroupOffset(5)})},
        {"g": GroupOffsets("g", {}, {PLACE: REFUSED})},
    ],
    ids=["no answer", "refused", "another offset", "unread"],
)
def test_offsets_that_are_not_those_before_count_as_changed(offsets: dict[str, GroupOffsets]) -> None:
    admin = Admin()
    admin.offsets = offsets
    assert changed(admin)


# -- records of two writers ------------------------------------------------------------------------------------------


def written(*offsets: int, final: bool = False) -> WrittenOffset:
    return WrittenOffset(
        topic="orders", partition=0, former_offset=None, former_metadata="", written=list(offsets), is_final=final
    )


KEY = ("g", "orders", 0)


@pytest.mark.parametrize(
    ("base", "mine", "theirs", "expected"),
    [
        (None, written(1), None, written(1)),
        (None, None, written(2), written(2)),
        (written(1), written(1), written(1, 2), written(1, 2)),
        (written(1), written(1, 3), written(1), written(1, 3)),
        (written(1), written(1, 3), written(1, 2), written(2, 1, 3)),
        (written(1), written(1, 3, final=True), written(1, 2), written(2, 1, 3, final=True)),
        (written(1), None, written(1), None),
        (written(1), None, written(1, 2), written(1, 2)),
        (written(1), written(1), None, None),
        (written(1), written(1, 3), None, written(1, 3)),
    ],
)
def test_nothing_that_either_writer_has_recorded_is_lost(
    base: WrittenOffset | None, mine: WrittenOffset | None, theirs: WrittenOffset | None, expected: WrittenOffset | None
) -> None:
    """An offset that is in no record would pass for one of others, and stay behind a rollback."""

    def kept(item: WrittenOffset | None) -> dict[tuple[str, str, int], WrittenOffset]:
        return {} if item is None else {KEY: item}

    assert _united(kept(base), kept(mine), kept(theirs)).get(KEY) == expected


# -- what members of classic groups read -----------------------------------------------------------------------------


def assignment(topics: dict[str, list[int]]) -> bytes:
    data = struct.pack(">hi", 1, len(topics))
    for name, numbers in topics.items():
        data += struct.pack(">h", len(name)) + name.encode() + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return data + struct.pack(">i", -1)


def test_the_assignment_of_a_classic_member_is_read() -> None:
    data = assignment({"state": [2], "orders": [1, 0]})
    assert _assigned(data) == (("orders", 0), ("orders", 1), ("state", 2))


@pytest.mark.parametrize(
    "data", [None, b"", b"\x00", assignment({"orders": [1, 0]})[:-12], b"\x00\x01\x00\x00\x00\x01\x00\x02\xff\xff"]
)
def test_what_another_client_has_written_there_is_no_assignment(data: bytes | None) -> None:
    assert _assigned(data) == ()


@pytest.mark.parametrize(("protocol", "expected"), [("consumer", (("orders", 0),)), ("connect", ())])
def test_only_consumers_have_assigned_partitions(protocol: str, expected: tuple[Any, ...]) -> None:
    member = SimpleNamespace(
        member_id="m", client_id="c", client_host="/h", member_assignment=assignment({"orders": [0]})
    )
    item = SimpleNamespace(
        group_id="g", error_code=0, error_message=None, protocol_type=protocol, group_state="Stable", members=[member]
    )
    (found,) = _described(item, "classic").members
    assert found.assigned == expected
