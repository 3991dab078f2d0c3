"""The program's own folders. Nothing is created here: who writes a file makes its folder.

Where they are is the platform's custom (XDG on Linux, Library on macOS, AppData on Windows);
LLMRUN_CONFIG_DIR, LLMRUN_CACHE_DIR and LLMRUN_DATA_DIR move them. Models are not kept here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

APP_NAME = "llmrun"


def user_config_dir(env: Mapping[str, str]) -> Path:
    """Settings the user wrote: `config.yaml` and `profiles/`."""
    return _moved(env, "LLMRUN_CONFIG_DIR") or _platform_dir("user_config_dir")


def user_cache_dir(env: Mapping[str, str]) -> Path:
    """What can be made again: results of probes, snapshots of prefixes."""
    return _moved(env, "LLMRUN_CACHE_DIR") or _platform_dir("user_cache_dir")


def user_data_dir(env: Mapping[str, str]) -> Path:
    """What cannot: request log, input history, sessions."""
    return _moved(env, "LLMRUN_DATA_DIR") or _platform_dir("user_data_dir")


def user_config_file(env: Mapping[str, str]) -> Path:
    """The user's settings file, which need not exist."""
    return user_config_dir(env) / "config.yaml"


def _moved(env: Mapping[str, str], variable: str) -> Path | None:
    text = env.get(variable, "")
    return Path(text).expanduser().absolute() if text else None


def _platform_dir(function: str) -> Path:
    import platformdirs

    return Path(getattr(platformdirs, function)(APP_NAME, appauthor=False))
