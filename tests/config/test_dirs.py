from __future__ import annotations

from pathlib import Path

import pytest

from llmrun.config.dirs import user_cache_dir, user_config_dir, user_config_file, user_data_dir

DIRS = {
    "LLMRUN_CONFIG_DIR": user_config_dir,
    "LLMRUN_CACHE_DIR": user_cache_dir,
    "LLMRUN_DATA_DIR": user_data_dir,
}


@pytest.mark.parametrize("variable", DIRS)
def test_a_variable_moves_its_folder_only_and_nothing_is_made(variable: str, tmp_path: Path) -> None:
    moved = {variable: str(tmp_path / "elsewhere")}
    for name, folder in DIRS.items():
        assert (folder(moved) == tmp_path / "elsewhere") == (name == variable)
    assert list(tmp_path.iterdir()) == []


def test_without_variables_the_platform_s_folders_bear_the_program_s_name() -> None:
    for folder in DIRS.values():
        assert folder({}).is_absolute()
        assert "llmrun" in folder({}).parts


def test_a_relative_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert user_config_file({"LLMRUN_CONFIG_DIR": "c"}) == tmp_path / "c" / "config.yaml"
