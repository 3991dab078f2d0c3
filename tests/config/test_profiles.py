from __future__ import annotations

from pathlib import Path

import pytest

from llmrun.config.layers import Effective, resolve
from llmrun.config.profiles import load_profile, load_user_file, profile_paths
from llmrun.config.resources import config_dir
from llmrun.config.schema import BY_NAME, UNQUANTISED_KV_TYPES
from llmrun.errors import UsageError

SHIPPED = ["cpu", "default", "long-context", "low-memory"]


def with_profile(name: str, folder: Path) -> Effective:
    return resolve(profile=load_profile(name, folder))


def test_the_shipped_profiles_are_all_there(tmp_path: Path) -> None:
    assert sorted(profile_paths(tmp_path)) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_holds_known_settings_and_explains_each(name: str, tmp_path: Path) -> None:
    layer = load_profile(name, tmp_path)
    effective = resolve(profile=layer)
    assert layer.values
    for key in layer.values:
        assert effective.source(key) == f"profile {name}"
    blocks = (config_dir() / f"{name}.yaml").read_text(encoding="utf-8").strip().split("\n\n")
    assert all(block.startswith("#") for block in blocks)
    assert set(layer.lines) == set(layer.values)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_profile_works_whatever_the_user_s_file_says_about_the_cache(name: str, tmp_path: Path) -> None:
    user = tmp_path / "config.yaml"
    for text in ("kv_type: q4_0\nflash_attn: auto\n", "flash_attn: off\n"):
        user.write_text(text, encoding="utf-8")
        effective = resolve(user_file=load_user_file(user), profile=load_profile(name, tmp_path))
        assert effective.source("type_v") == f"profile {name}"


def test_the_default_profile_is_the_built_in_behaviour(tmp_path: Path) -> None:
    effective = with_profile("default", tmp_path)
    assert effective.values == resolve().values


def test_the_low_memory_profile_takes_less_of_everything(tmp_path: Path) -> None:
    low, usual = with_profile("low-memory", tmp_path), resolve()
    assert isinstance(low.context.n_ctx, int)
    assert 0 < low.context.n_ctx < 8192
    assert low.hardware.n_ubatch < usual.hardware.n_ubatch
    assert low.context.type_k == low.context.type_v == "q8_0"
    assert low.hardware.flash_attn == "on"
    assert not low.context.swa_full


def test_the_long_context_profile_takes_the_whole_window_for_one_sequence(tmp_path: Path) -> None:
    long = with_profile("long-context", tmp_path)
    assert long.context.n_ctx == 0
    assert long.context.n_parallel == 1
    assert long.context.type_v not in UNQUANTISED_KV_TYPES
    assert long.hardware.flash_attn == "on"


def test_the_cpu_profile_puts_nothing_on_a_gpu(tmp_path: Path) -> None:
    cpu = with_profile("cpu", tmp_path)
    assert cpu.hardware.n_gpu_layers == 0
    assert not cpu.hardware.offload_kqv
    assert cpu.hardware.flash_attn == "off"


def test_the_user_s_profile_wins_over_a_shipped_one_of_the_same_name(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "cpu.yaml").write_text("top_k: 3\n", encoding="utf-8")
    (folder / "mine.yaml").write_text("top_k: 4\n", encoding="utf-8")
    assert with_profile("cpu", tmp_path).values == {**resolve().values, "top_k": 3}
    assert with_profile("mine", tmp_path).sampling.top_k == 4


@pytest.mark.parametrize("name", ["low_memory", "lowmemory"])
def test_an_unknown_profile_names_the_nearest_and_the_known_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_profile(name, tmp_path)
    assert "low-memory?" in caught.value.hint
    assert all(known in caught.value.hint for known in SHIPPED)


@pytest.mark.parametrize("name", ["", "..", "../configs/cpu", "/etc/passwd", "cpu.yaml"])
def test_a_profile_is_a_name_not_a_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load_profile(name, tmp_path)


def test_without_a_user_file_there_is_no_layer(tmp_path: Path) -> None:
    assert load_user_file(tmp_path / "config.yaml") is None


def test_a_folder_closed_to_the_user_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", closed)
    with pytest.raises(UsageError):
        load_user_file(tmp_path / "config.yaml")


def test_a_mistake_in_a_file_names_its_path_and_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("# mine\n\ntop_k: 4\n'n_ctx' : -7  # oops\n", encoding="utf-8-sig")
    with pytest.raises(UsageError) as caught:
        resolve(user_file=load_user_file(path))
    assert f"{path}, line 4" in caught.value.message
    assert "-7" in caught.value.message


def test_bare_yaml_words_mean_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("flash_attn: off\nuse_mmap: no\nseed: null\nstop: ['a', '\\n']\n", encoding="utf-8")
    effective = resolve(user_file=load_user_file(path))
    assert effective.hardware.flash_attn == "off"
    assert effective.hardware.use_mmap is False
    assert effective.sampling.seed is None
    assert effective.output.stop == ("a", "\\n")
    assert effective.source("seed") == str(path)


def test_an_empty_user_file_sets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("# nothing yet\n", encoding="utf-8")
    assert resolve(user_file=load_user_file(path)).values == resolve().values
    assert set(BY_NAME) == set(resolve().values)
