"""Builds what executors need without Airflow: a wheel of the data plane, or a whole environment to unpack.

The wheel contains this package without the parts for Airflow and for the command line, and requires exactly the
libraries that copiers import. The environment is a virtual environment with that wheel, packed for ``--archives``.
This module imports neither pyspark nor Airflow, and the wheel is built from the files of the running installation, so
that both sides always have the same version.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration import __version__
from airflow_provider_kafka_migration.errors import Terminal, Where
from airflow_provider_kafka_migration.lanes.libraries import (
    CONNECT_LIBRARIES,
    OURS,
    SHIPPED_LIBRARIES,
    requirements,
    shipped_requirements,
)
from airflow_provider_kafka_migration.spark.launch import is_shipped

#: Name of the distribution. It contains a part of the full one, so the two must not be installed together.
DISTRIBUTION = "airflow-provider-kafka-migration-executor"
#: Packs environments; installed into a temporary folder while one is built.
PACKER = "venv-pack==0.2.0"

#: Version of uv, whose image has the program that installs a Python into another image.
_UV = "0.13.9"

#: What only Airflow and the command line use, in addition to what is never shipped.
_LEFT_OUT = frozenset(
    {
        "airflow_cli.py",
        "cli",
        "dag.py",
        "dag_parts",
        "deadline_watch.py",
        "engines",
        "get_provider_info.py",
        "mirror_dag.py",
        "provider",
        "watch_dag.py",
    }
)
#: Zip entries carry a time; the same files must give the same wheel.
_TIME = (1980, 1, 1, 0, 0, 0)
_INSTALL_SECONDS = 1800


# -- wheel ------------------------------------------------------------------------------------------------------------


def build_wheel(folder: Path) -> Path:
    """Write ``airflow_provider_kafka_migration_executor-<version>-py3-none-any.whl``; the same code, the same bytes.

    :raises Terminal: this package is not installed, so the versions that it requires are not known.
    """
    stem = f"{DISTRIBUTION.replace('-', '_')}-{__version__}"
    info = f"{stem}.dist-info"
    root = Path(airflow_provider_kafka_migration.__file__).parent
    files = {f"{root.name}/{path.relative_to(root).as_posix()}": path.read_bytes() for path in packaged_files(root)}
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: kafka-migration\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
    target = folder / f"{stem}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    partial.replace(target)
    return target


def packaged_files(root: Path) -> Iterator[Path]:
    """Return the files of the wheel, in a stable order."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and parts[0] not in _LEFT_OUT and is_shipped(path.relative_to(root)):
            yield path


def _metadata() -> str:
    try:
        required = requirements()
        python = importlib.metadata.metadata(OURS)["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:
        raise Terminal(
            f"{OURS} is not installed here, so the versions that it requires are not known",
            next_step="install it (pip install), and run the command there",
        ) from None
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {DISTRIBUTION}",
        f"Version: {__version__}",
        "Summary: The part of airflow-provider-kafka-migration that runs on Spark's machines, without Airflow",
        f"Requires-Python: {python}",
        *(f"Requires-Dist: {text}" for text in shipped_requirements()),
        *_extra("msk"),
        *_extra("prometheus"),
        "Provides-Extra: connect",
        *(f'Requires-Dist: {required[name]} ; extra == "connect"' for name in sorted(CONNECT_LIBRARIES.values())),
    ]
    return "\n".join(lines) + "\n"


def _extra(name: str) -> list[str]:
    """Return the lines of an optional dependency that Spark's machines may need: MSK's login, a driver's endpoint."""
    marker = f'extra == "{name}"'
    texts = [text for text in importlib.metadata.requires(OURS) or () if text.replace("'", '"').endswith(marker)]
    return [f"Provides-Extra: {name}", *(f"Requires-Dist: {text}" for text in texts)] if texts else []


