"""A real MIT Kerberos KDC on loopback, from Debian's packages, which are unpacked into a cache and not installed.

``apt-get download`` checks each package against Debian's signed index. Without apt, or without a network, there is no
KDC: :class:`KdcMissing` says why, and tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from harness.jars import maven
from harness.jars.maven import locked, workspace
from harness.processes import Process, free_port, is_listening, release_ports, start, wait_for

REALM = "TEST.EXAMPLE"
_PACKAGES = (
    *("krb5-kdc", "krb5-admin-server", "krb5-user"),
    *("libgssrpc4", "libkadm5srv-mit12", "libkadm5clnt-mit12", "libkdb5-10", "libverto1", "libverto-libev1", "libev4"),
    *("libk5crypto3", "libkrb5-3", "libkrb5support0", "libgssapi-krb5-2", "libcom-err2", "libss2", "libkeyutils1"),
)
_SET = "debian-1"
_DOWNLOAD_SECONDS, _TOOL_SECONDS = 180.0, 60.0


class KdcMissing(Exception):
    """There is no KDC on this machine, and none can be fetched."""


def packages() -> Path:
    """The folder with the unpacked packages; fetches them once.

    :raises KdcMissing: there is no apt, or no network.
    """
    cache = maven.cache_folder("kerberos")
    folder = cache / _SET
    if folder.is_dir():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise KdcMissing("a KDC comes from Debian's packages, and this machine has no apt-get and dpkg")
    with locked(cache, _SET), workspace(cache) as work:
        if folder.is_dir():
            return folder
        debs, root = work / "debs", work / "root"
        debs.mkdir()
        done = subprocess.run(
            ["apt-get", "download", *_PACKAGES], cwd=debs, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS
        )
        if done.returncode != 0:
            raise KdcMissing(f"apt-get download failed: {done.stderr.strip()[-500:]}")
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True, capture_output=True, timeout=_TOOL_SECONDS)
        root.rename(folder)
    return folder


class Kdc:
    """Runs from ``start()`` (or ``with``) to ``stop()``; ``stop`` and ``start`` keep the principals and the port.

    :param folder: for the database, configurations and keytabs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "krb5.conf"
        self._root = packages()
        self._port = 0
        self._process: Process | None = None

    def __enter__(self) -> Kdc:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        release_ports([self._port])

    def start(self) -> None:
        if not self._port:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._port = free_port()
            self._configure()
            self._tool("usr/sbin/kdb5_util", "create", "-s", "-r", REALM, "-P", "master-password-of-a-test")
        command = [str(self._root / "usr/sbin/krb5kdc"), "-n", "-r", REALM]
        environment = {**os.environ, **self._settings()}
        self._process = start("KDC", command, self.folder / "kdc.log", env=environment)
        process = self._process

        def answers() -> bool:
            process.check_running()
            return is_listening(self._port)

        wait_for("the KDC's port", answers, 30)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def principal(self, name: str, *options: str) -> Path:
        """Create a principal with random keys, or give an existing one new keys; return its keytab."""
        keytab = self.folder / f"{name.replace('/', '-')}.keytab"
        keytab.unlink(missing_ok=True)
        self._tool("usr/sbin/kadmin.local", "-r", REALM, "-q", f"addprinc {' '.join(options)} -randkey {name}")
        self._tool("usr/sbin/kadmin.local", "-r", REALM, "-q", f"ktadd -k {keytab} {name}")
        return keytab

    def login(self, name: str, keytab: Path, cache: Path) -> None:
        """Fetch a ticket into a cache file, as a person or a scheduler does."""
        self._tool("usr/bin/kinit", "-c", f"FILE:{cache}", "-k", "-t", str(keytab), name)

    def _tool(self, program: str, *arguments: str) -> None:
        environment = {**os.environ, **self._settings()}
        command: Sequence[str] = [str(self._root / program), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TOOL_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(f"{program} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")

    def _settings(self) -> dict[str, str]:
        libraries = sorted({str(path.parent) for path in (self._root / "usr/lib").glob("*/lib*.so*")})
        return {
            "LD_LIBRARY_PATH": ":".join([*libraries, *sorted(map(str, (self._root / "lib").glob("*")))]),
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
        }

    def _configure(self) -> None:
        plugins = next((self._root / "usr/lib").glob("*/krb5/plugins"))
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self._port}\n }}\n"
            f"[domain_realm]\n 127.0.0.1 = {REALM}\n localhost = {REALM}\n"
            f"[dbmodules]\n db_module_dir = {plugins / 'kdb'}\n",
            encoding="utf-8",
        )
        (self.folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self._port}\n kdc_tcp_listen = 127.0.0.1:{self._port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.folder / 'principal'}\n"
            f"  key_stash_file = {self.folder / 'stash'}\n  acl_file = {self.folder / 'acl'}\n"
            "  max_life = 1h\n  max_renewable_life = 2h\n }\n"
            f"[logging]\n kdc = FILE:{self.folder / 'requests.log'}\n",
            encoding="utf-8",
        )
