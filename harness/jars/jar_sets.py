"""Sets of jars that are fetched once, checked against committed lists of checksums, and then used offline."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.jars.maven import JarsError, locked, parse_checksums, sha256_of, workspace

_STAMP = "verified.json"


@dataclass(frozen=True)
class JarSets:
    """The sets of one product.

    Sets enter the cache as a whole: they are fetched and checked in a separate folder, then renamed, under a file lock.
    A set with a missing, unknown or changed file is deleted and fetched again.

    :param product: for messages.
    :param cache: the parent folder of all sets.
    :param checksums: folder of the committed lists, ``SET.sha256``.
    :param fetch: gets the jars of a set into a folder below the one it is given, and returns that folder.
    :param record_command: writes the list of a new set, for messages.
    """

    product: str
    cache: Path
    checksums: Path
    fetch: Callable[[str, Path], Path]
    record_command: str

    def recorded_checksums(self, name: str) -> dict[str, str]:
        """The committed list of a set: jar name -> SHA-256 in hex.

        :raises JarsError: there is no list for this set.
        """
        path = self.checksums / f"{name}.sha256"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in self.checksums.glob("*.sha256")))
            raise JarsError(
                f"there is no checksum list for {self.product} {name} (known: {known}); "
                f"record one with `{self.record_command} {name}` and commit it"
            )
        return parse_checksums(path.read_text(encoding="ascii"))

    def ensure(self, name: str) -> Path:
        """Folder of a set, complete and checked; fetches a missing set.

        The content is hashed once; later calls compare names, sizes and modification times with the stamp of that time.

        :raises JarsError: unknown set, no network, or fetched jars that differ from the committed list.
        """
        checksums = self.recorded_checksums(name)
        folder = self.cache / name
        if _is_stamped(folder, checksums):
            return folder
        with locked(self.cache, name):
            if folder.is_dir() and (_is_stamped(folder, checksums) or _verify_and_stamp(folder, checksums) is None):
                return folder
            with workspace(self.cache) as work:
                fetched = self.fetch(name, work)
                wrong = _verify_and_stamp(fetched, checksums)
                if wrong is not None:
                    raise JarsError(
                        f"the jars fetched for {self.product} {name} are not the recorded ones: {wrong}; "
                        "check the repository they came from before you record a new list"
                    )
                _replace(folder, fetched, work)
        return folder

    def record(self, name: str) -> Path:
        """Fetch a set and write its checksum list next to the others. For maintainers who add a version."""
        with locked(self.cache, name), workspace(self.cache) as work:
            fetched = self.fetch(name, work)
            checksums = {jar.name: sha256_of(jar) for jar in sorted(fetched.glob("*.jar"))}
            path = self.checksums / f"{name}.sha256"
            path.write_text("".join(f"{digest}  {jar}\n" for jar, digest in checksums.items()), encoding="ascii")
            _verify_and_stamp(fetched, checksums)
            _replace(self.cache / name, fetched, work)
        return path


def _list_digest(checksums: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(sorted(checksums.items())).encode()).hexdigest()


def _states(folder: Path) -> dict[str, list[int]]:
    """Jar name -> [size, modification time in ns]."""
    stats = {path.name: path.stat() for path in sorted(folder.glob("*.jar"))}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _is_stamped(folder: Path, checksums: Mapping[str, str]) -> bool:
    """Whether the folder was hashed before and has not changed since."""
    try:
        stamp = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(stamp == {"list": _list_digest(checksums), "files": _states(folder)})


def _verify_and_stamp(folder: Path, checksums: Mapping[str, str]) -> str | None:
    """Hash all jars; write the stamp and return None if they are the recorded ones, otherwise return what differs."""
    present = {path.name for path in folder.glob("*.jar")}
    if missing := sorted(checksums.keys() - present):
        return f"missing: {', '.join(missing)}"
    if strange := sorted(present - checksums.keys()):
        return f"not on the list: {', '.join(strange)}"
    if changed := sorted(jar for jar, digest in checksums.items() if sha256_of(folder / jar) != digest):
        return f"changed: {', '.join(changed)}"
    stamp = {"list": _list_digest(checksums), "files": _states(folder)}
    temporary = folder / f"{_STAMP}.{os.getpid()}"
    temporary.write_text(json.dumps(stamp), encoding="utf-8")
    temporary.replace(folder / _STAMP)
    return None


def _replace(folder: Path, fetched: Path, work: Path) -> None:
    if folder.exists():
        folder.rename(work / "replaced")
    fetched.rename(folder)
