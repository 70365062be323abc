"""The libraries that a machine needs on which lanes run: what copiers import, and nothing that only Airflow needs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

#: Import name to distribution. ``executor-package`` builds an environment of exactly these, and a test runs the imports
#: of a copier in one.
LIBRARIES: Mapping[str, str] = MappingProxyType(
    {
        "boto3": "boto3",
        "cramjam": "cramjam",
        "crc32c": "crc32c",
        "kafka": "kafka-python",
        "pydantic": "pydantic",
        "rfc8785": "rfc8785",
        "urllib3": "urllib3",
    }
)

#: In addition where references are sealed: drivers and executors open them. Packages that we make always have it.
SEALED_LIBRARIES: Mapping[str, str] = MappingProxyType({"nacl": "pynacl"})

#: In addition where tasks come through Spark Connect, which hands them over as Arrow batches.
CONNECT_LIBRARIES: Mapping[str, str] = MappingProxyType({"pyarrow": "pyarrow"})

#: What a package for Spark's machines has.
SHIPPED_LIBRARIES: Mapping[str, str] = MappingProxyType({**LIBRARIES, **SEALED_LIBRARIES})

#: The distribution whose requirements bound the versions.
OURS = "airflow-provider-kafka-migration"


def requirements() -> dict[str, Requirement]:
    """Return our requirements of these libraries, by distribution. Airflow's side calls it, executors do not.

    :raises importlib.metadata.PackageNotFoundError: this package is not installed, only on the Python path.
    """
    # Machines that run lanes import this module, too, and need not have it.
    from packaging.requirements import Requirement

    found = {}
    known = {*SHIPPED_LIBRARIES.values(), *CONNECT_LIBRARIES.values()}
    for text in importlib.metadata.requires(OURS) or ():
        requirement = Requirement(text)
        if requirement.name in known and requirement.marker is None:
            found[requirement.name] = requirement
    return found


def shipped_requirements() -> list[str]:
    """Return what Spark's machines need, as installers take it: name and bounds.

    :raises importlib.metadata.PackageNotFoundError: as :func:`requirements`.
    """
    required = requirements()
    return [str(required[name]) for name in sorted(SHIPPED_LIBRARIES.values())]


def python_bounds() -> SpecifierSet:
    """Return the versions of Python that we support."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(importlib.metadata.metadata(OURS)["Requires-Python"] or "")
