"""The shipped files are found from a checkout, an editable install and a wheel, wherever one stands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from llmrun.config import resources

ROOT = Path(__file__).resolve().parents[2]
ASK = "from llmrun.config.resources import *; print(config_dir()); print(catalogue_path())"


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """The command's stdout; its failure shows what it said."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    answer = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_checkout() -> None:
    assert resources.config_dir() == ROOT / "configs"
    assert resources.catalogue_path() == ROOT / "models.yaml"


def test_working_directory_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "models.yaml").write_text("models: {}")
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert resources.config_dir() == ROOT / "configs"
    assert resources.catalogue_path() == ROOT / "models.yaml"


def test_files_of_a_neighbour_are_not_ours(tmp_path: Path) -> None:
    """A package without its data must not pick up what lies two folders above site-packages."""
    site = tmp_path / "env" / "site"
    shutil.copytree(ROOT / "cli" / "llmrun", site / "llmrun", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "env" / "configs").mkdir()
    (tmp_path / "env" / "models.yaml").write_text("models: {}")
    question = (
        "from llmrun.config import resources\n"
        "for ask in (resources.config_dir, resources.catalogue_path):\n"
        "    try: print(ask())\n"
        "    except FileNotFoundError: print('missing')"
    )
    assert run(sys.executable, "-c", question, cwd=tmp_path, path=site).split() == ["missing", "missing"]


def new_venv(tmp_path: Path) -> Path:
    """The interpreter of a new environment that holds nothing, not even pip."""
    folder = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=tmp_path)
    return folder / "bin" / "python"


def pip_into(python: Path, tmp_path: Path, *arguments: str | Path) -> None:
    """Install with this environment's pip and build tools into another environment, without any index."""
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install")
    run(*pip, "--no-deps", "--no-index", "--quiet", *arguments, cwd=tmp_path, path=site_packages())


def site_packages() -> Path:
    """Where the dependencies are. On PYTHONPATH its .pth files stay unread, so llmrun itself is not found."""
    return Path(sysconfig.get_path("purelib"))


@pytest.mark.slow
@pytest.mark.parametrize("through_sdist", [False, True], ids=["from the checkout", "from the sdist"])
def test_wheel(tmp_path: Path, through_sdist: bool) -> None:
    dist = tmp_path / "dist"
    source = ROOT
    if through_sdist:
        run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", dist, cwd=ROOT)
        shutil.unpack_archive(next(dist.glob("*.tar.gz")), tmp_path, filter="data")
        source = next(tmp_path.glob("llmrun-*"))
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, cwd=source)
    python = new_venv(tmp_path)
    pip_into(python, tmp_path, next(dist.glob("*.whl")))

    found = run(python, "-c", ASK, cwd=tmp_path, path=site_packages()).splitlines()
    configs, catalogue = Path(found[0]), Path(found[1])
    assert configs.is_relative_to(tmp_path / "venv")
    assert sorted(p.name for p in configs.iterdir()) == sorted(p.name for p in (ROOT / "configs").iterdir())
    assert catalogue.is_relative_to(tmp_path / "venv")
    assert catalogue.read_bytes() == (ROOT / "models.yaml").read_bytes()
    assert "Usage: llmrun" in run(python.with_name("llmrun"), "--help", cwd=tmp_path, path=site_packages())


@pytest.mark.slow
def test_editable_install(tmp_path: Path) -> None:
    python = new_venv(tmp_path)
    pip_into(python, tmp_path, "--no-build-isolation", "--editable", ROOT)
    found = run(python, "-c", ASK, cwd=tmp_path, path=site_packages()).splitlines()
    assert found == [str(ROOT / "configs"), str(ROOT / "models.yaml")]
