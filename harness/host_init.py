"""Process 1 of a host of :mod:`harness.hosts`: ``python -I -S host_init.py SPEC.json``.

Makes namespaces of its own (mounts, processes, host name, IPC, network), builds the host's file system from nothing but
what the specification lists, and then only reaps orphans. The kernel ends every process of a PID namespace with its
process 1, and this one dies with its parent, so nothing of a host outlives the harness.

It runs before any environment is there, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>
_NEW_NET = 0x40000000
_NEW_ALL = _NEW_NET | 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_PR_SET_PDEATHSIG = 1

_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = (source.encode(), bytes(target), kind.encode() or None, flags, data.encode() or None)
    _check(_libc.mount(*arguments), f"mount {source} at {target}")


def _bind(source: Path, target: Path, *, writable: bool = False) -> None:
    """Show a folder or a file of this machine at a place of the host."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(str(source), target, flags=_MS_BIND)
    if not writable:
        _mount(str(source), target, flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _tmpfs(target: Path, mode: str = "755") -> None:
    target.mkdir(parents=True, exist_ok=True)
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID, f"mode={mode}")


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _system(root: Path) -> None:
    """The operating system: programs, libraries, settings; read-only."""
    for name in _SYSTEM_FOLDERS:
        folder = Path("/") / name
        if folder.is_symlink():
            (root / name).symlink_to(folder.readlink())
        elif folder.is_dir():
            _bind(folder, root / name)
    (root / "proc").mkdir()
    _mount("proc", root / "proc", "proc")
    _tmpfs(root / "dev")
    for name in _DEVICES:
        _bind(Path("/dev") / name, root / "dev" / name, writable=True)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (root / "dev" / name).symlink_to(f"/proc/self/fd/{number}")
    (root / "dev/fd").symlink_to("/proc/self/fd")
    _tmpfs(root / "dev/shm", "1777")
    _tmpfs(root / "run")


def build(spec: dict[str, Any]) -> None:
    """Build the host's file system and make it the root of this process."""
    root = Path(spec["root"])
    _mount("none", Path("/"), flags=_MS_REC | _MS_PRIVATE)
    _tmpfs(root)
    _system(root)
    # The host's own folders first: what it may read can lie inside of one (an environment below HOME, for instance).
    for place, source in spec["writable"].items():
        _bind(Path(source), _below(root, place), writable=True)
    for folder in spec["readable"]:
        _bind(Path(folder), _below(root, folder))
    for folder in spec["hidden"]:
        if _below(root, folder).is_dir():
            _tmpfs(_below(root, folder))
    for place, source in spec["files"].items():
        if not _below(root, place).is_symlink():  # a link would lead out of the new root
            _bind(Path(source), _below(root, place))
    (root / ".old").mkdir()
    pivot_root = _SYS_PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(pivot_root, bytes(root), bytes(root / ".old")), f"pivot_root to {root}")
    os.chdir("/")
    _check(_libc.umount2(b"/.old", _MNT_DETACH), "umount of the machine's own file system")
    Path("/.old").rmdir()
    _mount("none", Path("/"), flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _reap_for_ever() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


def _as_process_1(spec: dict[str, Any], go: int) -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if not os.read(go, 1):
        os._exit(1)  # closed: the parent died before the request above
    ready = Path(spec["ready"])
    if spec["name"]:
        name = spec["name"].encode()
        _check(_libc.sethostname(name, len(name)), "sethostname")
        build(spec)
    ready.touch()
    _reap_for_ever()


def main(arguments: Sequence[str]) -> int:
    """Make the namespaces, start process 1 in them, and wait for its end. Without a name: only a network."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    reading, writing = os.pipe()
    _check(_libc.unshare(_NEW_ALL if spec["name"] else _NEW_NET), "unshare")
    child = os.fork()
    if child == 0:
        os.close(writing)
        try:
            _as_process_1(spec, reading)
        except BaseException as error:
            print(f"the host {spec['name']} cannot be made: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os.close(reading)
    # Before process 1 goes on: both are in the new mount namespace, so its new root becomes the root of this one, too.
    Path(spec["pid"]).write_text(str(child), encoding="ascii")
    os.write(writing, b"g")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
