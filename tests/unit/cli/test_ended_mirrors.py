"""What the command line advises for a mirror that has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_kafka_migration.cli.mirror import _check_not_ended
from airflow_provider_kafka_migration.errors import IllegalTransition
from airflow_provider_kafka_migration.state import State


@pytest.mark.parametrize(
    ("state", "advice"),
    [(State.PROMOTED, "kafka-migration mirror fail-back FILE"), (State.ENDED, "start a new mirror with another")],
)
def test_a_promoted_mirror_is_not_begun_again_from_its_former_source(state: State, advice: str) -> None:
    spec, journal = SimpleNamespace(migration_id="m1"), SimpleNamespace(tip_state=state)
    with pytest.raises(IllegalTransition) as caught:
        _check_not_ended(cast(Any, spec), cast(Any, journal))
    assert advice in caught.value.next_step
