"""Hosts share nothing but a network, and nothing of them remains."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.hosts import CHECKOUT, PACKAGE, Host, Lab, why_not
from harness.processes import HarnessError, is_listening, wait_for

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(120),
    pytest.mark.slow,
]

_PORT = 8000
_LISTEN = f"""
import socket, time
server = socket.create_server(("", {_PORT}))
print("ready", flush=True)
while True:
    server.accept()[0].sendall(socket.gethostname().encode())
"""
_ASK = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {_PORT}), 3) as connection:
    print(connection.recv(100).decode())
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as made:
        made.host("server", has_product=True)
        made.host("client", environment={"WHERE": "here"})
        yield made


@pytest.fixture
def server(lab: Lab) -> Iterator[Host]:
    """The host ``server``, which says its name to everybody who asks."""
    host = lab.hosts["server"]
    listener = host.start("listener", [sys.executable, "-c", _LISTEN])
    wait_for("the listener", lambda: "ready" in listener.log.read_text(), 30)
    yield host
    listener.kill()
    listener.log.unlink()


def ask(lab: Lab, whom: str) -> str:
    """What the host ``client`` hears from another one; the error if it hears nothing."""
    done = lab.hosts["client"].run([sys.executable, "-c", _ASK, whom], check=False)
    return (done.stdout or done.stderr).strip().splitlines()[-1]


@pytest.mark.slow
def test_a_host_sees_nothing_of_this_machine_and_nothing_of_another_host(lab: Lab, tmp_path: Path) -> None:
    client, server = lab.hosts["client"], lab.hosts["server"]
    for place in (tmp_path, Path("/tmp"), Path("/var/tmp"), Path.home(), server.disk):
        (place if place.is_dir() else tmp_path).joinpath("lab-secret").write_text("secret")
    try:
        server.run(["bash", "-c", "touch /tmp/server-was-here /dev/shm/server-was-here ~/server-was-here"])
        found = client.run(["find", "/", "-xdev", "-name", "lab-secret"], check=False).stdout
        found += client.run(
            ["bash", "-c", "ls -A /tmp /var/tmp /dev/shm ~ /run; find /tmp /var /dev/shm ~ -name lab-secret"]
        ).stdout
        assert "lab-secret" not in found
        assert "server-was-here" not in found
        assert client.run(["test", "-e", str(server.disk)], check=False).returncode != 0
    finally:
        for place in (Path("/tmp"), Path("/var/tmp"), Path.home(), server.disk):
            (place / "lab-secret").unlink(missing_ok=True)


def test_a_host_has_its_own_name_processes_and_variables(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THIS_PROCESS", "secret")
    client = lab.hosts["client"]
    shown = client.run(["bash", "-c", "hostname; echo $WHERE; env; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    assert shown.splitlines()[:2] == ["client", "here"]
    assert "OF_THIS_PROCESS" not in shown
    assert f"{os.getpid()}" not in client.run(["ls", "/proc"]).stdout.split()
    assert client.run(["cat", "/etc/hostname"]).stdout == "client\n"


def test_only_a_host_that_shall_have_the_package_has_it(lab: Lab) -> None:
    command = [sys.executable, "-c", f"import {PACKAGE}.errors as found; print(found.__file__)"]
    refused = lab.hosts["client"].run(command, check=False)
    assert f"No module named '{PACKAGE}" in refused.stderr
    assert lab.hosts["server"].run(command).stdout.startswith(str(CHECKOUT))
    with pytest.raises(HarnessError, match="No module named"):
        lab.hosts["client"].run(command)


def test_what_it_may_read_it_cannot_change(lab: Lab) -> None:
    for folder in (sys.prefix, "/usr", "/etc", "/"):
        refused = lab.hosts["client"].run(["touch", f"{folder}/touched"], check=False)
        assert "Read-only file system" in refused.stderr


def test_hosts_reach_each_other_by_name_and_by_address(lab: Lab, server: Host) -> None:
    assert ask(lab, "server") == "server"
    assert ask(lab, server.address) == "server"


def test_a_thread_is_on_the_network_only_while_it_says_so(lab: Lab, server: Host) -> None:
    with lab.network(), socket.create_connection((server.address, _PORT), 5) as connection:
        assert connection.recv(100) == b"server"
        interfaces = [name for _, name in socket.if_nameindex()]
        assert "br0" in interfaces
    assert "br0" not in [name for _, name in socket.if_nameindex()]


def test_nothing_leads_out_of_the_lab(lab: Lab) -> None:
    routes = lab.hosts["client"].run(["ip", "route"]).stdout.splitlines()
    assert [line.split()[0] for line in routes] == ["10.99.0.0/24"]


@pytest.mark.parametrize("how", ["cut", "link_down"])
def test_a_host_that_is_cut_off_answers_nobody_until_it_is_back(lab: Lab, server: Host, how: str) -> None:
    getattr(server, how)()
    with lab.network():
        assert not is_listening(_PORT, server.address)
    getattr(server, {"cut": "join", "link_down": "link_up"}[how])()
    assert wait_for("an answer", lambda: ask(lab, "server") == "server", 30)


def test_a_signal_reaches_the_process_itself(lab: Lab) -> None:
    trap = "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    process = lab.hosts["client"].start("trap", ["bash", "-c", trap])
    wait_for("the trap", lambda: "ready" in process.log.read_text(), 30)
    process.signal(signal.SIGSTOP)
    process.signal(signal.SIGCONT)
    process.terminate()
    assert process.wait(30) == 3
    assert "asked" in process.log.read_text()


@pytest.mark.slow
def test_a_killed_host_ends_with_all_its_processes_and_comes_back_with_its_disk(lab: Lab) -> None:
    host = lab.host("crashing")
    (host.disk / "kept").write_text("data")
    detached = "setsid sleep 1000 & echo $! > pid; touch /tmp/lost; sleep 1000"
    process = host.start("work", ["bash", "-c", detached])
    wait_for("the work", lambda: (host.disk / "pid").exists(), 30)
    inside = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_of(path, host)]
    assert len(inside) >= 3
    host.kill()
    assert process.wait(30) != 0
    process.kill()  # nsenter, which waited for it, is no zombie any more
    assert not host.running
    wait_for("the end of all processes", lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), 30)
    with pytest.raises(HarnessError, match="crashing does not run"):
        host.run(["true"])
    host.boot()
    kept, *in_tmp = host.run(["bash", "-c", "cat kept; echo; ls /tmp"]).stdout.split()
    assert kept == "data"
    assert host.disk.parts[2] in in_tmp, "the disk itself is below it"
    assert "lost" not in in_tmp
    host.kill()


def _is_of(process: Path, host: Host) -> bool:
    try:
        return (process / "ns/uts").readlink() == Path(f"/proc/{host.pid}/ns/uts").readlink()
    except OSError:
        return False


@pytest.mark.slow
def test_nothing_remains_of_a_lab_whose_owner_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom harness.hosts import Lab\n"
        "lab = Lab(Path(sys.argv[1])); lab.start(); host = lab.host('alone')\n"
        "host.start('sleep', ['sleep', '1000'])\nprint(host.pid, flush=True); time.sleep(1000)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lab")]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        network = Path(f"/proc/{pid}/ns/net").readlink()
        assert network in _networks()
        owner.kill()
    wait_for("the end of the host", lambda: network not in _networks(), 30)
    time.sleep(0.1)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def _networks() -> set[Path]:
    """The networks of all processes of this machine."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add((process / "ns/net").readlink())
        except OSError:
            continue
    return found
