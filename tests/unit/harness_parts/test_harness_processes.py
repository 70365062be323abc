"""Children end with us, in order or not, and ports are given out once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness import reaper as reaper_module
from harness.processes import (
    HarnessError,
    PortLeases,
    Process,
    free_port,
    is_listening,
    release_ports,
    start,
    stop_all,
    wait_for,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)


def python(tmp_path: Path, code: str) -> Process:
    return start("child", [sys.executable, "-c", code], tmp_path / "log")


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_goes_to_the_log_and_the_exit_code_comes_back(tmp_path: Path) -> None:
    child = python(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert child.wait(20) == 3
    assert sorted(child.log.read_text().split()) == ["err", "out"]
    with pytest.raises(HarnessError, match="code 3"):
        child.check_running()
    child.stop()
    assert child.returncode == 3


def test_a_stubborn_child_is_killed(tmp_path: Path) -> None:
    child = python(tmp_path, STUBBORN)
    wait_for("child", lambda: "ready" in child.log.read_text(), 20)
    child.stop(0.2)
    assert child.returncode == -signal.SIGKILL
    assert not is_alive(child.pid)


def test_a_stopped_child_can_be_terminated(tmp_path: Path) -> None:
    child = python(tmp_path, "import time; print('ready', flush=True); time.sleep(60)")
    wait_for("child", lambda: "ready" in child.log.read_text(), 20)
    child.signal(signal.SIGSTOP)
    child.stop(20)
    assert child.returncode == -signal.SIGTERM


def test_kill_takes_the_grandchildren_along(tmp_path: Path) -> None:
    code = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    child = python(tmp_path, code)
    grandchild = int(wait_for("grandchild", lambda: child.log.read_text().strip(), 20))
    assert is_alive(grandchild)
    child.kill()
    wait_for("end of the grandchild", lambda: not is_alive(grandchild), 10)


def test_several_stop_together(tmp_path: Path) -> None:
    children = [python(tmp_path, "import time; time.sleep(60)") for _ in range(3)]
    stop_all(children, 20)
    assert {child.returncode for child in children} == {-signal.SIGTERM}


def test_a_child_started_by_a_passing_thread_lives_on(tmp_path: Path) -> None:
    started: list[Process] = []
    thread = threading.Thread(target=lambda: started.append(python(tmp_path, "import time; time.sleep(60)")))
    thread.start()
    thread.join()
    with pytest.raises(HarnessError, match="not within"):
        started[0].wait(0.3)
    started[0].kill()


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, sys, time\n"
            "from harness.processes import start\n"
            "child = start('child', ['sleep', '60'], pathlib.Path(sys.argv[1]))\n"
            "print(child.pid, flush=True)\n"
            "time.sleep(60)",
            str(tmp_path / "log"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for("end of the child", lambda: not is_alive(child), 10)


ESCAPING = (
    "import subprocess, time\n"
    "p = subprocess.Popen(['sh', '-c', 'sleep 60 & echo $! && exec sleep 60'], start_new_session=True)\n"
    "print(p.pid, flush=True)\n"
)


def reaped(tmp_path: Path, code: str) -> tuple[Process, list[int]]:
    """A child under the reaper that starts two processes in another session; their ids."""
    reaper = Path(reaper_module.__file__)
    child = start("reaper", [sys.executable, str(reaper), sys.executable, "-c", code], tmp_path / "log")
    wait_for("grandchildren", lambda: len(child.log.read_text().split()) == 2, 20)
    return child, list(map(int, child.log.read_text().split()))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a child subreaper")
def test_the_reaper_ends_those_in_other_sessions(tmp_path: Path) -> None:
    child, escaped = reaped(tmp_path, ESCAPING + "time.sleep(60)")
    assert all(map(is_alive, escaped))
    assert set(escaped) < set(reaper_module.descendants(child.pid))
    child.stop(20)
    assert child.returncode == 128 + signal.SIGTERM
    assert not any(map(is_alive, escaped))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a child subreaper")
def test_the_reaper_ends_orphans_and_keeps_the_exit_code(tmp_path: Path) -> None:
    child, escaped = reaped(tmp_path, ESCAPING + "raise SystemExit(5)")
    assert child.wait(20) == 5
    assert not any(map(is_alive, escaped))
    child.stop()


def test_leftovers_are_killed_at_exit(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from harness.processes import start\n"
        "print(start('child', ['sleep', '60'], pathlib.Path(sys.argv[1])).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not is_alive(int(done.stdout))


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        start("child", ["no-such-program"], tmp_path / "log")


def test_ports_are_given_once() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    assert not any(map(is_listening, ports))
    release_ports(ports)


def test_another_process_does_not_get_a_leased_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.processes._PORTS", range(20_000, 20_400))
    ours = {free_port() for _ in range(50)}
    code = (
        "import harness.processes as p\np._PORTS = range(20_000, 20_400)\nprint(*[p.free_port() for _ in range(100)])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    theirs = set(map(int, done.stdout.split()))
    assert len(theirs) == 100
    assert not ours & theirs
    release_ports(ours)


def test_no_port_left_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.processes._PORTS", range(20_000, 20_000))
    with pytest.raises(HarnessError, match="no free loopback port"):
        PortLeases().take()


def test_wait_for_gives_the_answer_or_says_what_was_missing() -> None:
    answers = iter([None, 0, "yes"])
    assert wait_for("it", lambda: next(answers), 5) == "yes"
    with pytest.raises(HarnessError, match="the thing: not within"):
        wait_for("the thing", lambda: None, 0.1)


def test_ids_are_not_reused_before_reaping(tmp_path: Path) -> None:
    child = python(tmp_path, "pass")
    assert child.wait(20) == 0
    assert os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    child.stop()
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
