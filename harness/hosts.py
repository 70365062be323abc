"""Hosts that share nothing but a network, on one machine: each in namespaces of its own.

```python
with Lab(folder) as lab:
    broker, worker = lab.host("broker"), lab.host("worker")
    worker.run(["ping", "-c1", "broker"])
    with lab.network():  # this thread, and the threads and sockets that it makes, are on the lab's network
        ...
```

A host has its own mounts, processes, host name, IPC and network. Its file system holds the operating system, this
Python environment, Java and Kafka's jars (read-only), and what :meth:`Lab.host` is given. Everything else is its own:
``/tmp``, ``/var/tmp``, HOME, ``/dev/shm``, ``/run`` and its *disk*, a folder that has the same path inside and outside,
so that a test can prepare and search it. Hosts know each other by name (``/etc/hosts``) and address, and reach nothing
else: the lab's network is connected neither to this machine's nor to the internet.

Nothing remains, whatever ends this process: the kernel ends a host with its process 1, which dies with the harness, and
with the last process go the network and all mounts, because none of them has a name outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from harness.jars import maven
from harness.processes import HarnessError, Process, start, tail_of, wait_for

#: The root of this checkout: what a host needs in order to have this package, its tests and its harness.
CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = "airflow_provider_kafka_migration"

_READY_SECONDS = 60.0
_INIT = Path(__file__).with_name("host_init.py")
_NETWORK = "10.99.0"
_CLONE_NEWNET = 0x40000000
#: What ``host_init`` gives to every host.
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc", "/opt")


def why_not() -> str | None:
    """Why hosts cannot be made on this machine; None if they can. For ``pytest.mark.skipif``."""
    if sys.platform != "linux":
        return "hosts need the namespaces of Linux"
    if os.geteuid() != 0:
        return "hosts need root: they make network namespaces and mounts"
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"hosts need {', '.join(missing)} (packages iproute2 and util-linux)"
    attempt = ["unshare", "-m", "-p", "-f", "-u", "-i", "-n", "--mount-proc", "ip", "link", "add", "a0", "type", "veth"]
    done = subprocess.run(attempt, capture_output=True, text=True, timeout=_READY_SECONDS)
    if done.returncode != 0:
        return f"this machine does not let root make namespaces: {done.stderr.strip()}"
    return None


class HostProcess(Process):
    """A process on a host. Its id is that of ``nsenter``, which waits for it outside of the host."""

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, unless it has ended."""
        if not self.running:
            return
        inside = psutil.Process(self.pid).children()
        for process in inside:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        # nsenter stops with its child, and continues it when it is continued itself.
        if number == signal.SIGCONT or not inside:
            super().signal(number)


