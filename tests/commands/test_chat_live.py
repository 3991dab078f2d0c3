"""The live view of `llmrun chat` on a terminal whose screen and scrollback are read back."""

from __future__ import annotations

import re
import unicodedata
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.support.cli import Cli, Terminal
from tests.support.puppet import write_puppet
from tests.support.requests import CHAT_TEMPLATE
from tests.support.screen import lines_of_plain
from tests.support.talk import Talk, said

GREEDY = ("--temp", "0", "-c", "max")
LABELS = ["generation", "prompt eval", "TTFT", "KV cache", "context", "prefix cache", "status"]
COLOUR = re.compile(rb"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|4[0-7]|38|48)[0-9;]*m")
TOKENS = 3000
PARTS = re.compile(r"line \d+|日\d+|o\u0308\d+|ö\d+")


def mixed_script() -> list[str]:
    """Long and short lines, wide and combining characters, tabs; in pieces of a few characters."""
    script: list[str] = []
    for number in range(40):
        words = [
            f"{word}{number} " for word in ("some", "of", "the", "words", "in", "a", "row", "are", "long")
        ]
        script += [f"日本{number}", f"e\u0301{number}\t", *words, f"#{number}\n"]
        if number % 10 == 0:
            script += [f"{number}" + "長" * 61, f"{number}" * 50 + "\n\n"]
    return script


def short_script() -> list[str]:
    """Lines that fit any screen, each of several tokens."""
    return [
        part for number in range(50) for part in (f"line {number} ", f"日{number} ", f"o\u0308{number}\n")
    ]


def endless(folder: Path, script: list[str]) -> Path:
    path = folder / "endless.gguf"
    return write_puppet(path, script, template=CHAT_TEMPLATE, loop=True, n_ctx=1 << 17).path


def said_by(script: list[str], tokens: int) -> str:
    return "".join(islice(cycle(script), tokens))


def answers(terminal: Terminal, *, panel: str = "╭") -> list[tuple[list[str], list[str]]]:
    """Lines of each answer, and of what stands between it and the next prompt."""
    found: list[tuple[list[str], list[str]]] = []
    for line in terminal.display:
        line = unicodedata.normalize("NFC", line)
        if line.startswith(">>> "):
            found.append(([], []))
        elif found and line != ">>>":
            text, figures = found[-1]
            (figures if figures or line.startswith(panel) else text).append(line)
    return [(without_empty_end(text), without_empty_end(figures)) for text, figures in found]


