"""Every setting's flag does something, and help shows each of them at any width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmrun.config.kinds import BiasMap, Choice, Number, Shares, Switch, TextList
from llmrun.config.schema import KV_TYPE, SETTINGS, Setting

from tests.support.cli import Cli

OF_DEVICES = {"tensor_split", "main_gpu", "override_tensor", "rpc", "strict_offload"}
"""They need devices, which must be there: tests of offload run with them."""
OF_CHATS = {"overflow", "overflow_headroom"}
FLAGGED = [setting for setting in SETTINGS if setting.flag]
COMMANDS = ((), ("run",), ("chat",), ("show",), ("config",), ("config", "show"), ("config", "path"))


def another_value(setting: Setting) -> tuple[list[str], object]:
    """Words of a command line that change the setting, and its value in JSON then."""
    kind, flag = setting.kind, setting.flag
    if isinstance(kind, Switch) or setting.name == "stats":
        value = not setting.default if isinstance(kind, Switch) else "on"
        return ([f"--no-{flag.lstrip('-')}"] if value is False else [flag]), value
    if isinstance(kind, Choice):
        option = next(o for o in reversed(kind.options) if o != setting.default)
        return [flag, option], option
    if isinstance(kind, Number):
        whole = 3 if kind.low is None or kind.low <= 3 <= (kind.high or 3) else int(kind.low) + 1
        if setting.default == whole:
            whole += 1
        return ([flag, str(whole)], whole) if kind.whole else ([flag, "0.75"], 0.75)
    if isinstance(kind, BiasMap):
        return [flag, "5-2.5"], {"5": -2.5}
    if isinstance(kind, TextList):
        return [flag, "one=a:1", flag, "two=b:2"], ["one=a:1", "two=b:2"]
    if isinstance(kind, Shares):
        return [flag, "3,1"], [3.0, 1.0]
    return [flag, "a text"], "a text"


@pytest.mark.parametrize("setting", FLAGGED, ids=[s.name for s in FLAGGED])
def test_a_flag_sets_its_setting_and_says_so(cli: Cli, setting: Setting) -> None:
    words, value = another_value(setting)
    document = cli.here("config", "show", "--json", *words).document
    assert document["settings"][setting.name] == value != setting.default
    assert document["sources"][setting.name] == f"flag {setting.flag}"
    others = {s.name for s in SETTINGS} - {setting.name, "n_threads", "prefix_cache_mib"}  # set for all tests
    assert {document["sources"][name] for name in others} == {"built-in"}


@pytest.mark.parametrize(
    ("short", "words"),
    [
        (("-ts", "3,1"), ("--tensor-split", "3,1")),
        (("-ts", "3/1"), ("--tensor-split", "3,1")),
        (("-cmoe",), ("--cpu-moe",)),
        (("-ncmoe", "3"), ("--n-cpu-moe", "3")),
        (("-ot", "a=CPU"), ("--override-tensor", "a=CPU")),
        (("-nkvo",), ("--no-kv-offload",)),
        (("-nkvo", "-kvo"), ("--no-kv-offload",)),
        (("--no-kv-offload", "-kvo"), ("--kv-offload",)),
    ],
)
def test_short_spellings(cli: Cli, short: tuple[str, ...], words: tuple[str, ...]) -> None:
    """As llama.cpp's tools have them."""
    found = cli.here("config", "show", "--json", *short)
    assert (found.status, found.document) == (0, cli.here("config", "show", "--json", *words).document)


@pytest.mark.parametrize("command", ["run", "chat", "vram"])
def test_commands_that_place_layers_know_the_short_spellings(cli: Cli, command: str, tmp_path: Path) -> None:
    words = ("-ts", "1", "-cmoe", "-ncmoe", "1", "-ot", "a=CPU", "-nkvo", "-ngl", "0")
    ended = cli.here(command, tmp_path / "none.gguf", *words, stdin=b"Hi")
    assert ended.status == 3, ended.err  # the model is missing, nothing is wrong with the words


