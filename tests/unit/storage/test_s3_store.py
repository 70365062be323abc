"""What only S3 does: retries, lost answers, refusals, Object Lock, secrets."""

from __future__ import annotations

import base64
import hashlib
import logging
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    ObjectExists,
    StorageRefused,
    StorageUnavailable,
)
from airflow_provider_kafka_migration.storage import s3
from airflow_provider_kafka_migration.storage.s3 import S3Config, S3Store
from harness.processes import closed_port

LATER = datetime.now(UTC) + timedelta(days=365)


def s3_error(code: str, status: int = 400, message: str = "", operation: str = "PutObject") -> ClientError:
    """An answer of S3."""
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        operation,
    )


class Faulty:
    """A client whose next calls of one operation fail, before or after they were done."""

    def __init__(self, client: Any, operation: str, faults: list[tuple[str, Exception]]) -> None:
        self._client = client
        self._operation = operation
        self._faults = faults
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Any] = getattr(self._client, name)
        if name != self._operation:
            return real

        def call(**kwargs: Any) -> Any:
            self.calls += 1
            when, error = self._faults.pop(0) if self._faults else ("", None)
            if when == "before" and error is not None:
                raise error
            result = real(**kwargs)
            if error is not None:
                raise error
            return result

        return call


@pytest.fixture
def faulty(s3_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Faulty]:
    """Make an operation of ``s3_store`` fail; waiting takes no time."""
    monkeypatch.setattr(s3_store, "_sleep", lambda _: None)

    def install(operation: str, *faults: tuple[str, Exception]) -> Faulty:
        client = Faulty(s3_store._client, operation, list(faults))
        monkeypatch.setattr(s3_store, "_client", client)
        return client

    return install


RETRIABLE = [
    s3_error("SlowDown", 503),
    s3_error("InternalError", 500),
    s3_error("ConditionalRequestConflict", 409),
    s3_error("RequestTimeout", 400),
    s3_error("ExpiredToken", 400),
    ReadTimeoutError(endpoint_url="http://s3"),
]


@pytest.mark.parametrize("fault", RETRIABLE, ids=lambda error: type(error).__name__ + str(error)[:40])
def test_retriable_errors_are_tried_again(s3_store: S3Store, faulty: Callable[..., Faulty], fault: Exception) -> None:
    client = faulty("put_object", ("before", fault), ("before", fault))
    s3_store.put_new("key", b"1")
    assert client.calls == 3
    assert s3_store.get("key") == b"1"


