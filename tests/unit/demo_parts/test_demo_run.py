"""What both demos have in common: the folder, the summary, and the exit status."""

from __future__ import annotations

import importlib
import io
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from demo.run import DemoRun, exit_status, is_set


@dataclass
class Verdict:
    problems: list[str] = field(default_factory=list)
    seconds: float = -1.0

    def summary(self) -> dict[str, Any]:
        return {"problems": self.problems}


class World:
    def logs(self) -> list[Path]:
        return [Path("/logs/broker.log")]


class Small(DemoRun[World, Verdict]):
    """Does nothing but end as the test wants."""

    end: BaseException | Verdict
    is_stopped = False

    def _make_world(self, stack: ExitStack) -> World:
        stack.callback(setattr, self, "is_stopped", True)
        return World()

    def _play(self, _stack: ExitStack, _world: World) -> Verdict:
        assert list(self._folder.iterdir()) == [], "what an earlier demo has left is gone"
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end

    def _show(self, verdict: Verdict) -> None:
        self.say(f"{len(verdict.problems)} problems")

    def _addresses(self, _world: World) -> Iterator[str]:
        yield "here is everything"


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Leave the handler of SIGTERM as it was."""
    former = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, former)


def run(tmp_path: Path, end: BaseException | Verdict, *, keep: bool = False) -> tuple[int, str, Small]:
    out = io.StringIO()
    console = Console(file=out, width=200)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "summary.json").write_text("of an earlier demo", encoding="utf-8")
    demo = Small(console, tmp_path / "demo", keep=keep)
    demo.end = end
    return exit_status(console, demo), out.getvalue(), demo


@pytest.mark.parametrize(("problems", "status"), [([], 0), (["a record is missing"], 1)])
def test_problems_decide_the_exit_status(tmp_path: Path, problems: list[str], status: int) -> None:
    verdict = Verdict(problems)
    found, text, demo = run(tmp_path, verdict)
    assert found == status
    assert json.loads((tmp_path / "demo" / "summary.json").read_text(encoding="utf-8")) == {"problems": problems}
    assert verdict.seconds >= 0
    assert f"{len(problems)} problems" in text
    assert demo.is_stopped


def test_an_error_names_the_logs(tmp_path: Path) -> None:
    status, text, demo = run(tmp_path, OSError("no [disk] space"))
    assert status == 1
    assert "The demo failed: OSError\nno [disk] space\n" in text
    assert "/logs/broker.log" in text
    assert not (tmp_path / "demo" / "summary.json").exists()
    assert demo.is_stopped


def test_an_error_before_anything_runs_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> World:
        raise OSError("no port is free")

    monkeypatch.setattr(Small, "_make_world", fails)
    status, text, _ = run(tmp_path, Verdict())
    assert status == 1
    assert f"Logs:\n  {tmp_path / 'demo'}\n" in text


def test_a_signal_stops_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Small, "_show", lambda *_: signal.raise_signal(signal.SIGTERM))
    status, text, demo = run(tmp_path, Verdict())
    assert status == 130
    assert "Interrupted; everything that was started is stopped." in text
    assert demo.is_stopped


def test_everything_stays_until_somebody_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(signal, "pause", pause)
    status, text, _ = run(tmp_path, Verdict(), keep=True)
    assert status == 0
    assert text.index("here is everything") < text.index("Ctrl-C ends all")


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_switches(monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool) -> None:
    monkeypatch.delenv("KEEP", raising=False)
    if value is not None:
        monkeypatch.setenv("KEEP", value)
    assert is_set("KEEP") == expected


@pytest.mark.parametrize("name", ["demo.__main__", "demo.mirrors.__main__"])
def test_both_demos_end_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    module = importlib.import_module(name)

    def fails(*_: object) -> World:
        raise OSError("no port is free")

    monkeypatch.setattr(module, "World", fails)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "demo")
    monkeypatch.setattr("sys.argv", ["demo"])
    assert module.main() == 1
    assert "no port is free" in capsys.readouterr().out
    assert (tmp_path / "demo").is_dir()