def without_empty_end(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines


def check_box(lines: list[str]) -> None:
    """A whole box with every row in it."""
    assert lines[0].startswith("╭")
    assert lines[0].endswith("╮")
    assert (lines[-1][0], lines[-1][-1]) == ("╰", "╯")
    rows = [line.strip("│ ") for line in lines[1:-1]]
    assert all((line[0], line[-1]) == ("│", "│") for line in lines[1:-1])
    assert [label for row in rows for label in LABELS if row.startswith(label)] == LABELS
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_the_scrollback_is_the_text_with_a_panel_under_each_answer(
    cli: Cli, tmp_path: Path, size: tuple[int, int]
) -> None:
    script = mixed_script()
    path = endless(tmp_path, script)
    columns, lines = size
    with cli.terminal("chat", path, *GREEDY, "-n", str(TOKENS), columns=columns, lines=lines) as terminal:
        talk = Talk(terminal)
        talk.says("one")
        talk.says("two")
        shown = answers(terminal)
        talk.leaves()
    assert len(shown) == 2
    for text, figures in shown:
        assert text == lines_of_plain(said_by(script, TOKENS), columns)
        check_box(figures)


def test_a_narrow_terminal_gets_figures_without_a_box(cli: Cli, tmp_path: Path) -> None:
    script = mixed_script()
    path = endless(tmp_path, script)
    with cli.terminal("chat", path, *GREEDY, "-n", str(TOKENS), columns=40, lines=12) as terminal:
        talk = Talk(terminal)
        talk.says("one")
        ((text, figures),) = answers(terminal, panel="generation")
        talk.leaves()
    assert text == lines_of_plain(said_by(script, TOKENS), 40)
    starts = ["KV CPU" if label == "KV cache" else label for label in LABELS]
    assert [line[: len(start)] for line, start in zip(figures, starts, strict=True)] == starts


def test_a_resize_in_the_middle_of_an_answer(cli: Cli, tmp_path: Path) -> None:
    """Frames that were under way may leave ragged ends of the panel; of the text nothing is lost or twice."""
    script, tokens = short_script(), 8000
    with cli.terminal("chat", endless(tmp_path, script), *GREEDY, "-n", str(tokens)) as terminal:
        talk = Talk(terminal)
        talk.enters("go")
        place = 0
        for columns, lines in ((40, 12), (100, 30), (60, 8)):
            place = terminal.wait_for("line 7 ", after=place + 4000)
            terminal.resize(columns, lines)
        terminal.wait_for("cut at", after=place)
        terminal.wait_until(lambda: terminal.line_at_cursor == ">>>", "prompt")
        display = [unicodedata.normalize("NFC", line) for line in terminal.display]
        talk.leaves()
    said_parts, shown_parts = (PARTS.findall(text) for text in (said_by(script, tokens), "\n".join(display)))
    assert shown_parts == [unicodedata.normalize("NFC", part) for part in said_parts]
    check_box(without_empty_end(display)[-2 - len(LABELS) - 1 : -1])


def test_ctrl_c_under_a_living_panel_leaves_a_clean_screen(cli: Cli, tmp_path: Path) -> None:
    script = mixed_script()
    with cli.terminal("chat", endless(tmp_path, script), *GREEDY) as terminal:
        talk = Talk(terminal)
        talk.enters("go")
        terminal.wait_until(lambda: terminal.raw.count(b"answering") > 2, "panel")
        terminal.send("\x03")
        terminal.wait_for("interrupted")
        terminal.wait_until(lambda: terminal.line_at_cursor == ">>>", "prompt")
        ((text, figures),) = answers(terminal)
        talk.leaves()
    ((_, answer),) = said(cli)
    assert said_by(script, 1 << 17).startswith(answer)
    assert text == lines_of_plain(answer, 80)
    check_box(figures)


def test_keys_pressed_during_an_answer_wait_for_the_prompt(cli: Cli, tmp_path: Path) -> None:
    script = mixed_script()
    with cli.terminal("chat", endless(tmp_path, script), *GREEDY, "-n", str(TOKENS)) as terminal:
        talk = Talk(terminal)
        talk.enters("go")
        terminal.wait_for("日本7")
        terminal.send("and then")
        terminal.wait_until(lambda: terminal.line_at_cursor == ">>> and then", "typed text")
        text, figures = answers(terminal)[0]
        assert text == lines_of_plain(said_by(script, TOKENS), 80)
        check_box(figures)
        terminal.send("\r\x04")
        assert terminal.ended() == 0
    assert [user for user, _ in said(cli)] == ["go", "and then"]


class TestReasoning:
    @pytest.fixture
    def thinker(self, tmp_path: Path) -> Path:
        script = ["<think>", "plan ", "it ", "well", "</think>", "\n\n", "Answer"]
        return write_puppet(tmp_path / "thinker.gguf", script).path

    @pytest.mark.parametrize("think", ["dim", "show", "hide"])
    def test_is_shown_as_asked(self, cli: Cli, thinker: Path, think: str) -> None:
        with cli.terminal("chat", thinker, *GREEDY, "--think", think) as terminal:
            talk = Talk(terminal)
            talk.says("go")
            ((text, figures),) = answers(terminal)
            talk.leaves()
            assert (b"\x1b[2mplan" in terminal.raw) == (think == "dim")
        assert [line for line in text if line] == (
            ["Answer"] if think == "hide" else ["plan it well", "Answer"]
        )
        (thought,) = [line for line in figures if "thought" in line]
        assert re.search(r"\d tokens", thought)
        assert said(cli) == [("go", "Answer")]

    def test_a_budget_closes_the_block(self, cli: Cli, thinker: Path) -> None:
        with cli.terminal("chat", thinker, *GREEDY, "--think-budget", "2") as terminal:
            talk = Talk(terminal)
            talk.says("go")
            talk.says("/set think_budget unlimited")
            talk.says("go")
            first, _, second = answers(terminal)
            talk.leaves()
        assert [line for line in first[0] if line] == ["plan", "Answer"]
        assert [line for line in second[0] if line] == ["plan it well", "Answer"]


def test_markdown_changes_no_character(cli: Cli, tmp_path: Path) -> None:
    script = [
        "# Title\n",
        "some **bo",
        "ld** and *it*, ",
        "`code`\n",
        "```py\n",
        "x = '**no**'\n",
        "``",
        "`\n* item\n",
    ]
    path = write_puppet(tmp_path / "markdown.gguf", script).path
    with cli.terminal("chat", path, *GREEDY, "--markdown") as terminal:
        talk = Talk(terminal)
        talk.says("go")
        ((text, figures),) = answers(terminal)
        talk.leaves()
        assert re.search(rb"\x1b\[[0-9;]*1[0-9;]*m[^\x1b]*Title", terminal.raw)
    assert text == lines_of_plain("".join(script), 80)
    check_box(figures)


def test_control_characters_of_the_model_are_shown(cli: Cli, tmp_path: Path) -> None:
    script = ["before\n", "\x1b]0;own", "ed\x07", "\x1b[2J", "\x1b[H", "\x1b[31m", "\u202e", "after"]
    path = write_puppet(tmp_path / "hostile.gguf", script).path
    with cli.terminal("chat", path, *GREEDY) as terminal:
        talk = Talk(terminal)
        talk.says("go")
        ((text, _),) = answers(terminal)
        talk.leaves()
        assert b"\x1b]0" not in terminal.raw
        assert b"\x1b[31m" not in terminal.raw
    assert text == ["before", "␛]0;owned␇␛[2J␛[H␛[31m\\u202eafter"]
    assert said(cli) == [("go", "".join(script))]


def test_no_colour_where_none_is_wanted(cli: Cli, model: Path) -> None:
    with cli.terminal("chat", model, *GREEDY, env={"NO_COLOR": "1"}) as terminal:
        talk = Talk(terminal)
        talk.says("go")
        assert "error:" in talk.says("/nonsense")
        talk.leaves()
        assert COLOUR.search(terminal.raw) is None
        assert "\na short answer\n" in terminal.text
        assert all(f"\n{label}: " in terminal.text for label in LABELS)


def test_a_dumb_terminal_gets_plain_lines(cli: Cli, model: Path) -> None:
    with cli.terminal("chat", model, *GREEDY, env={"TERM": "dumb"}) as terminal:
        terminal.wait_for(">>>")
        terminal.send("go\n")
        terminal.wait_for("status")
        terminal.wait_for(">>>", after=10)
        terminal.send("/help\n")
        terminal.wait_for("/exit")
        terminal.send("\x04")
        assert terminal.ended() == 0
        assert all(f"\n{label}: " in terminal.text for label in LABELS)
        assert b"\x1b" not in terminal.raw
        assert "\na short answer\n" in terminal.text


@pytest.mark.parametrize(("panel", "rows"), [("line", 1), ("off", 0)])
def test_fewer_figures(cli: Cli, model: Path, panel: str, rows: int) -> None:
    with cli.terminal("chat", model, *GREEDY, "--panel", panel, columns=120) as terminal:
        talk = Talk(terminal)
        talk.says("go")
        ((text, _),) = answers(terminal)
        talk.leaves()
    assert text[0] == "a short answer"
    assert len(text) == 1 + rows
    assert ("tok/s" in text[-1]) == bool(rows)