def test_flags_reach_the_run(cli: Cli, model: Path) -> None:
    """All at once; the engine's own figures stand where it has a say."""
    made = {"flash_attn": "on", "n_ctx": 256, "n_batch": 256, "n_ubatch": 256}
    words: list[str] = []
    expected: dict[str, object] = {}
    for setting in [setting for setting in FLAGGED if setting.name not in {*OF_DEVICES, *OF_CHATS}]:
        flags, value = another_value(setting)
        if setting.name in made:
            value = made[setting.name]
            flags = [setting.flag, str(value)]
        words += flags
        expected[setting.name] = value
    ended = cli.here("run", model, "x", *words, "--json")
    assert ended.status == 0, ended.err
    settings = ended.document["settings"]
    assert {name: settings[name] for name in expected} == expected


def test_one_flag_sets_both_cache_types(cli: Cli) -> None:
    document = cli.here("config", "show", "--json", KV_TYPE.flag, "q8_0", "-ctv", "f16").document
    assert (document["settings"]["type_k"], document["settings"]["type_v"]) == ("q8_0", "f16")


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_the_terminal(cli: Cli, command: tuple[str, ...], columns: int) -> None:
    ended = cli.here(*command, "--help", env={"COLUMNS": str(columns)})
    assert (ended.status, ended.err) == (0, "")
    assert max(map(len, ended.text.splitlines())) <= columns
    assert "Usage: llmrun" in ended.text
    assert "\x1b" not in ended.text
    assert cli.here(*command, "-h", env={"COLUMNS": str(columns)}).out == ended.out


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("command", ["run", "chat"])
def test_help_names_every_flag(cli: Cli, command: str, columns: str) -> None:
    shown = flags_in(cli.here(command, "--help", env={"COLUMNS": columns}).text)
    left_out = OF_CHATS if command == "run" else set()
    assert {s.flag for s in (*FLAGGED, KV_TYPE) if s.name not in left_out} <= shown
    assert not {s.flag for s in FLAGGED if s.name in left_out} & shown


def test_help_leaves_more_than_half_of_a_terminal_to_the_words(cli: Cli) -> None:
    lines = cli.here("run", "--help", env={"COLUMNS": "80"}).text.splitlines()
    sections = [line for line in lines if re.fullmatch(r"[A-Z].*:", line)]
    assert sections == ["Arguments:", "Options:", "Memory:", "Hardware:", "Context:", "Sampling:", "Answer:"]
    assert max(len(line) - len(line.lstrip()) for line in lines) <= 35


@pytest.mark.parametrize("command", [("chat",), ("config", "show")], ids=" ".join)
def test_help_on_a_narrow_terminal_cuts_no_flag_short(cli: Cli, command: tuple[str, ...]) -> None:
    ended = cli(*command, "--help", env={"COLUMNS": "40"})
    assert ended.status == 0
    assert max(map(len, ended.text.splitlines())) <= 50  # the least that the parser's layout takes
    assert {setting.flag for setting in (*FLAGGED, KV_TYPE)} <= flags_in(ended.text)


@pytest.mark.parametrize("command", [(), ("config",)])
def test_nothing_asked_shows_the_help(cli: Cli, command: tuple[str, ...]) -> None:
    ended = cli.here(*command)
    assert ended.status == 2
    assert "Usage: llmrun" in ended.text + ended.err
    assert "error" not in ended.err


def test_the_version(cli: Cli) -> None:
    ended = cli.here("--version")
    assert ended.status == 0
    assert re.fullmatch(r"llmrun \d+\.\d+\.\d+\S*\n", ended.text)


@pytest.mark.parametrize("words", [("nosuch",), ("run",), ("run", "-c"), ("config", "show", "extra")])
def test_a_wrong_command_line_is_two_lines(cli: Cli, words: tuple[str, ...]) -> None:
    ended = cli.here(*words)
    assert (ended.status, ended.out) == (2, b"")
    assert ended.err.count("\n") <= 2
    assert "--help" in ended.err


def test_a_missing_argument_shows_the_usage(cli: Cli) -> None:
    """Whoever writes `run -m model.gguf`, as llama.cpp has it, sees where the model goes."""
    for words in (("run",), ("run", "-m", "model.gguf")):
        assert "llmrun run [OPTIONS] MODEL [PROMPT]..." in cli.here(*words).err
