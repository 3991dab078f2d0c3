"""Laws of the text that leaves the pipeline, for scripts cut into tokens anywhere."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmrun.documents.requests import completion_document, stream_record

from tests.support.requests import Answered, Desk

WORDS = (
    "a",
    " ",
    "\n",
    "STOP",
    "ST",
    "OP",
    "é",
    "語",
    "🦙",
    "<think>",
    "</think>",
    "<thi",
    "[/INST]",
    "\t",
    "x\r\n",
)
STOPS = ("STOP", "OPS", "語🦙", "</think>a", "aa")
law = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A text, and its bytes in pieces that need not be characters."""
    text = "".join(draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12)))
    data = text.encode()
    places = draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=8))
    cuts = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return text, [data[a:b] for a, b in pairwise(cuts)]


def stops() -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(STOPS), max_size=2)


def check_stream(answered: Answered) -> None:
    """What streamed is what the completion holds, in text, tokens and JSON."""
    completion = answered.completion
    assert answered.streamed("answer") == completion.text
    assert answered.streamed("reasoning") == completion.reasoning
    assert sum(token.n for token in answered.tokens) == completion.stats.generated_tokens
    lines = [record for event in answered.events if (record := stream_record(event)) is not None]
    joined = "".join(
        str(line["text"]) for line in lines if line["event"] == "token" and line["kind"] == "answer"
    )
    assert joined == completion_document(completion)["text"]
    times = [float(str(line["t_ms"])) for line in lines]
    assert times == sorted(times)


@law
@example(("🦙", [b"\xf0", b"\x9f", b"\xa6", b"\x99"]), [])
@given(cut_texts(), stops())
def test_cutting_changes_nothing(desk: Desk, cut: tuple[str, list[bytes]], stop: list[str]) -> None:
    text, pieces = cut
    whole = desk.run([text], stop=stop)
    parts = desk.run(pieces, stop=stop)
    check_stream(whole)
    check_stream(parts)
    assert (parts.completion.text, parts.completion.reasoning) == (
        whole.completion.text,
        whole.completion.reasoning,
    )
    assert "\ufffd" not in parts.completion.text + parts.completion.reasoning
    assert not any(s in parts.completion.text for s in stop)


@law
@given(cut_texts(), stops())
def test_raw_text_comes_out_as_it_is_up_to_the_first_stop(
    desk: Desk, cut: tuple[str, list[bytes]], stop: list[str]
) -> None:
    text, pieces = cut
    answered = desk.run(pieces, raw=True, stop=stop)
    check_stream(answered)
    places = [place for s in stop if (place := text.find(s)) >= 0]
    assert answered.completion.text == text[: min(places, default=len(text))]
    assert answered.completion.reasoning == ""


@law
@given(cut_texts(), st.integers(1, 6))
def test_a_token_limit_cuts_between_characters(desk: Desk, cut: tuple[str, list[bytes]], limit: int) -> None:
    _, pieces = cut
    answered = desk.run(pieces, raw=True, max_tokens=limit)
    check_stream(answered)
    expected = b"".join(pieces[:limit]).decode("utf-8", "ignore")
    assert answered.completion.text == expected
    assert answered.completion.finish_reason == ("length" if limit <= len(pieces) else "stop")


@law
@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=8))
def test_any_bytes_become_valid_text(desk: Desk, pieces: list[bytes]) -> None:
    answered = desk.run(pieces, raw=True)
    check_stream(answered)
    for token in answered.tokens:
        token.text.encode("utf-8")
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert whole.startswith(answered.completion.text)
