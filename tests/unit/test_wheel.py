"""The wheel holds the package and what it reads, and nothing else; its metadata is what an index would show."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from the files of the checkout that git knows, or would."""
    home = tmp_path_factory.mktemp("wheel")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    with tarfile.open(home / "tree.tar", "w") as tree:
        for name in names:
            if (ROOT / name).exists():
                tree.add(ROOT / name, name)
    with tarfile.open(home / "tree.tar") as tree:
        tree.extractall(home / "tree", filter="data")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(home)]
    subprocess.run([*build, str(home / "tree")], check=True)
    (built,) = home.glob("holdfast-*-py3-none-any.whl")
    return zipfile.ZipFile(built)


def told(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_it_holds_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    files = {
        str(path.relative_to(source))
        for path in (source / "holdfast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == files
    assert {"holdfast/py.typed", "holdfast/spark/fair-scheduler.xml"} <= held


def test_it_brings_the_command_and_the_pytest_fixture(wheel: zipfile.ZipFile) -> None:
    entries = ConfigParser()
    entries.read_string(told(wheel, "entry_points.txt"))
    assert dict(entries["console_scripts"]) == {"holdfast": "holdfast.interfaces.cli:main"}
    assert dict(entries["pytest11"]) == {"holdfast": "holdfast.verify.plugin"}


def test_its_metadata_has_the_readme_the_extras_and_no_dependency_of_tests(wheel: zipfile.ZipFile) -> None:
    facts: Message = Parser().parsestr(told(wheel, "METADATA"))
    assert facts["Description-Content-Type"] == "text/markdown"
    assert str(facts.get_payload()).strip() == (ROOT / "README.md").read_text().strip()
    assert (facts["License-Expression"], facts["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert "Typing :: Typed" in facts.get_all("Classifier", [])
    extras = {"postgres", "kafka", "delta", "iceberg", "dev", "mutation"}
    assert set(facts.get_all("Provides-Extra", [])) == extras
    always = [one for one in facts.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert not [one for one in always if one.startswith(("pytest", "hypothesis", "mypy", "ruff"))]