def _record(files: Mapping[str, bytes], own_name: str) -> str:
    """Return the list of files with their digests, which installers check."""
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    return "\n".join([*lines, f"{own_name},,"]) + "\n"


# -- environment ------------------------------------------------------------------------------------------------------


def build_archive(target: Path, *, python_prefix: str = "", extras: tuple[str, ...] = ()) -> Path:
    """Write a ``tar.gz`` with an environment for ``--archives FILE#env``, with the library versions of this side.

    It needs a package index, as ``pip install`` does. The archive has no interpreter: the machines need the same
    version of Python, where this one has it or below ``python_prefix``.

    :param python_prefix: folder on Spark's machines whose ``bin`` has that Python, for instance ``/usr``.
    :param extras: ``msk``, ``connect``.
    :raises Terminal: a step failed; the error has the last lines of its output.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kafka-migration-package-") as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        environment, tools = folder / "env", folder / "tools"
        _run("create the environment", [sys.executable, "-m", "venv", str(environment)])
        python = str(environment / "bin" / "python")
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in _versions_here().items()))
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
        _run("install the libraries", [*install, "--constraint", str(constraints), wanted])
        _run("install the packer", [*install, "--target", str(tools), PACKER])
        # Machines do not need pip, and it is a fifth of the files.
        _run("remove pip", [python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip"])
        pack = [python, "-m", "venv_pack", "--quiet", "--force", "--prefix", str(environment), "--output", str(target)]
        if python_prefix:
            pack += ["--python-prefix", python_prefix]
        _run("pack the environment", pack, {"PYTHONPATH": str(tools)})
    target.chmod(0o644)
    return target


def _versions_here() -> dict[str, str]:
    names = {*SHIPPED_LIBRARIES.values(), *CONNECT_LIBRARIES.values()}
    return {name: importlib.metadata.version(name) for name in sorted(names)}


def _run(what: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
    # The caller's Python path must not become part of what is built.
    given = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command,
            env={**given, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
        output, failed = done.stdout + done.stderr, done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        output, failed = str(error), True
    if failed:
        last = " ".join(output.split()[-60:])
        raise Terminal(
            f"the executor package could not be built; the step that failed is: {what}: {last[-600:]}",
            where=Where(path=command[0]),
            next_step="check that a package index can be reached (pip's own settings apply) and the disk has space",
        )


# -- image ------------------------------------------------------------------------------------------------------------


def dockerfile(wheel: Path) -> str:
    """Return a Dockerfile that adds the wheel, with a Python of its own, to an image with Spark.

    The images of Spark 4.0 have Python 3.10, which is too old. The image gets the same minor version as the Python that
    runs this, because driver and executors must have the same.
    """
    environment = "/opt/kafka-migration/venv"
    return (
        "# Spark's image with the wheel and a Python of its own: that of Spark 4.0's images (3.10) is too old.\n"
        "# We never built this image.\n"
        "# BASE: any image with Spark 3.5 or later; where its user is not spark, correct the last line.\n"
        "ARG BASE=apache/spark:4.0.1-python3\n"
        f"FROM ghcr.io/astral-sh/uv:{_UV} AS uv\n"
        "FROM ${BASE}\n"
        f"ARG PYTHON={sys.version_info.major}.{sys.version_info.minor}\n"
        "USER root\n"
        "COPY --from=uv /uv /usr/local/bin/uv\n"
        f"COPY {wheel.name} /tmp/\n"
        "ENV UV_PYTHON_INSTALL_DIR=/opt/kafka-migration/python\n"
        f"RUN uv venv --managed-python --python ${{PYTHON}} {environment} \\\n"
        f" && uv pip install --no-cache --python {environment}/bin/python /tmp/{wheel.name} \\\n"
        f" && rm /tmp/{wheel.name}\n"
        f"ENV PYSPARK_PYTHON={environment}/bin/python PYSPARK_DRIVER_PYTHON={environment}/bin/python\n"
        "USER spark\n"
    )