def test_a_known_sha256_spares_md5_and_the_body_is_not_copied(
    s3_store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    real = s3_store._client.put_object
    monkeypatch.setattr(s3_store, "_client", Recorder(s3_store._client, sent, real))
    data = bytearray(b"a segment")
    s3_store.put_new("key", data, sha256=hashlib.sha256(data).hexdigest())
    assert s3_store.get("key") == b"a segment"
    assert sent[0]["Body"] is data
    assert base64.b64decode(sent[0]["ChecksumSHA256"]) == hashlib.sha256(data).digest()
    assert "ContentMD5" not in sent[0]
    s3_store.put_new("other", b"an entry")
    assert "ContentMD5" in sent[1]


class Recorder:
    """A client that notes what it is told to put."""

    def __init__(self, client: Any, sent: list[dict[str, Any]], real: Callable[..., Any]) -> None:
        self._client, self._sent, self._real = client, sent, real

    def put_object(self, **kwargs: Any) -> Any:
        self._sent.append(kwargs)
        return self._real(**kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.mark.parametrize("fault", RETRIABLE[1:2] + RETRIABLE[-1:], ids=str)
def test_a_put_whose_answer_was_lost_is_ours(
    s3_store: S3Store, faulty: Callable[..., Faulty], fault: Exception
) -> None:
    client = faulty("put_object", ("after", fault))
    s3_store.put_new("key", b"mine")
    assert client.calls == 2
    with pytest.raises(ObjectExists):
        s3_store.put_new("key", b"mine")


def test_a_lost_put_that_another_creator_beat_is_not_ours(s3_store: S3Store, faulty: Callable[..., Faulty]) -> None:
    """Also when both wanted to write the same content."""
    s3_store.put_new("key", b"same")
    faulty("put_object", ("before", s3_error("InternalError", 500)))
    with pytest.raises(ObjectExists):
        s3_store.put_new("key", b"same")


def test_a_put_that_a_proxy_has_sent_twice_is_ours(s3_store: S3Store, faulty: Callable[..., Faulty]) -> None:
    """The proxy hands on the answer to its second attempt, which found the object of the first one."""
    client = faulty("put_object", ("after", s3_error("PreconditionFailed", 412)))
    s3_store.put_new("key", b"mine")
    assert client.calls == 1
    with pytest.raises(ObjectExists):
        s3_store.put_new("key", b"mine")


@pytest.mark.parametrize("content", [b"same", b"other"])
def test_a_service_that_drops_metadata_leaves_a_first_refusal_as_it_is(s3_store: S3Store, content: bytes) -> None:
    """Equal content proves nothing there: another creator may have written the same."""
    s3_store.put("key", content)
    with pytest.raises(ObjectExists):
        s3_store.put_new("key", b"same")


def test_an_answer_not_modified_means_that_the_object_exists(s3_store: S3Store, faulty: Callable[..., Faulty]) -> None:
    """MinIO answered 304 to a create-only put until April 2024."""
    s3_store.put_new("key", b"first")
    faulty("put_object", ("before", s3_error("304", 304, "Not Modified")))
    with pytest.raises(ObjectExists):
        s3_store.put_new("key", b"second")


def test_an_object_that_is_gone_when_it_is_looked_at_was_another_creators(
    s3_store: S3Store, faulty: Callable[..., Faulty]
) -> None:
    faulty("put_object", ("before", s3_error("PreconditionFailed", 412)))
    with pytest.raises(ObjectExists):
        s3_store.put_new("key", b"mine")


def test_retries_are_bounded(s3_store: S3Store, faulty: Callable[..., Faulty]) -> None:
    client = faulty("get_object", *[("before", s3_error("SlowDown", 503))] * 50)
    with pytest.raises(StorageUnavailable, match="SlowDown") as caught:
        s3_store.get("key")
    assert client.calls == s3.MAX_ATTEMPTS
    assert s3_store.bucket in str(caught.value)


def test_nobody_listens() -> None:
    waits: list[float] = []
    with closed_port() as port:
        config = S3Config(f"http://127.0.0.1:{port}", "the-key-id", "the-secret")
        store = S3Store(config, "some-bucket", sleep=waits.append)
        with pytest.raises(StorageUnavailable, match="some-bucket") as caught:
            store.put("key", b"")
    assert 0 < sum(waits) < 10
    assert "the-secret" not in str(caught.value)


def test_missing_bucket_is_named(s3_in_process: Any) -> None:
    store = S3Store(s3_in_process.config, "not-there", "prefix")
    for action in (
        lambda: store.put("key", b""),
        lambda: store.put_new("key", b""),
        lambda: store.put_locked("key", b"", LATER),
        lambda: store.get("key"),
        lambda: list(store.list()),
    ):
        with pytest.raises(StorageRefused, match=r"not-there.*NoSuchBucket.*create the bucket"):
            action()


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [
        ("AccessDenied", 403, "allow s3:ListBucket"),
        ("SignatureDoesNotMatch", 403, "check the credentials"),
        ("RequestTimeTooSkewed", 403, "clock"),
        ("NotImplemented", 501, "If-None-Match"),
    ],
)
def test_refusals_are_terminal_and_say_what_to_do(
    s3_store: S3Store, faulty: Callable[..., Faulty], code: str, status: int, hint: str
) -> None:
    client = faulty("put_object", ("before", s3_error(code, status)))
    with pytest.raises(StorageRefused, match=hint):
        s3_store.put_new("key", b"")
    assert client.calls == 1


def test_only_a_refused_deletion_asks_for_the_right_to_delete(s3_store: S3Store, faulty: Callable[..., Faulty]) -> None:
    """A migration needs none, and nobody should give more than is needed."""
    faulty("put_object", ("before", s3_error("AccessDenied", 403)))
    with pytest.raises(StorageRefused) as put:
        s3_store.put_new("key", b"")
    assert "DeleteObject" not in put.value.next_step
    faulty("delete_object", ("before", s3_error("AccessDenied", 403, operation="DeleteObject")))
    with pytest.raises(StorageRefused) as deletion:
        s3_store.delete("key")
    assert "allow s3:DeleteObject" in deletion.value.next_step
    assert "PutObject" not in deletion.value.next_step


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    store = S3Store(S3Config("http://127.0.0.1:9"), "some-bucket")
    with pytest.raises(StorageRefused, match=r"no usable AWS credentials for bucket some-bucket"):
        store.get("key")


def test_where_head_is_refused_an_existing_object_is_one_of_others(
    s3_in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall that lets no HEAD through must not end each claim."""
    store = S3Store(s3_in_process.config, s3_in_process.bucket(), "p")
    store.put_new("a", b"1")
    monkeypatch.setattr(store, "_client", Faulty(store._client, "head_object", [("before", s3_error("403", 403))]))
    with pytest.raises(ObjectExists):
        store.put_new("a", b"1")


def test_object_lock_is_applied_where_the_bucket_has_it(s3_in_process: Any) -> None:
    bucket = s3_in_process.bucket(object_lock=True)
    store = S3Store(s3_in_process.config, bucket, "evidence")
    assert store.put_locked("a.json", b"1", LATER, new=True) is True
    assert store.put_locked("alias.json", b"2", LATER) is True
    with pytest.raises(ObjectExists):
        store.put_locked("a.json", b"2", LATER, new=True)
    head = s3_in_process.client().head_object(Bucket=bucket, Key="evidence/a.json")
    assert head["ObjectLockMode"] == "COMPLIANCE"
    assert abs(head["ObjectLockRetainUntilDate"] - LATER) < timedelta(seconds=1)
    version = head["VersionId"]
    with pytest.raises(ClientError, match="AccessDenied"):
        s3_in_process.client().delete_object(Bucket=bucket, Key="evidence/a.json", VersionId=version)


def test_a_service_that_ignores_the_lock_does_not_pass_for_one_that_locks(
    s3_in_process: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = S3Store(s3_in_process.config, s3_in_process.bucket(object_lock=True), "evidence")
    real = store._client

    class Ignoring:
        def put_object(self, **kwargs: Any) -> Any:
            return real.put_object(**{name: value for name, value in kwargs.items() if "ObjectLock" not in name})

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    monkeypatch.setattr(store, "_client", Ignoring())
    assert store.put_locked("a.json", b"1", LATER, new=True) is False
    assert store.put_locked("alias.json", b"1", LATER) is False
    assert store.get("a.json") == b"1"
    assert "does not show the lock" in caplog.text


@pytest.mark.parametrize(
    ("answer", "is_locked"),
    [
        ({"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": LATER}, True),
        ({"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": LATER.replace(microsecond=0)}, True),
        ({"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": LATER - timedelta(days=1)}, False),
        ({"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": LATER}, False),
        ({"ObjectLockMode": "COMPLIANCE"}, False),
        ({}, False),
    ],
)
def test_only_a_lock_of_the_right_mode_and_date_counts(
    s3_in_process: Any, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], is_locked: bool
) -> None:
    store = S3Store(s3_in_process.config, s3_in_process.bucket(object_lock=True), "evidence")
    monkeypatch.setattr(store._client, "head_object", lambda **_: answer)
    assert store.put_locked("a.json", b"1", LATER) is is_locked


def test_reading_a_lock_back_needs_no_right_to_versions(s3_in_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that names a version needs s3:GetObjectVersion, which nothing else here does."""
    store = S3Store(s3_in_process.config, s3_in_process.bucket(object_lock=True), "evidence")
    head = store._client.head_object

    def without_versions(**request: Any) -> Any:
        if "VersionId" in request:
            raise s3_error("403", 403)
        return head(**request)

    monkeypatch.setattr(store._client, "head_object", without_versions)
    assert store.put_locked("a.json", b"1", LATER, new=True) is True
    assert store.put_locked("a.json", b"2", LATER) is True


def test_a_version_that_was_replaced_meanwhile_is_asked_for_by_its_id(
    s3_in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3_in_process.bucket(object_lock=True)
    store = S3Store(s3_in_process.config, bucket, "evidence")
    put = store._client.put_object

    def then_replaced(**request: Any) -> Any:
        answer = put(**request)
        put(Bucket=bucket, Key=request["Key"], Body=b"of another process")
        return answer

    monkeypatch.setattr(store._client, "put_object", then_replaced)
    assert store.put_locked("a.json", b"1", LATER) is True


def test_a_lock_that_may_not_be_read_does_not_count(s3_in_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(s3_in_process.config, s3_in_process.bucket(object_lock=True), "evidence")
    monkeypatch.setattr(store, "_client", Faulty(store._client, "head_object", [("before", s3_error("403", 403))]))
    assert store.put_locked("a.json", b"1", LATER) is False


ALL_EXTRA = {
    "ServerSideEncryption": "aws:kms",
    "SSEKMSKeyId": "alias/migrations",
    "ACL": "bucket-owner-full-control",
    "ExpectedBucketOwner": "123456789012",
    "RequestPayer": "requester",
}


def test_extra_arguments_go_with_each_request_that_takes_them(
    s3_in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = S3Config.from_dict({**s3_in_process.config.to_dict(), "extra_args": ALL_EXTRA})
    assert S3Config.from_dict(config.to_dict()) == config
    store = S3Store(config, s3_in_process.bucket(), "p")
    sent: dict[str, dict[str, Any]] = {}
    real = store._client

    class Noting:
        def __getattr__(self, name: str) -> Any:
            def call(**kwargs: Any) -> Any:
                sent[name] = {key: value for key, value in kwargs.items() if key in ALL_EXTRA}
                return getattr(real, name)(**{key: value for key, value in kwargs.items() if key not in ALL_EXTRA})

            return call

    monkeypatch.setattr(store, "_client", Noting())
    store.put("key", b"1")
    with pytest.raises(ObjectExists):
        store.put_new("key", b"1")
    assert store.get("key") == b"1"
    assert [item.key for item in store.list()] == ["key"]
    store.delete("key")
    s3.store_facts(store)
    of_objects = {name: ALL_EXTRA[name] for name in ("ExpectedBucketOwner", "RequestPayer")}
    of_bucket = {"ExpectedBucketOwner": ALL_EXTRA["ExpectedBucketOwner"]}
    assert sent == {
        "put_object": ALL_EXTRA,
        "head_object": of_objects,
        "get_object": of_objects,
        "list_objects_v2": of_objects,
        "delete_object": of_objects,
        "get_object_lock_configuration": of_bucket,
        "head_bucket": of_bucket,
    }


def test_encryption_reaches_the_bucket(s3_in_process: Any) -> None:
    extra = {"ServerSideEncryption": "AES256"}
    config = S3Config.from_dict({**s3_in_process.config.to_dict(), "extra_args": extra})
    store = S3Store(config, s3_in_process.bucket(), "p")
    store.put_new("key", b"1")
    head = s3_in_process.client().head_object(Bucket=store.bucket, Key="p/key")
    assert head["ServerSideEncryption"] == "AES256"


@pytest.mark.parametrize(
    ("extra", "told"),
    [({"Tagging": "a=b"}, "unknown extra_args.*Tagging"), ("ACL=private", "not an object"), ({"ACL": 1}, "not an obj")],
)
def test_wrong_extra_arguments_are_named(extra: Any, told: str) -> None:
    with pytest.raises(ConnectionInvalid, match=told):
        S3Config.from_dict({"extra_args": extra})


def test_without_the_right_to_lock_the_object_is_written_unlocked(
    s3_store: S3Store, faulty: Callable[..., Faulty]
) -> None:
    faulty("put_object", ("before", s3_error("AccessDenied", 403)))
    assert s3_store.put_locked("a.json", b"1", LATER) is False
    assert s3_store.get("a.json") == b"1"


def test_a_bad_request_that_is_not_about_the_lock_is_not_swallowed(
    s3_store: S3Store, faulty: Callable[..., Faulty]
) -> None:
    faulty("put_object", ("before", s3_error("InvalidRequest", 400, "something else")))
    with pytest.raises(StorageRefused, match="InvalidRequest"):
        s3_store.put_locked("a.json", b"1", LATER)


def test_lists_of_more_than_one_page(s3_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = s3_store._client.list_objects_v2
    pages: list[Any] = []

    def small_pages(**kwargs: Any) -> Any:
        pages.append(kwargs)
        return real(**kwargs, MaxKeys=2)

    keys = [f"k/{number}" for number in range(7)]
    for key in keys:
        s3_store.put(key, b"x")
    monkeypatch.setattr(s3_store._client, "list_objects_v2", small_pages)
    assert [item.key for item in s3_store.list("k/")] == keys
    assert len(pages) == 4
    assert [item.key for item in s3_store.list("k/", start_after="k/2")] == keys[3:]


def test_secrets_are_shown_nowhere(s3_in_process: Any, caplog: pytest.LogCaptureFixture) -> None:
    config = S3Config("http://127.0.0.1:9", "KEY-ID-1", "SECRET-1", "TOKEN-1")
    store = S3Store(config, "some-bucket", sleep=lambda _: None)
    with caplog.at_level(logging.INFO), pytest.raises(StorageUnavailable) as caught:
        store.get("key")
    shown = repr(config) + str(config) + repr(store) + str(caught.value) + repr(caught.value.as_dict()) + caplog.text
    for secret in ("KEY-ID-1", "SECRET-1", "TOKEN-1"):
        assert secret not in shown
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_bad_endpoint() -> None:
    with pytest.raises(ConnectionInvalid, match="endpoint_url"):
        S3Store(S3Config("not a url", "a", "b"), "some-bucket")
