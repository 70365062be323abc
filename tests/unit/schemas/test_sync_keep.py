"""Schemas copied with their ids and versions, against fake registries."""

from __future__ import annotations

from pathlib import Path

from registry_world import avro, world


def test_ids_versions_and_gaps_are_kept(tmp_path: Path) -> None:
    with world(tmp_path, ids="keep") as at:
        at.source.seed("a-value", avro("A", "x"), id=100, version=3)
        at.source.seed("a-value", avro("A", "x", "y", y=0), id=107, version=5)
        at.source.seed("b-value", avro("A", "x"), id=100)
        result = at.synchronize()
        assert (result.id_mode, result.registered, result.deleted, result.failed) == ("keep", 3, 0, [])
        assert at.target_subjects() == at.source.state()["subjects"]
        assert at.ids() == {100: 100, 107: 107}
        assert at.target.state()["modes"] == {"": "READWRITE"}
