from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.ui.slash import Command, Message, Unknown, parse_line

KNOWN = ("help", "system", "set", "read", "regen", "clear", "exit", "save", "?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/help", Command("help")),
        ("/HELP  ", Command("help")),
        ("/?", Command("?")),
        ("/read My  Notes.txt ", Command("read", "My  Notes.txt")),
        ('/system Be "brief"', Command("system", 'Be "brief"')),
        ("/set\ttemperature 0.5", Command("set", "temperature 0.5")),
    ],
)
def test_commands(text: str, expected: Command) -> None:
    assert parse_line(text, KNOWN) == expected


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("hello /help", "hello /help"),
        ("//usr/bin/x fails", "/usr/bin/x fails"),
        ("///x", "//x"),
        (" /help", "/help"),
        ("// a comment", "// a comment"),
        ("/* a comment */", "/* a comment */"),
        ("/", "/"),
        ("/ help", "/ help"),
        ("  indented", "  indented"),
        ("  /help", " /help"),
        ("", ""),
    ],
)
def test_messages(text: str, sent: str) -> None:
    assert parse_line(text, KNOWN) == Message(sent)


@pytest.mark.parametrize("text", ["/help\nme", "//a\nb", " /a\nb", "/usr/bin/x\nfails", "/clear\n\nx"])
def test_several_lines_are_a_message_as_they_stand(text: str) -> None:
    assert parse_line(text, KNOWN, free_text=["system"]) == Message(text)


def test_free_text_may_have_several_lines() -> None:
    assert parse_line("/system Be brief.\n  Be kind.", KNOWN, ["system"]) == Command(
        "system", "Be brief.\n  Be kind."
    )
    assert parse_line("/help\n", KNOWN) == Command("help")


@pytest.mark.parametrize(
    ("word", "nearest"), [("hlep", "help"), ("sytem", "system"), ("rege", "regen"), ("SAVEE", "save")]
)
def test_unknown_commands_suggest_the_nearest(word: str, nearest: str) -> None:
    found = parse_line(f"/{word} x", KNOWN)
    assert isinstance(found, Unknown)
    assert found.suggestions[0] == nearest
    assert f"/{nearest}" in found.hint


def test_a_path_tells_how_to_send_it() -> None:
    found = parse_line("/usr/bin/help crashes", KNOWN)
    assert isinstance(found, Unknown)
    assert found.suggestions == ()
    assert parse_line(found.hint.split()[0], KNOWN) == Message("/usr/bin/help")


@given(st.text(st.sampled_from("/ha \n?x"), max_size=12))
def test_every_text_can_be_sent_literally(text: str) -> None:
    ways = [text, f"/{text}", f" {text}"]
    assert any(parse_line(way, KNOWN) == Message(text) for way in ways)
