"""A conversation keeps its turns in order and can take back the last one."""

from __future__ import annotations

from llmrun.chat.messages import Conversation, Message


def test_the_system_text_comes_first_and_only_when_there_is_one() -> None:
    conversation = Conversation("Be brief")
    conversation.add_user("Hi")
    assert list(conversation.messages) == [Message("system", "Be brief"), Message("user", "Hi")]
    conversation.system = ""
    assert list(conversation.messages) == [Message("user", "Hi")]


def test_undo_takes_back_a_question_with_its_answer() -> None:
    conversation = Conversation()
    conversation.add_user("one")
    conversation.add_assistant("1", "thinking")
    conversation.add_user("two")
    conversation.add_assistant("2", interrupted=True)
    assert conversation.undo() == "two"
    assert list(conversation.messages) == [Message("user", "one"), Message("assistant", "1", "thinking")]
    assert conversation.undo() == "one"
    assert conversation.undo() is None


def test_clear_keeps_the_system_text() -> None:
    conversation = Conversation("Be brief")
    conversation.add_user("Hi")
    conversation.clear()
    assert list(conversation.messages) == [Message("system", "Be brief")]
