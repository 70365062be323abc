"""MSK IAM: tokens of AWS' signer library, which is faked at its one function."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from airflow_provider_kafka_migration.errors import AuthenticationFailed, ConnectionInvalid, Where
from airflow_provider_kafka_migration.kafka.auth.login import Login
from airflow_provider_kafka_migration.kafka.config import ClientConfig, msk_token_provider

MSK = {
    "bootstrap.servers": "b-1.demo.abc.c2.kafka.eu-central-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
}


class Signer:
    """Stands for ``aws_msk_iam_sasl_signer.MSKAuthTokenProvider``."""

    def __init__(self) -> None:
        self.regions: list[str] = []
        self.error: Exception | None = None

    def generate_auth_token(self, region: str) -> tuple[str, int]:
        self.regions.append(region)
        if self.error is not None:
            raise self.error
        return f"token-{len(self.regions)}", 1_800_000_000_500


@pytest.fixture
def signer(monkeypatch: pytest.MonkeyPatch) -> Signer:
    made = Signer()
    module = ModuleType("aws_msk_iam_sasl_signer")
    module.MSKAuthTokenProvider = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", module)
    return made


def test_the_real_library_has_the_function_that_is_faked() -> None:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    assert callable(MSKAuthTokenProvider.generate_auth_token)


def test_the_region_comes_from_the_brokers_names_or_the_connection() -> None:
    assert ClientConfig.from_librdkafka(MSK, "source").msk_region == "eu-central-1"
    serverless = {**MSK, "bootstrap.servers": "boot-x.c3.kafka-serverless.us-west-2.amazonaws.com:9098"}
    assert ClientConfig.from_librdkafka(serverless, "source").msk_region == "us-west-2"
    private = {**MSK, "bootstrap.servers": "kafka.example:9098", "msk": {"region": "eu-west-1"}}
    assert ClientConfig.from_librdkafka(private, "source").msk_region == "eu-west-1"


def test_without_a_region_or_without_tls_it_is_refused() -> None:
    with pytest.raises(ConnectionInvalid, match=r'write "msk": \{"region"'):
        ClientConfig.from_librdkafka({**MSK, "bootstrap.servers": "kafka.example:9098"}, "source")
    with pytest.raises(ConnectionInvalid, match=r"OAUTHBEARER needs security\.protocol SASL_SSL"):
        ClientConfig.from_librdkafka({**MSK, "security.protocol": "SASL_PLAINTEXT"}, "source")


def test_both_clients_get_a_new_token_for_each_login(signer: Signer) -> None:
    config = ClientConfig.from_librdkafka(MSK, "source")
    # librdkafka: (token, expiry in seconds)
    callback = config.librdkafka()["oauth_cb"]
    assert callback("") == ("token-1", 1_800_000_000.5, "", {})
    # the raw wire
    login = Login(config, "b-1", Where())
    assert (login.token(), login.token()) == ("token-2", "token-3")
    assert login.extensions == {}
    assert signer.regions == ["eu-central-1"] * 3


def test_without_credentials_the_error_says_so_and_quotes_nothing(signer: Signer) -> None:
    signer.error = ValueError("AWS Credentials AKIA-secret are no good")
    with pytest.raises(AuthenticationFailed, match="a token for MSK IAM could not be signed: ValueError") as caught:
        msk_token_provider("eu-central-1")()
    assert "AKIA" not in str(caught.value)
    assert "role" in caught.value.next_step


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConnectionInvalid, match=r"airflow-provider-kafka-migration\[msk\]"):
        msk_token_provider("eu-central-1")()
