"""`llmrun config`: every value with its source, and where the files are."""

from __future__ import annotations

from llmrun.config.schema import SETTINGS

from tests.support.cli import Cli

NOTHING_SET = {"LLMRUN_THREADS": "", "LLMRUN_PREFIX_CACHE_MIB": ""}


def test_every_row_has_a_value_and_a_source(cli: Cli) -> None:
    ended = cli.here("config", "show", env=NOTHING_SET)
    assert (ended.status, ended.err) == (0, "")
    rows = [line.split() for line in ended.text.splitlines()]
    assert [row[0] for row in rows] == [setting.name for setting in SETTINGS]
    assert {row[-1] for row in rows} == {"built-in"}
    assert all(len(row) >= 3 for row in rows)


def test_json_names_the_same(cli: Cli) -> None:
    document = cli.here("config", "show", "--json").document
    assert document["schema"] == "llmrun.config/1"
    names = {setting.name for setting in SETTINGS}
    assert set(document["settings"]) == set(document["sources"]) == names
    assert document["sources"]["n_threads"] == "LLMRUN_THREADS"


def test_each_layer_is_named(cli: Cli) -> None:
    cli.config_dir.mkdir()
    file = cli.config_dir / "config.yaml"
    file.write_text("top_k: 3\n")
    words = ("config", "show", "--profile", "low-memory", "-n", "5", "--json")
    sources = cli.here(*words, env={"LLMRUN_SEED": "9"}).document["sources"]
    assert str(file) in sources["top_k"]
    assert "low-memory" in sources["n_ctx"]
    assert sources["seed"] == "LLMRUN_SEED"
    assert sources["max_tokens"] == "flag -n"
    assert sources["top_p"] == "built-in"


def test_an_unknown_profile_is_a_usage_error(cli: Cli) -> None:
    ended = cli.here("config", "show", "--profile", "low-memroy")
    assert ended.status == 2
    assert "low-memory" in ended.err


def test_a_mistake_in_the_file_is_found_by_line(cli: Cli) -> None:
    cli.config_dir.mkdir()
    file = cli.config_dir / "config.yaml"
    for text, line in (
        ("top_k: 3\nn_ctx: [\n", "line"),
        ("top_k: 3\n\nno_such: 1\n", "line 3"),
        ("top_k: x\n", "line 1"),
    ):
        file.write_text(text)
        for words in (("config", "show"), ("run", "none.gguf", "x"), ("chat",)):
            ended = cli.here(*words, stdin=b"x")
            assert ended.status == 2, (text, words)
            assert str(file) in ended.err
            assert line in ended.err
            assert ended.err.count("\n") <= 2


def test_a_mistyped_variable_is_refused(cli: Cli) -> None:
    ended = cli.here("config", "show", env={"LLMRUN_TEMPRATURE": "1"})
    assert ended.status == 2
    assert "LLMRUN_TEMPERATURE" in ended.err


def test_where_the_folders_are(cli: Cli) -> None:
    hub = cli.folder / "hub"
    text = cli.here("config", "path", env={"HF_HUB_CACHE": str(hub)}).text
    for place in (cli.config_dir / "config.yaml", hub, cli.data_dir, cli.cache):
        assert str(place) in text


def test_values_are_shown_on_one_line_without_control_characters(cli: Cli) -> None:
    ended = cli.here("config", "show", "-sys", "one\ntwo\x1b[31m", "--stop", "\u202e")
    assert len(ended.text.splitlines()) == len(SETTINGS)
    assert "\x1b" not in ended.text
    assert "\u202e" not in ended.text
