"""Where the files that ship beside the code are: the profiles in `configs/` and the catalogue `models.yaml`.

They live at the top of the repository, where people look for them, and the wheel carries them inside the
package as `llmrun/_data/`. Both places are found from this module's own path, never from the working
directory: a program started in a folder that happens to hold a `configs/` must not read it.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "_data"
_CHECKOUT = _PACKAGE.parents[1]


def config_dir() -> Path:
    """Folder of the shipped YAML profiles.

    Raises FileNotFoundError if the installation lacks it, which is a fault of the package.
    """
    return _resource("configs")


def catalogue_path() -> Path:
    """The shipped model catalogue, `models.yaml`.

    Raises FileNotFoundError if the installation lacks it, which is a fault of the package.
    """
    return _resource("models.yaml")


def _resource(name: str) -> Path:
    for root in (_INSTALLED, _CHECKOUT):
        # a checkout is told from a site-packages folder two levels up by its pyproject.toml
        if root == _CHECKOUT and not (root / "pyproject.toml").is_file():
            continue
        if (found := root / name).exists():
            return found
    raise FileNotFoundError(f"{name} is in neither {_INSTALLED} nor {_CHECKOUT}; reinstall llmrun")
