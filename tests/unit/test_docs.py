"""The documentation builds without warnings, is up to date, and its links and commands exist."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.testing import CliRunner

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.cli.app import app
from airflow_provider_kafka_migration.get_provider_info import get_provider_info
from airflow_provider_kafka_migration.spec import parse_spec

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """scripts/generate_docs.py as a module."""
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(generator: ModuleType) -> None:
    assert [str(path.relative_to(ROOT)) for path in generator.stale()] == [], "run `make docs` and commit the pages"


def _build_site(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    # Not --quiet: it hides the warnings from --strict, too, and nothing would fail any more.
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    done = _build_site(ROOT / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.parametrize(
    ("text", "said"),
    [("[x](absent.md)", "absent.md"), ("[x](index.md#absent)", "absent"), (None, "missing.md")],
    ids=["broken-link", "broken-anchor", "missing-page"],
)
@pytest.mark.slow
def test_a_broken_site_does_not_build(tmp_path: Path, text: str | None, said: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n{text or ''}\n", encoding="utf-8")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[0]
    nav = "nav:\n  - Start: index.md\n" + ("" if text else "  - Missing: missing.md\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"{settings}\n{nav}", encoding="utf-8")
    done = _build_site(config, tmp_path / "site")
    assert done.returncode != 0
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def _commands(text: str) -> list[list[str]]:
    """Words of all `kafka-migration ...` commands in code blocks and code spans."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(kafka-migration [^`]+)`", text)
    return [line.split("#")[0].split() for line in lines if line.startswith("kafka-migration ")]


@cache
def _help(*name: str) -> str:
    """What a command shows as its help; the pages mention the same commands again and again."""
    shown = CliRunner().invoke(app, [*name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0, f"{' '.join(name)}: {shown.output}"
    return shown.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_in_the_pages_exist(page: Path) -> None:
    for words in _commands(page.read_text(encoding="utf-8")):
        depth = 4 if words[1:3] == ["mirror", "translate"] else 3
        name = [word for word in words[1:depth] if re.fullmatch(r"[a-z][a-z-]+", word)]
        if not name or "{" in " ".join(words):
            continue
        shown = _help(*name)
        for option in [word.split("=")[0] for word in words if word.startswith("--")]:
            assert option in shown, f"{page.name}: {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_specs_in_the_pages_are_valid(page: Path) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL):
        data = yaml.safe_load(block)
        if isinstance(data, dict) and "migration_id" in data:
            parse_spec(data)


def test_every_make_target_in_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    pages = [*PAGES, ROOT / "TESTING.md", ROOT / "CONTRIBUTING.md"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", text, flags=re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"


def test_every_target_of_the_makefile_that_people_use_has_a_help_text() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    helped = set(re.findall(r"^([a-z0-9-]+):.*## ", text, flags=re.MULTILINE))
    assert {
        *("env", "demo", "test", "test-fast", "test-integration", "test-e2e", "bench", "soak", "lint", "docs"),
        *("clean", "lock"),
    } <= helped


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == airflow_provider_kafka_migration.__version__
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_setting_of_the_provider_is_documented() -> None:
    options = get_provider_info()["config"]["kafka_migration"]["options"]
    page = (DOCS / "airflow.md").read_text(encoding="utf-8")
    assert [name for name in sorted(options) if f"| `{name}` |" not in page] == []


def test_modules_that_the_test_page_names_are_there() -> None:
    text = (ROOT / "TESTING.md").read_text(encoding="utf-8")
    named = {name.split(".")[1] for name in re.findall(r"\bharness\.\w+", text)}
    assert named, "nothing was found"
    there = {path.stem for path in (ROOT / "harness").iterdir()}
    assert sorted(named - there) == []
    fixtures = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    assert all(f"def {name}(" in fixtures for name in ("source_cluster", "target_cluster", "unique_name"))
