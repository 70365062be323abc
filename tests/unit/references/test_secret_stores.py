"""Secrets of AWS, Google and Vault as references: over HTTP, with the real clients, and each failure by its name."""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from secret_servers import GoogleSecretManager, HttpServer, Vault, service_account

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    MigrationError,
    SecretAccessDenied,
    SecretLibraryMissing,
    SecretNotFound,
    SecretStoreUnavailable,
    SecretUnusable,
    Terminal,
    Transient,
)
from airflow_provider_kafka_migration.references import (
    Resolver,
    SecretName,
    is_self_contained,
    secret_stores,
    split_reference,
)
from airflow_provider_kafka_migration.references.local import this_machine

pytestmark = pytest.mark.slow

MARK = "mark-9f2c"
KEYS = {"bootstrap.servers": "a:1", "sasl.password": f"{MARK}-password"}
_AWS = ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")


@pytest.fixture(autouse=True)
def clean_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No identity, no answers of other tests, no pauses between attempts."""
    secret_stores.forget_answers()
    for name in (*_AWS, "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("ADDR", "TOKEN", "TOKEN_FILE", "ROLE_ID", "SECRET_ID", "KUBERNETES_ROLE", "NAMESPACE", "CACERT"):
        monkeypatch.delenv(f"VAULT_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def refused(reference: str, kind: type[MigrationError]) -> str:
    """The message of the refusal; it never quotes what a store wrote."""
    with pytest.raises(kind) as caught:
        Resolver().text(reference)
    assert type(caught.value) is kind
    assert caught.value.next_step
    assert MARK not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gcp-sm:p/s", ("gcp-sm", "p/s")),
        ("ssm:/prod/kafka", ("ssm", "/prod/kafka")),
        ("secretsmanager:arn:aws:secretsmanager:eu-central-1:1:secret:x-AbCdEf", None),
        ("my-connection:x", ("airflow", "my-connection:x")),
        ("s3://bucket", ("airflow", "s3://bucket")),
    ],
)
def test_schemes_of_references(text: str, expected: tuple[str, str] | None) -> None:
    assert split_reference(text) == (expected or tuple(text.split(":", 1)))
    assert is_self_contained(text) is (split_reference(text)[0] != "airflow")


def test_parts_of_a_reference() -> None:
    found = SecretName.parse("secretsmanager", "prod/kafka?version=AWSPREVIOUS&region=eu-west-1#sasl%20password")
    assert (found.name, found.version, found.options["region"], found.key) == (
        "prod/kafka",
        "AWSPREVIOUS",
        "eu-west-1",
        "sasl password",
    )


@pytest.mark.parametrize("rest", ["?version=1", "a?", "a?version=", "a?stage=1", "a#", "#a", "a?version"])
@pytest.mark.parametrize("scheme", ["secretsmanager", "ssm", "gcp-sm", "vault"])
def test_malformed_references_are_refused(scheme: str, rest: str) -> None:
    refused(f"{scheme}:{rest}", ConnectionInvalid)


# --- what a secret holds --------------------------------------------------------------------------------------------


def picked(text: str | dict[str, Any], key: str | None) -> str:
    return secret_stores.picked(SecretName("vault", "a", key=key), text)


def test_one_value_of_a_secret() -> None:
    assert picked('{"a": "x"}', "a") == "x"
    assert picked({"a": {"b": 1}}, "a") == '{"b": 1}'
    assert picked("plain", None) == "plain"
    assert json.loads(picked({"a": 1}, None)) == {"a": 1}
    for text in (MARK, f'["{MARK}"]', f'{{"b": "{MARK}"}}'):
        with pytest.raises(SecretUnusable) as caught:
            picked(text, "a")
        assert MARK not in str(caught.value)


def test_answers_are_kept_for_a_while_so_that_slices_do_not_ask_again() -> None:
    now, asked = [0.0], []
    stores = secret_stores.SecretStores(clock=lambda: now[0])

    def read(name: SecretName) -> str:
        asked.append(name.name)
        return f"value {len(asked)}"

    assert stores.text("vault", "a/b", read) == stores.text("vault", "a/b", read) == "value 1"
    assert stores.text("vault", "a/b?version=1", read) == "value 2"
    now[0] = secret_stores.KEEP_SECONDS
    assert stores.text("vault", "a/b", read) == "value 3"


def test_the_last_answer_is_used_while_a_store_is_silent_but_not_when_it_refuses() -> None:
    now = [0.0]
    stores = secret_stores.SecretStores(clock=lambda: now[0])

    def silent(name: SecretName) -> str:
        raise SecretStoreUnavailable("no answer", where=name.where)

    def refuses(name: SecretName) -> str:
        raise SecretAccessDenied("no", where=name.where)

    assert stores.text("vault", "a/b", lambda _: "x") == "x"
    now[0] = secret_stores.KEEP_SECONDS
    assert stores.text("vault", "a/b", silent) == "x"
    with pytest.raises(SecretAccessDenied):
        stores.text("vault", "a/b", refuses)
    now[0] = secret_stores.STALE_SECONDS
    with pytest.raises(SecretStoreUnavailable):
        stores.text("vault", "a/b", silent)


def test_a_failure_is_not_kept() -> None:
    stores = secret_stores.SecretStores()

    def fail(name: SecretName) -> str:
        raise SecretStoreUnavailable("no", where=name.where)

    with pytest.raises(SecretStoreUnavailable):
        stores.text("vault", "a/b", fail)
    assert stores.text("vault", "a/b", lambda _: "x") == "x"


def test_single_values_of_a_connection_may_be_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"sasl.password": {"secret": "env:PASSWORD"}, "sasl.username": "env:PASSWORD", "msk": {"region": "x"}}
    monkeypatch.setenv("CONNECTION", json.dumps(keys))
    monkeypatch.setenv("PASSWORD", MARK)
    assert Resolver().mapping("env:CONNECTION") == {**keys, "sasl.password": MARK}


# --- AWS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def aws(s3_in_process: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """moto's Secrets Manager and Parameter Store over HTTP; returns a function that makes clients of them."""
    config = s3_in_process.config
    monkeypatch.setenv("AWS_ENDPOINT_URL", config.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", config.aws_access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", config.aws_secret_access_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")

    def client(service: str, region: str = "us-east-1") -> Any:
        return boto3.session.Session().client(service, region_name=region)  # type: ignore[call-overload]

    return client


def test_secrets_manager(aws: Any) -> None:
    client, name = aws("secretsmanager"), f"prod/kafka+{uuid.uuid4().hex}"
    made = client.create_secret(Name=name, SecretString=json.dumps({"old": "1"}))
    client.put_secret_value(SecretId=name, SecretString=json.dumps(KEYS))
    reference = f"secretsmanager:{name}"
    assert Resolver().mapping(reference) == KEYS
    assert Resolver().text(f"{reference}#sasl.password") == KEYS["sasl.password"]
    assert Resolver().mapping(f"{reference}?version=AWSPREVIOUS") == {"old": "1"}
    assert Resolver().mapping(f"{reference}?version={made['VersionId']}") == {"old": "1"}
    assert Resolver().mapping(f"secretsmanager:{made['ARN']}") == KEYS
    refused(f"{reference}?version=NO_SUCH_STAGE", SecretNotFound)
    refused(f"{reference}#nothing", SecretUnusable)


def test_an_arn_says_its_region(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = aws("secretsmanager", "eu-central-1").create_secret(Name=f"x{uuid.uuid4().hex}", SecretString="there")
    monkeypatch.delenv("AWS_REGION")
    assert Resolver().text(f"secretsmanager:{made['ARN']}") == "there"
    assert Resolver().text(f"secretsmanager:{made['Name']}?region=eu-central-1") == "there"
    refused(f"secretsmanager:{made['Name']}?region=eu-west-1", SecretNotFound)
    assert this_machine() in refused(f"secretsmanager:{made['Name']}", ConnectionInvalid)


def test_secrets_that_are_missing_binary_or_not_json(aws: Any) -> None:
    client, name = aws("secretsmanager"), uuid.uuid4().hex
    refused(f"secretsmanager:{name}", SecretNotFound)
    client.create_secret(Name=name, SecretBinary=b"\x00mark-9f2c")
    refused(f"secretsmanager:{name}", SecretUnusable)
    client.create_secret(Name=f"{name}-2", SecretString=f"{MARK} is no JSON")
    with pytest.raises(ConnectionInvalid, match="not a JSON object") as caught:
        Resolver().mapping(f"secretsmanager:{name}-2")
    assert MARK not in str(caught.value)
    client.delete_secret(SecretId=f"{name}-2", RecoveryWindowInDays=7)
    secret_stores.forget_answers()
    refused(f"secretsmanager:{name}-2", ConnectionInvalid)


def test_parameter_store(aws: Any) -> None:
    client, name = aws("ssm"), f"/prod/{uuid.uuid4().hex}"
    client.put_parameter(Name=name, Value="first", Type="SecureString")
    client.put_parameter(Name=name, Value=json.dumps(KEYS), Type="SecureString", Overwrite=True)
    assert Resolver().mapping(f"ssm:{name}") == KEYS
    assert Resolver().text(f"ssm:{name}?version=1") == "first"
    refused(f"ssm:{name}?version=9", SecretNotFound)
    refused(f"ssm:{name}-missing", SecretNotFound)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AccessDeniedException", 400, SecretAccessDenied),
        ("DecryptionFailure", 400, SecretAccessDenied),
        ("ExpiredTokenException", 400, SecretAccessDenied),
        ("UnrecognizedClientException", 400, SecretAccessDenied),
        ("ResourceNotFoundException", 400, SecretNotFound),
        ("ValidationException", 400, ConnectionInvalid),
        ("ThrottlingException", 400, SecretStoreUnavailable),
        ("InternalServiceError", 500, SecretStoreUnavailable),
    ],
)
@pytest.mark.parametrize("scheme", ["secretsmanager", "ssm"])
def test_each_answer_of_aws_has_its_name(
    scheme: str, code: str, status: int, kind: type[MigrationError], aws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    with HttpServer(lambda _: (status, {"__type": code, "message": MARK})) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert code in refused(f"{scheme}:x", kind)
        assert 1 <= len(server.requests) <= secret_stores.ATTEMPTS


def test_aws_without_identity_or_answer(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert this_machine() in refused("secretsmanager:x", SecretStoreUnavailable)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert this_machine() in refused("ssm:x", SecretAccessDenied)


# --- Vault ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Vault, HttpServer]]:
    """A Vault with a secret in two versions, and a token in the environment."""
    pytest.importorskip("hvac")
    store = Vault({"kafka/source": [{"old": "1"}, KEYS], "gone": [KEYS, None]}, old={"kafka": KEYS})
    with HttpServer(store) as server:
        monkeypatch.setenv("VAULT_ADDR", server.url)
        monkeypatch.setenv("VAULT_TOKEN", store.token)
        yield store, server


def test_vault(vault: tuple[Vault, HttpServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_NAMESPACE", "team-a")
    assert Resolver().mapping("vault:secret/kafka/source") == KEYS
    assert Resolver().text("vault:secret/kafka/source#sasl.password") == KEYS["sasl.password"]
    assert Resolver().mapping("vault:secret/kafka/source?version=1") == {"old": "1"}
    assert Resolver().mapping("vault:kafka/source?mount=secret") == KEYS
    assert Resolver().mapping("vault:old/kafka?kv=1") == KEYS
    assert {request.headers.get("x-vault-namespace") for request in vault[1].requests} == {"team-a"}


def test_vault_refuses(vault: tuple[Vault, HttpServer], monkeypatch: pytest.MonkeyPatch) -> None:
    refused("vault:secret/nothing", SecretNotFound)
    refused("vault:secret/gone", SecretNotFound)
    refused("vault:secret/kafka/source?version=7", SecretNotFound)
    refused("vault:old/kafka", SecretNotFound)
    refused("vault:secret", ConnectionInvalid)
    refused("vault:secret/kafka/source?version=latest", ConnectionInvalid)
    monkeypatch.setenv("VAULT_TOKEN", f"{MARK}-wrong")
    assert this_machine() in refused("vault:secret/kafka/source?version=2", SecretAccessDenied)
    monkeypatch.delenv("VAULT_TOKEN")
    assert this_machine() in refused("vault:secret/a", SecretAccessDenied)
    monkeypatch.delenv("VAULT_ADDR")
    assert "VAULT_ADDR" in refused("vault:secret/a", ConnectionInvalid)


def test_logins_to_vault(vault: tuple[Vault, HttpServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def read() -> str:
        secret_stores.forget_answers()
        return Resolver().text("vault:secret/kafka/source#sasl.password")

    monkeypatch.delenv("VAULT_TOKEN")
    (tmp_path / ".vault-token").write_text(vault[0].token + "\n")
    assert read() == KEYS["sasl.password"]
    monkeypatch.setenv("VAULT_KUBERNETES_ROLE", "copier")
    (tmp_path / "jwt").write_text(f"{MARK}-jwt")
    monkeypatch.setenv("VAULT_KUBERNETES_TOKEN_FILE", str(tmp_path / "jwt"))
    assert read() == KEYS["sasl.password"]
    monkeypatch.setenv("VAULT_ROLE_ID", "role")
    monkeypatch.setenv("VAULT_SECRET_ID", f"{MARK}-secret-id")
    assert read() == KEYS["sasl.password"]
    monkeypatch.setenv("VAULT_SECRET_ID", f"{MARK}-wrong")
    refused("vault:secret/other", SecretAccessDenied)
    (tmp_path / "sink").write_text(vault[0].token)
    monkeypatch.setenv("VAULT_TOKEN_FILE", str(tmp_path / "sink"))
    assert read() == KEYS["sasl.password"]
    monkeypatch.setenv("VAULT_TOKEN_FILE", str(tmp_path / "missing"))
    refused("vault:secret/other", SecretAccessDenied)
    logins = [request.path for request in vault[1].requests if "auth" in request.path]
    assert logins == ["/v1/auth/kubernetes/login", "/v1/auth/approle/login", "/v1/auth/approle/login"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_vault_that_cannot_answer_is_asked_again_a_few_times(
    status: int, vault: tuple[Vault, HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    vault[0].status = status
    assert this_machine() in refused("vault:secret/kafka/source", SecretStoreUnavailable)
    assert len(vault[1].requests) == secret_stores.ATTEMPTS
    monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:9")
    refused("vault:secret/kafka/source", SecretStoreUnavailable)
    monkeypatch.setenv("VAULT_ADDR", "vault.example")
    refused("vault:secret/kafka/source", ConnectionInvalid)


# --- Google ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[GoogleSecretManager, HttpServer]]:
    """A Secret Manager with a secret in two versions, and a service account."""
    pytest.importorskip("google.cloud.secretmanager_v1")
    path = "projects/p1/secrets/kafka/versions"
    store = GoogleSecretManager(
        {
            f"{path}/1": b"first",
            f"{path}/latest": json.dumps(KEYS).encode(),
            "projects/own-project/secrets/kafka/versions/latest": b"of the own project",
            "projects/p1/locations/europe-west3/secrets/kafka/versions/latest": b"regional",
            "projects/p1/secrets/binary/versions/latest": b"\xff\xfemark-9f2c",
        }
    )
    with HttpServer(store) as server:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account(tmp_path, server.url)))
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", server.url + "/")
        yield store, server


def test_google(google: tuple[GoogleSecretManager, HttpServer]) -> None:
    assert Resolver().mapping("gcp-sm:p1/kafka") == KEYS
    assert Resolver().text("gcp-sm:p1/kafka#sasl.password") == KEYS["sasl.password"]
    assert Resolver().text("gcp-sm:p1/kafka?version=1") == "first"
    assert Resolver().text("gcp-sm:projects/p1/secrets/kafka/versions/1") == "first"
    assert Resolver().text("gcp-sm:projects/p1/locations/europe-west3/secrets/kafka") == "regional"
    assert Resolver().text("gcp-sm:kafka") == "of the own project"


def test_regional_secrets_of_google_are_asked_of_their_region(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_kafka_migration.references import google_secrets

    monkeypatch.delenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", raising=False)
    name = SecretName("gcp-sm", "projects/p1/locations/europe-west3/secrets/kafka")
    assert google_secrets._address(name) == "secretmanager.europe-west3.rep.googleapis.com"
    assert google_secrets._address(SecretName("gcp-sm", "p1/kafka")) is None


def test_google_refuses(google: tuple[GoogleSecretManager, HttpServer], monkeypatch: pytest.MonkeyPatch) -> None:
    refused("gcp-sm:p1/nothing", SecretNotFound)
    refused("gcp-sm:p1/binary", SecretUnusable)
    refused("gcp-sm:a/b/c", ConnectionInvalid)
    google[0].crc_off_by = 1
    refused("gcp-sm:p1/kafka", SecretStoreUnavailable)
    google[0].crc_off_by = 0
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    assert this_machine() in refused("gcp-sm:p1/kafka", SecretAccessDenied)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ((403, "PERMISSION_DENIED"), SecretAccessDenied),
        ((401, "UNAUTHENTICATED"), SecretAccessDenied),
        ((400, "FAILED_PRECONDITION"), ConnectionInvalid),
        ((429, "RESOURCE_EXHAUSTED"), SecretStoreUnavailable),
        ((503, "UNAVAILABLE"), SecretStoreUnavailable),
    ],
)
def test_each_answer_of_google_has_its_name(
    error: tuple[int, str],
    kind: type[MigrationError],
    google: tuple[GoogleSecretManager, HttpServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow_provider_kafka_migration.references import google_secrets

    monkeypatch.setattr(google_secrets, "_ALL_SECONDS", 1.0)
    google[0].error = error
    refused("gcp-sm:p1/kafka", kind)


# --- logs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["secretsmanager", "ssm", "vault", "gcp-sm"])
def test_no_level_of_logging_shows_a_secret(
    store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """botocore writes whole answers at DEBUG, as Google's client does when it is told to."""
    monkeypatch.setenv("GOOGLE_SDK_PYTHON_LOGGING_SCOPE", "google")
    name = uuid.uuid4().hex
    if store in ("secretsmanager", "ssm"):
        aws = request.getfixturevalue("aws")
        aws("secretsmanager").create_secret(Name=name, SecretString=json.dumps(KEYS))
        aws("ssm").put_parameter(Name=f"/{name}", Value=json.dumps(KEYS), Type="SecureString")
    else:
        request.getfixturevalue({"vault": "vault", "gcp-sm": "google"}[store])
    reference = {
        "secretsmanager": f"secretsmanager:{name}",
        "ssm": f"ssm:/{name}",
        "vault": "vault:secret/kafka/source",
        "gcp-sm": "gcp-sm:p1/kafka",
    }[store]
    # Another test's configuration of logging in the same process may have silenced any of them.
    for logger in list(logging.root.manager.loggerDict):
        if logger.partition(".")[0] in ("botocore", "google", "hvac", "urllib3"):
            logging.getLogger(logger).setLevel(logging.NOTSET)
            monkeypatch.setattr(logging.getLogger(logger), "disabled", False)
            monkeypatch.setattr(logging.getLogger(logger), "propagate", True)
    caplog.set_level(logging.DEBUG)
    assert Resolver().mapping(reference) == KEYS
    assert caplog.records, "nothing was logged, so nothing was searched"
    assert MARK not in "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)


# --- libraries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "module", "named"),
    [
        ("vault:secret/kafka", "hvac.exceptions", "[vault]"),
        ("gcp-sm:p/kafka", "google.cloud.secretmanager_v1", "[gcp-secrets]"),
        ("secretsmanager:kafka", "botocore.exceptions", "boto3"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    reference: str, module: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    found = refused(reference, SecretLibraryMissing)
    assert named in found
    assert this_machine() in found


def test_stores_that_do_not_answer_are_worth_another_try_and_all_else_is_not() -> None:
    assert issubclass(SecretStoreUnavailable, Transient)
    for kind in (SecretNotFound, SecretAccessDenied, SecretUnusable, SecretLibraryMissing):
        assert issubclass(kind, Terminal)


def test_a_silent_server_is_not_waited_for_long(vault: tuple[Vault, HttpServer]) -> None:
    """All clients have limits for connecting and reading; here those of the session of Vault."""
    from airflow_provider_kafka_migration.references import aws_secrets

    assert (secret_stores.CONNECT_SECONDS + secret_stores.READ_SECONDS) * secret_stores.ATTEMPTS < 60
    config = aws_secrets.client_config()
    assert (config.connect_timeout, config.read_timeout) == (secret_stores.CONNECT_SECONDS, secret_stores.READ_SECONDS)
