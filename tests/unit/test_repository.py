"""What must not be in committed files, and what the lock must be."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written in two parts so that this file does not find itself.
_FORBIDDEN = {
    "a path of somebody's machine": re.compile(
        "/(?:" + "|".join(["home/" + "[a-z]", "Users/" + "[A-Za-z]", "root/"]) + ")"
    ),
    "a place of the workshop": re.compile("/" + "work/" + "(?:main|shared)"),
    "an address of a package registry": re.compile(
        "|".join(
            [
                "pypi" + r"\.org",
                "files\\.python" + "hosted",
                "repo1?\\.maven" + r"\.(?:org|apache)",
                "registry\\.npm" + "js",
            ]
        )
    ),
}


def committed() -> list[Path]:
    """All files under version control, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git clone")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_committed_files_name_no_machine_and_no_registry() -> None:
    found = []
    for path in committed():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for what, pattern in _FORBIDDEN.items():
            found += [
                f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {what}: {match[0]}"
                for match in pattern.finditer(text)
            ]
    assert found == []


def test_no_large_or_generated_files_are_committed() -> None:
    for path in committed():
        assert path.stat().st_size < 2_000_000, path
        assert not {"__pycache__", ".venv", "build", "dist"} & set(path.relative_to(ROOT).parts), path


def test_a_folder_of_the_package_has_at_most_twenty_modules() -> None:
    """One that grows beyond holds a second subject, or a file that belongs elsewhere."""
    package = ROOT / "airflow_provider_kafka_migration"
    folders = {path.parent for path in package.rglob("*.py")}
    sizes = {folder: sum(path.name != "__init__.py" for path in folder.glob("*.py")) for folder in folders}
    assert {str(folder.relative_to(ROOT)): size for folder, size in sizes.items() if size > 20} == {}


def test_the_lock_pins_everything_with_hashes_and_names_no_index() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[a-z])", text.strip())
    assert len(entries) > 100
    for entry in entries:
        assert re.match(r"^[a-z0-9][a-z0-9._-]*(\[[a-z0-9,_-]+\])?==[^\s]+", entry), entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text


def test_the_lock_has_all_direct_dependencies() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["optional-dependencies"]
    # The Google provider's requirements contradict the lock's; tests/engines/requirements.txt has what its tests need.
    # Kerberos' library is compiled against headers that a machine need not have.
    left_out = {"google", "kerberos"}
    wanted = [*project["dependencies"], *(item for name in groups.keys() - left_out for item in groups[name])]
    locked = set(
        re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for requirement in wanted:
        name = re.split(r"[\[<>=!~ ;]", requirement)[0].lower().replace("_", "-")
        if name != project["name"]:
            assert name in locked, f"{name} is not locked: run make lock"


@pytest.mark.parametrize("script", [".ci/run", "scripts/bootstrap.sh", "scripts/check_java.sh"])
def test_scripts_stop_at_the_first_error_and_parse(script: str) -> None:
    text = (ROOT / script).read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    assert subprocess.run(["bash", "-n", str(ROOT / script)], capture_output=True).returncode == 0
