"""Setup does each step once, again only when what it depends on changed, and leaves stdout alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import setup_env
from scripts.setup_env import SetupError, Step


def steps(ran: list[str], **depends: str) -> list[Step]:
    """Steps that only note their names."""
    return [Step(name, name, value, lambda name=name: ran.append(name)) for name, value in depends.items()]  # type: ignore[misc]


def test_second_call_does_nothing(tmp_path: Path) -> None:
    ran: list[str] = []
    setup_env.run_steps(steps(ran, a="1", b="1"), tmp_path / "stamps")
    assert ran == ["a", "b"]
    setup_env.run_steps(steps(ran, a="1", b="1"), tmp_path / "stamps")
    assert ran == ["a", "b"]


def test_changed_step_runs_again_alone(tmp_path: Path) -> None:
    ran: list[str] = []
    setup_env.run_steps(steps(ran, a="1", b="1", c="1"), tmp_path)
    ran.clear()
    setup_env.run_steps(steps(ran, a="1", b="2", c="1"), tmp_path)
    assert ran == ["b"]


def test_failed_step_is_tried_again(tmp_path: Path) -> None:
    def fail() -> None:
        raise SetupError("no")

    (tmp_path / "a").write_text("old")
    with pytest.raises(SetupError):
        setup_env.run_steps([Step("a", "a", "new", fail)], tmp_path)
    ran: list[str] = []
    setup_env.run_steps(steps(ran, a="old"), tmp_path)
    assert ran == ["a"]


def test_commands_write_to_stderr_only(capfd: pytest.CaptureFixture[str]) -> None:
    setup_env.call([sys.executable, "-c", "print('noise')"])
    setup_env.say("a note")
    out, err = capfd.readouterr()
    assert out == ""
    assert "noise" in err
    assert "a note" in err


def test_commands_do_not_read_the_programs_input() -> None:
    setup_env.call([sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))"])


def test_failing_command_is_named() -> None:
    with pytest.raises(SetupError, match="status 7"):
        setup_env.call([sys.executable, "-c", "import sys; sys.exit(7)"])


def test_backend_is_remembered(tmp_path: Path) -> None:
    assert setup_env.remembered_backend(tmp_path) == "cpu"
    (tmp_path / setup_env.BACKEND).write_text("vulkan")
    assert setup_env.remembered_backend(tmp_path) == "vulkan"


def test_dev_adds_to_chat(tmp_path: Path) -> None:
    chat = [(step.name, step.depends) for step in setup_env.make_steps("chat", "cpu", tmp_path)]
    dev = [(step.name, step.depends) for step in setup_env.make_steps("dev", "cpu", tmp_path)]
    assert dev[: len(chat)] == chat
    assert len(dev) > len(chat)


def test_only_the_engine_depends_on_the_backend(tmp_path: Path) -> None:
    cpu = {step.name: step.depends for step in setup_env.make_steps("dev", "cpu", tmp_path)}
    cuda = {step.name: step.depends for step in setup_env.make_steps("dev", "cuda", tmp_path)}
    assert {name for name in cpu if cpu[name] != cuda[name]} == {"engine"}
