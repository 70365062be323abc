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

#: In addition where tasks come through Spark Connect, which hands them over as Arrow batches.
CONNECT_LIBRARIES: Mapping[str, str] = MappingProxyType({"pyarrow": "pyarrow"})

#: The distribution whose requirements bound the versions.
OURS = "airflow-provider-kafka-migration"


def requirements() -> dict[str, Requirement]:
    """Return our requirements of these libraries, by distribution. Airflow's side calls it, executors do not.

    :raises importlib.metadata.PackageNotFoundError: this package is not installed, only on the Python path.
    """
    # Machines that run lanes import this module, too, and need not have it.
    from packaging.requirements import Requirement

    found = {}
    known = {*LIBRARIES.values(), *CONNECT_LIBRARIES.values()}
    for text in importlib.metadata.requires(OURS) or ():
        requirement = Requirement(text)
        if requirement.name in known and requirement.marker is None:
            found[requirement.name] = requirement
    return found


def python_bounds() -> SpecifierSet:
    """Return the versions of Python that we support."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(importlib.metadata.metadata(OURS)["Requires-Python"] or "")