class Host:
    """One machine of a :class:`Lab`; made by :meth:`Lab.host`.

    :ivar name: its host name, which all hosts of the lab resolve.
    :ivar address: its IPv4 address.
    :ivar disk: its disk, at the same path inside and outside. It outlives :meth:`kill`.
    :ivar environment: variables of all processes that are started on it.
    """

    def __init__(
        self,
        lab: Lab,
        name: str,
        number: int,
        readable: Sequence[Path],
        hidden: Sequence[Path],
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.address = f"{_NETWORK}.{number}"
        self.disk = lab.folder / name / "disk"
        self.environment = {**_base_environment(), **environment}
        self._lab = lab
        self._port = f"v-{number}"
        self._readable = list(readable)
        self._hidden = list(hidden)
        self._init: Process | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"Host({self.name}, {self.address})"

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The id that its process 1 has on this machine."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the host is up; one that is cut off is."""
        return self._init is not None and self._init.running

    def boot(self) -> None:
        """Start the host, again after :meth:`kill`: with its disk, and with an empty ``/tmp``.

        :raises HarnessError: a namespace or a mount could not be made.
        """
        if self.running:
            raise HarnessError(f"the host {self.name} runs already")
        folder = self.disk.parent
        spec = self._spec(folder)
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        self._init, self._pid = _start_init(f"host {self.name}", folder)
        self._lab.ip(f"link add {self._port} type veth peer name eth0 netns {self._pid}")
        self._lab.ip(f"link set {self._port} master br0 up")
        self._ip("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up")

    def _spec(self, folder: Path) -> dict[str, object]:
        own = {"/tmp": "tmp", "/var/tmp": "var-tmp", str(Path.home()): "home"}
        for name in own.values():
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir(parents=True)
            (folder / name).chmod(0o700 if name == "home" else 0o1777)
        self.disk.mkdir(exist_ok=True)
        (folder / "root").mkdir(exist_ok=True)
        (folder / "hostname").write_text(f"{self.name}\n", encoding="ascii")
        (folder / "resolv.conf").write_text("", encoding="ascii")
        files = {"hostname": folder / "hostname", "resolv.conf": folder / "resolv.conf", "hosts": self._lab.names}
        return {
            "name": self.name,
            "root": str(folder / "root"),
            "ready": str(self.disk / ".ready"),
            "pid": str(folder / "pid"),
            "writable": {
                **{place: str(folder / name) for place, name in own.items()},
                str(self.disk): str(self.disk),
            },
            "readable": [str(path) for path in self._readable],
            "hidden": [str(path) for path in self._hidden],
            "files": {f"/etc/{name}": str(path) for name, path in files.items()},
        }

    def kill(self) -> None:
        """Pull the plug: the network goes first, so that nobody gets a last word, then all processes at once."""
        if self._init is None:
            return
        if self.running:
            with contextlib.suppress(HarnessError):  # it was cut off by link_down(), or is just ending
                self._lab.ip(f"link del {self._port}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._init.wait(_READY_SECONDS)
        self._init.kill()
        self._init = None

    # -- network ------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Cut the host off: nothing reaches it and nothing leaves it, and nobody is told (a switch that has failed)."""
        self._lab.ip(f"link set {self._port} nomaster")

    def join(self) -> None:
        """Undo :meth:`cut`."""
        self._lab.ip(f"link set {self._port} master br0")

    def link_down(self) -> None:
        """Take the host's own interface down: whatever it sends fails at once; the others are told nothing."""
        self._ip("link set eth0 down")

    def link_up(self) -> None:
        """Undo :meth:`link_down`."""
        self._ip("link set eth0 up")

    def _ip(self, *commands: str) -> None:
        _ip(self._pid, commands)

    # -- commands -----------------------------------------------------------------------------------------------------

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_seconds: float = 120.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host and wait for its end.

        :param env: variables in addition to :attr:`environment`.
        :raises HarnessError: with ``check``, it ended with another status than 0; shows its output.
        """
        self._check_running()
        done = subprocess.run(
            self._command(command, cwd),
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
        if check and done.returncode != 0:
            raise HarnessError(
                f"{command[0]} ended with {done.returncode} on {self.name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return done

    def start(
        self,
        name: str,
        command: Sequence[str],
        log: Path | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start a command on the host; it ends with the host, and with this process.

        :param log: file of this machine that gets its output; default: ``NAME.log`` on the host's disk.
        :param env: variables in addition to :attr:`environment`.
        """
        self._check_running()
        return start(
            f"{name} on {self.name}",
            self._command(command, cwd),
            log or self.disk / f"{name}.log",
            env={**self.environment, **(env or {})},
            kind=HostProcess,
        )

    def _check_running(self) -> None:
        if not self.running:
            raise HarnessError(f"the host {self.name} does not run")

    def _command(self, command: Sequence[str], cwd: Path | None) -> list[str]:
        enter = ["nsenter", "-t", str(self._pid), "-m", "-u", "-i", "-n", "-p", "--"]
        return [*enter, "env", "-C", str(cwd or self.disk), *command]


class Lab:
    """A network and its hosts, from ``start()`` (or ``with``) to ``stop()``.

    :param folder: for the hosts' disks and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        #: ``/etc/hosts`` of all hosts; only ever appended to, because they have the file itself, not its path.
        self.names = folder / "etc-hosts"
        self._wire: Process | None = None
        self._pid = 0

    def __enter__(self) -> Lab:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make the network."""
        folder = self.folder / "wire"
        folder.mkdir(parents=True, exist_ok=True)
        self.names.write_text("127.0.0.1 localhost\n", encoding="ascii")
        spec = {"name": "", "ready": str(folder / "ready"), "pid": str(folder / "pid")}
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        self._wire, self._pid = _start_init("the lab's network", folder)
        self.ip("link add br0 type bridge")
        self.ip(f"addr add {_NETWORK}.1/24 dev br0")
        self.ip("link set br0 up")
        self.ip("link set lo up")

    def stop(self) -> None:
        """End all hosts, then the network. Keeps the folder."""
        for host in self.hosts.values():
            host.kill()
        self.hosts = {}
        if self._wire is not None:
            self._wire.kill()
            self._wire = None

    def host(
        self,
        name: str,
        *,
        has_product: bool = False,
        readable: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Host:
        """Make a host and start it.

        :param has_product: this checkout is there and on ``PYTHONPATH``; otherwise the package is nowhere on the host.
        :param readable: more folders of this machine that it may read.
        :param environment: variables of all its processes.
        """
        if name in self.hosts:
            raise HarnessError(f"the lab has a host {name} already")
        hidden = [] if has_product else [Path(sysconfig.get_path("purelib")) / PACKAGE]
        variables = {**({"PYTHONPATH": str(CHECKOUT)} if has_product else {}), **(environment or {})}
        image = [*_image(), *([CHECKOUT] if has_product else []), *readable]
        host = Host(self, name, 11 + len(self.hosts), image, hidden, variables)
        with self.names.open("a", encoding="ascii") as file:
            file.write(f"{host.address} {host.name}\n")
        host.boot()
        self.hosts[name] = host
        return host

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Put this thread on the lab's network, as a machine of its own (address 10.99.0.1).

        Threads and child processes that it starts meanwhile are there, too, and sockets stay where they were made.
        Names of hosts are not resolved here: take their addresses.
        """
        if self._wire is None:
            raise HarnessError("the lab does not run")
        with (
            open("/proc/thread-self/ns/net", "rb") as before,
            open(f"/proc/{self._pid}/ns/net", "rb") as lab,
        ):
            _set_network(lab.fileno())
            try:
                yield
            finally:
                _set_network(before.fileno())

    def ip(self, command: str) -> None:
        """Run ``ip`` in the network between the hosts."""
        _ip(self._pid, [command])


def _image() -> list[Path]:
    """What every host may read besides the operating system: Python, this environment, Java, Kafka's and Hadoop's jars.

    Jars must be in the cache before: a host has no internet.
    """
    java = Path(maven.java()).resolve().parents[1]
    jars = [maven.cache_folder(name) for name in ("kafka", "hadoop")]
    folders = [Path(sys.base_prefix), Path(sys.prefix), java, *jars]
    return [folder for folder in folders if folder.is_dir() and not any(map(folder.is_relative_to, _SYSTEM))]


def _base_environment() -> dict[str, str]:
    """What a process on a host inherits: nothing of this process's own, which may hold proxies and secrets."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(Path.home()),
        "USER": "root",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",  # the environment is read-only
    }
    if home := os.environ.get("JAVA_HOME"):
        environment["JAVA_HOME"] = home
    return environment


def _start_init(name: str, folder: Path) -> tuple[Process, int]:
    """Start ``host_init`` with ``spec.json`` of a folder.

    :returns: the process, and the id that its process 1 has on this machine.
    """
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    ready, pid = Path(spec["ready"]), Path(spec["pid"])
    for path in (ready, pid):
        path.unlink(missing_ok=True)
    # -I -S: nothing of the environment, which would only delay it.
    command = [os.path.realpath(sys.executable), "-I", "-S", str(_INIT), str(folder / "spec.json")]
    process = start(name, command, folder / "init.log")

    def is_ready() -> bool:
        process.check_running()
        return ready.exists()

    try:
        wait_for(name, is_ready, _READY_SECONDS, 0.01)
    except HarnessError as error:
        process.kill()
        raise HarnessError(f"{error}\n{tail_of(process.log)}") from None
    return process, int(pid.read_text(encoding="ascii"))


def _ip(pid: int, commands: Sequence[str]) -> None:
    done = subprocess.run(
        ["nsenter", "-t", str(pid), "-n", "ip", "-batch", "-"],
        input="".join(f"{command}\n" for command in commands),
        capture_output=True,
        text=True,
        timeout=_READY_SECONDS,
    )
    if done.returncode != 0:
        raise HarnessError(f"ip {'; '.join(commands)}: {done.stderr.strip()}")


def _set_network(descriptor: int) -> None:
    # os.setns() is there from Python 3.12 on.
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise HarnessError(f"this thread cannot change its network: {os.strerror(number)}")
