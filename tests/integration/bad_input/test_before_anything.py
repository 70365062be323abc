"""Bad input from the first day: each its own error that names the next step, soon, and before anything is touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import free_port
from tests.integration.bad_input.world import World

pytestmark = pytest.mark.integration


def test_unknown_keys_of_the_spec_are_all_named(untouched: World) -> None:
    said = untouched.run(tale={"a": 1}, tail={"drain_max_lag": 3}, seed={"via": "carrier pigeon"})
    error = said.check("SPEC_INVALID", what="tail.drain_max_lag", next_step="")
    assert {mistake["path"] for mistake in error["details"]["mistakes"]} == {"tale", "tail.drain_max_lag", "seed.via"}
    assert all(path in error["what"] for path in ("tale", "tail.drain_max_lag", "seed.via"))
    assert error["next_step"]
    assert untouched.objects() == []


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    ("reference", "what", "next_step"),
    [
        ("env:NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE is not set", "set NO_SUCH_VARIABLE"),
        ("file:/no/such/file.json", "cannot be read: No such file", "check the path"),
    ],
)
def test_a_missing_connection(untouched: World, side: str, reference: str, what: str, next_step: str) -> None:
    said = untouched.run(**{side: {"conn_id": reference}})
    error = said.check("CONNECTION_INVALID", what=what, next_step=next_step)
    assert error["where"]["path"] == reference
    assert untouched.objects() == []


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_reference_of_no_known_form(untouched: World, side: str) -> None:
    said = untouched.run(**{side: {"conn_id": "gopher:secret/kafka"}})
    error = said.check("SPEC_INVALID", what=f"{side}.conn_id: it is none of", next_step="correct all of them")
    assert [mistake["path"] for mistake in error["details"]["mistakes"]] == [f"{side}.conn_id"]
    assert untouched.objects() == []


def test_a_missing_storage_connection(untouched: World) -> None:
    said = untouched.run(storage={"conn_id": "env:NO_SUCH_STORAGE"})
    said.check(
        "CONNECTION_INVALID", what="NO_SUCH_STORAGE is not set", next_step="set NO_SUCH_STORAGE", freeze="unknown"
    )


def test_a_connection_that_others_may_read(untouched: World) -> None:
    open_file = untouched.folder / "open.json"
    open_file.write_text(json.dumps(untouched.source_keys))
    open_file.chmod(0o644)
    said = untouched.run(source={"conn_id": f"file:{open_file}"})
    said.check("CONNECTION_INVALID", what="other users may read it", next_step=f"chmod 600 {open_file}")


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_wrong_password(untouched: World, side: str) -> None:
    keys = untouched.source_keys if side == "source" else untouched.target_keys
    keys["sasl.password"] = "not-the-password"
    said = untouched.run()
    error = said.check("AUTHENTICATION_FAILED", what="refused the SASL login of admin", next_step="sasl.password")
    assert error["where"]["cluster"] == side
    assert "not-the-password" not in said.output
    assert untouched.objects() == []


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_unreachable_broker(untouched: World, side: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    keys = untouched.source_keys if side == "source" else untouched.target_keys
    keys["bootstrap.servers"] = address
    said = untouched.run()
    error = said.check("BROKER_UNREACHABLE", what="no broker of the", next_step="check bootstrap.servers", status=3)
    assert error["where"] == {"cluster": side, "broker": address}
    assert untouched.objects() == []


def test_an_unreachable_broker_makes_no_log_noise(untouched: World) -> None:
    """The whole program, as a person calls it: a few lines on stderr, none of them a traceback."""
    untouched.source_keys["bootstrap.servers"] = f"127.0.0.1:{free_port()}"
    program = Path(sys.executable).with_name("kafka-migration")
    done = subprocess.run(
        [program, "run", untouched.write_spec()], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 3
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 3, done.stderr
    assert [line.split()[0] for line in lines] == ["error", "where", "next"]


def test_source_and_target_are_one_cluster(untouched: World) -> None:
    """By another listener and another user: only the cluster's id tells."""
    untouched.fill()
    untouched.target_keys = untouched.source_cluster.client_config()
    said = untouched.run()
    error = said.check("SAME_CLUSTER", what="are the same cluster", next_step="correct bootstrap.servers")
    assert untouched.source_cluster.cluster_id() in error["what"]
    assert untouched.source_cluster.bootstrap in error["what"]
    assert untouched.objects() == []


@pytest.mark.parametrize("command", ["run", "plan", "precheck"])
def test_a_missing_journal_bucket(untouched: World, command: str) -> None:
    untouched.journal_bucket = "no-such-bucket"
    said = untouched.run(command=command)
    if command == "run":
        what = "bucket no-such-bucket: NoSuchBucket"
        error = said.check("STORAGE_REFUSED", what=what, next_step="create the bucket", freeze="unknown")
        assert "s3://no-such-bucket" in error["where"]["path"]
    else:
        assert said.code == 1
        assert "no-such-bucket" in said.output


@pytest.mark.parametrize("role", ["archive", "evidence"])
def test_another_missing_bucket_is_a_blocker_before_the_target_is_touched(untouched: World, role: str) -> None:
    untouched.fill()
    setattr(untouched, f"{role}_bucket", "no-such-bucket")
    said = untouched.run()
    error = said.check("PRECHECK_BLOCKED", what="B030", next_step="create the bucket")
    assert "no-such-bucket" in error["what"]
    (finding,) = [item for item in error["details"]["findings"] if item["code"] == "B030"]
    assert role in finding["subject"]


def test_wrong_keys_of_the_object_store(untouched: World) -> None:
    settings = untouched.folder / "other.json"
    settings.write_text(json.dumps({**untouched.s3.config(), "aws_secret": "x"}))
    settings.chmod(0o600)
    said = untouched.run(storage={"conn_id": f"file:{settings}"})
    said.check("CONNECTION_INVALID", what="unknown S3 settings: aws_secret", next_step="use only", freeze="unknown")


@pytest.mark.soak
def test_an_unreachable_object_store(untouched: World) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    settings = untouched.folder / "other.json"
    settings.write_text(json.dumps({**untouched.s3.config(), "endpoint_url": endpoint}))
    settings.chmod(0o600)
    said = untouched.run(storage={"conn_id": f"file:{settings}"})
    error = said.check("STORAGE_UNAVAILABLE", what=endpoint, next_step="check the network", status=3, freeze="unknown")
    assert "harness-secret" not in said.output
    assert error["details"]["bucket"] == untouched.journal_bucket


def test_foreign_data_in_a_target_topic(world: World) -> None:
    world.fill()
    world.target_cluster.create_topic(world.topic, 2)
    world.produce(world.target_cluster, 6, text="foreign")
    before = world.holdings()
    said = world.run()
    error = said.check("PRECHECK_BLOCKED", what="B010", next_step="delete the topic")
    assert world.topic in error["what"]
    after = world.holdings()
    assert after == before
    assert sorted(world.target_cluster.dump_log(world.topic)) == [0, 1]
