"""Settings files as layers: the user's `config.yaml`, and named profiles.

A profile is a YAML file of settings: shipped ones in `configs/`, the user's in `profiles/` beside their
`config.yaml`; of the same name, the user's wins.
"""

from __future__ import annotations

from pathlib import Path

from llmrun.config.layers import Layer
from llmrun.config.resources import config_dir
from llmrun.config.schema import nearest
from llmrun.config.yaml_file import read_with_lines
from llmrun.errors import UsageError


def load_user_file(path: Path) -> Layer | None:
    """The user's settings, None without such a file. Raises UsageError if it cannot be read as YAML."""
    try:
        present = path.exists()
    except OSError:  # its folder is closed to us: reading it gives the reason
        present = True
    return _load(path, str(path)) if present else None


def load_profile(name: str, user_dir: Path) -> Layer:
    """The profile `name`; `user_dir` is the folder of the user's config file.

    Raises UsageError if there is none of that name, naming those there are.
    """
    paths = profile_paths(user_dir)
    if name not in paths:
        meant = nearest(name, paths)
        known = f"there are: {', '.join(sorted(paths))}"
        raise UsageError(f"no profile {name!r}", f"did you mean {meant}? {known}" if meant else known)
    return _load(paths[name], f"profile {name}")


def profile_paths(user_dir: Path) -> dict[str, Path]:
    """File of every known profile by name."""
    folders = (config_dir(), user_dir / "profiles")
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def _load(path: Path, label: str) -> Layer:
    values, lines = read_with_lines(path)
    return Layer(label, values, str(path), {keys[0]: line for keys, line in lines.items() if len(keys) == 1})
