"""News about freezes: in order, once, and without anybody waiting for a notifier."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_kafka_migration.record.announcements import Announcements


class TimedOut(BaseException):
    """As Airflow's time-out of a task is."""


def test_each_text_is_passed_on_once_and_in_order() -> None:
    told: list[str] = []
    news = Announcements(told.append)
    for text in ("stopped", "stopped", "lifted", "stopped"):
        news(text)
    assert news.wait(600)
    assert told == ["stopped", "lifted"]
    news("stopped again")
    assert news.wait(600)
    assert told == ["stopped", "lifted", "stopped again"]


def test_nobody_waits_for_a_notifier_that_hangs() -> None:
    answers, told = threading.Event(), []

    def hangs(text: str) -> None:
        answers.wait(600)
        told.append(text)

    news = Announcements(hangs)
    news("stopped")
    assert not news.wait(0)
    assert told == []
    answers.set()
    assert news.wait(600)
    assert told == ["stopped"]


@pytest.mark.parametrize("error", [OSError("mail server down"), SystemExit(1), TimedOut("too slow")])
def test_a_notifier_that_fails_keeps_no_other_news_back(error: BaseException) -> None:
    told: list[str] = []

    def fails_once(text: str) -> None:
        told.append(text)
        if len(told) == 1:
            raise error

    news = Announcements(fails_once)
    news("stopped")
    news("lifted")
    assert news.wait(600)
    assert told == ["stopped", "lifted"]


def test_a_machine_that_starts_no_thread_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers have just been stopped, or freed: that goes on."""

    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    told: list[str] = []
    news = Announcements(told.append)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        news("stopped")
        assert news.wait(0), "nobody waits for it"
    news("lifted")
    assert news.wait(600)
    assert told == ["stopped", "lifted"]


def test_nothing_to_tell_needs_no_thread() -> None:
    assert Announcements(print).wait(0)
