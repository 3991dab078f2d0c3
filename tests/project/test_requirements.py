"""The lock files pin everything by hash, name no index, and agree with each other and with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted([ROOT / "requirements.lock", *(ROOT / "requirements").glob("*.lock")])


def entries(path: Path) -> list[str]:
    """The requirements of a lock file, continued lines joined."""
    joined = path.read_text().replace("\\\n", " ")
    return [line for line in joined.splitlines() if line and not line.startswith("#")]


def pins(path: Path) -> set[tuple[str, str]]:
    """(name with marker, version) of every entry."""
    found = set()
    for entry in entries(path):
        match = re.match(r"([\w.-]+)==(\S+)\s*(;[^#]*?)?\s*--hash", entry)
        assert match, entry
        found.add((match[1] + (match[3] or "").strip(), match[2]))
    return found


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_entry_is_an_exact_version_with_a_hash(path: Path) -> None:
    assert entries(path)
    for entry in entries(path):
        assert re.match(r"[\w.-]+==\S+ ", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_no_index_is_named(path: Path) -> None:
    assert not re.search(r"://|--(extra-)?index-url|--find-links|@ file", path.read_text())


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_source_of_the_lock_is_here(path: Path) -> None:
    source = re.search(r"`make lock` from (\S+)\.\s", path.read_text())
    assert source
    assert (ROOT / source[1]).is_file()


def test_locks_agree_on_every_version() -> None:
    versions: dict[str, str] = {}
    for path in LOCKS:
        for name, version in pins(path):
            assert versions.setdefault(name, version) == version, (name, path.name)


def test_runtime_lock_covers_the_declared_dependencies() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[^\w-]", requirement)[0].lower().replace("_", "-") for requirement in declared}
    locked = {name.split(";")[0] for path in LOCKS for name, _ in pins(path)}
    assert names <= locked
    assert "llama-cpp-python" not in {name for name, _ in pins(ROOT / "requirements.lock")}


def test_one_version_of_the_engine() -> None:
    found = {
        name: re.findall(r"llama-cpp-python==([\w.]+)", (ROOT / name).read_text())
        for name in ("pyproject.toml", "requirements/engine.in", "requirements/engine.lock")
    }
    assert len({version for versions in found.values() for version in versions}) == 1, found
    assert all(found.values())
