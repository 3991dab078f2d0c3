"""What the prefix measurements ask, and how they judge it; nothing is measured here."""

from __future__ import annotations

import pytest

from benchmarks import prefix_chat, prefix_runs
from benchmarks.conversations import Answer, Script, converse


def test_a_conversation_carries_its_answers_and_questions_stand_alone() -> None:
    asked: list[list[tuple[str, str]]] = []

    def ask(messages: list[dict[str, str]]) -> tuple[Answer, str]:
        asked.append([(m["role"], m["content"]) for m in messages])
        return Answer(0.1), f"answer {len(asked)}"

    assert len(list(converse(Script("be brief", ("one", "two")), ask))) == 2
    assert asked[1] == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "answer 1"),
        ("user", "two"),
    ]
    asked.clear()
    list(converse(Script("", ("one", "two"), independent=True), ask))
    assert asked == [[("user", "one")], [("user", "two")]]


def test_a_document_is_the_same_each_time_and_another_one_for_another_seed() -> None:
    one = prefix_runs.document(400, 1)
    assert one == prefix_runs.document(400, 1)
    assert one[:40] != prefix_runs.document(400, 2)[:40]
    assert len(prefix_runs.document(800, 1)) == pytest.approx(2 * len(one), rel=0.1)


def rounds(cold: float, again: float, other: float, inside: float) -> list[dict[str, list[Answer]]]:
    times = {prefix_runs.PROCESSES: (cold, again, other), prefix_runs.INSIDE: (cold, again, inside)}
    return [{side: [Answer(t, 100, 0) for t in found] for side, found in times.items()}]


@pytest.mark.parametrize(
    ("times", "with_s", "met"),
    [
        ((18.0, 0.17, 0.3, 0.25), 1.0, True),
        ((18.0, 0.19, 0.3, 0.25), 1.0, False),
        ((18.0, 0.17, 0.4, 0.25), 1.0, False),
        ((18.0, 0.17, 0.3, 0.25), 1.04, False),
    ],
)
def test_each_target_of_repeated_runs_counts(
    times: tuple[float, float, float, float], with_s: float, met: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prefix_runs.show(rounds(*times), [with_s], [1.0]) is met
    assert ("MISSED" in capsys.readouterr().out) is not met


@pytest.mark.parametrize(("second_turn", "met"), [(0.2, True), (0.3, False)])
def test_a_turn_must_be_as_fast_as_the_best(
    second_turn: float, met: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        prefix_chat.OURS: [[Answer(9.0, 50, 0), Answer(second_turn, 80, 60)]],
        prefix_chat.SERVER: [[Answer(1.0), Answer(0.25)]],
        prefix_chat.CLASS: [[Answer(1.0), Answer(0.9)]],
    }
    assert prefix_chat.show(found) is met
    assert ("MISSED" in capsys.readouterr().out) is not met
