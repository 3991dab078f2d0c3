"""The tokens of a new turn begin with those of the history, as long as the text does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.chat.segments import Prompt, Segment
from llmrun.chat.turns import History, Tokenizer, prompt_tokens, splice

CONTROL = ("<s>", "<|user|>", "<|model|>", "<|end|>")
WORDS = ("unbeliev", "able", "un", "be", "liev", "Hi", "\n", "\n\n", ".\n\n", "  ", " there")
BOS, USER, MODEL, END = range(256, 260)


class ToyVocabulary:
    """Longest match over bytes, a few words and control tokens; `blank` puts one before a text that starts
    the prompt or follows a control token, as SentencePiece vocabularies do."""

    def __init__(self, *, add_bos: bool = True, blank: bool = False) -> None:
        self.add_bos, self.blank = add_bos, blank
        self.texts = [bytes([i]) for i in range(256)] + [t.encode() for t in (*CONTROL, *WORDS)]

    def id(self, text: str) -> int:
        return self.texts.index(text.encode())

    def piece(self, token: int) -> bytes:
        return self.texts[token]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [BOS] if add_special and self.add_bos else []
        rest = text.encode()
        after_control = True
        while rest:
            special = next((i for i in range(BOS, END + 1) if rest.startswith(self.texts[i])), None)
            if parse_special and special is not None:
                tokens.append(special)
                rest = rest[len(self.texts[special]) :]
                after_control = True
                continue
            if self.blank and after_control:
                rest = b" " + rest
            after_control = False
            words = [i for i in range(END + 1, len(self.texts)) if rest.startswith(self.texts[i])]
            token = max(words, key=lambda i: len(self.texts[i]), default=rest[0])
            tokens.append(token)
            rest = rest[len(self.texts[token]) :]
        return tokens

    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.tokenize, self.piece, self.add_bos, "<s>")

    def text(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode()


VOCABULARY = ToyVocabulary()
TOKENIZER = VOCABULARY.tokenizer()
SAMPLED = [VOCABULARY.id(word) for word in ("un", "be", "liev", "able")]


def prompt(text: str) -> Prompt:
    return Prompt((Segment(text, special=True),))


def ask(*turns: str, trim: bool = False) -> Prompt:
    """User and model turns in alternation, then the model's."""
    marks = ("<|user|>", "<|model|>")
    shown = [turn.strip() if trim else turn for turn in turns]
    return prompt("".join(f"{marks[i % 2]}{turn}<|end|>" for i, turn in enumerate(shown)) + "<|model|>")


def answered(question: Prompt, sampled: Sequence[int], history: History | None = None) -> History:
    return splice(history or History(), question, TOKENIZER).with_sampled(sampled, VOCABULARY.piece)


class TestBos:
    @pytest.mark.parametrize("text", ["Hi", "<s>Hi", "<s><s>Hi"])
    def test_exactly_one_where_the_vocabulary_adds_it(self, text: str) -> None:
        assert prompt_tokens(prompt(text), TOKENIZER) == [BOS, VOCABULARY.id("Hi")]

    @pytest.mark.parametrize(("text", "count"), [("Hi", 0), ("<s>Hi", 1), ("<s><s>Hi", 1)])
    def test_at_most_one_elsewhere(self, text: str, count: int) -> None:
        tokenizer = ToyVocabulary(add_bos=False).tokenizer()
        assert prompt_tokens(prompt(text), tokenizer) == [*[BOS] * count, VOCABULARY.id("Hi")]

    def test_what_the_user_typed_stays_text(self) -> None:
        typed = Prompt((Segment("<s>", special=False), Segment("Hi", special=True)))
        assert prompt_tokens(typed, TOKENIZER) == [BOS, *b"<s>", VOCABULARY.id("Hi")]

    def test_an_empty_prompt(self) -> None:
        assert prompt_tokens(Prompt(()), TOKENIZER) == [BOS]

    def test_a_vocabulary_without_bos(self) -> None:
        tokenizer = Tokenizer(ToyVocabulary(add_bos=False).tokenize, VOCABULARY.piece, False, "")
        assert prompt_tokens(prompt("Hi"), tokenizer) == [VOCABULARY.id("Hi")]


class TestSegments:
    def test_control_tokens_only_where_they_count(self) -> None:
        segments = (Segment("<|user|>a", True), Segment("<|end|>", False), Segment("b<|end|>", True))
        assert prompt_tokens(Prompt(segments), TOKENIZER) == [BOS, USER, *b"a", *b"<|end|>", *b"b", END]

    def test_no_blank_comes_in_at_a_cut(self) -> None:
        vocabulary = ToyVocabulary(blank=True)
        segments = (Segment("<|user|>a", True), Segment("<|end|>", False), Segment(" b<|end|>", True))
        tokens = prompt_tokens(Prompt(segments), vocabulary.tokenizer())
        assert vocabulary.text(tokens) == "<s><|user|> a<|end|> b<|end|>"


class TestSplice:
    def test_a_first_turn_is_the_whole_prompt(self) -> None:
        question = ask("Hi")
        assert splice(History(), question, TOKENIZER).tokens == prompt_tokens(question, TOKENIZER)

    def test_an_answer_keeps_the_tokens_it_was_sampled_as(self) -> None:
        history = answered(ask("Hi"), SAMPLED)
        new = splice(history, ask("Hi", "unbelievable", "Hi"), TOKENIZER)
        assert new.tokens == [*history.tokens, END, USER, VOCABULARY.id("Hi"), END, MODEL]
        assert prompt_tokens(ask("unbelievable"), TOKENIZER)[2:4] == [
            VOCABULARY.id("unbeliev"),
            VOCABULARY.id("able"),
        ]

    def test_over_many_turns(self) -> None:
        history = answered(ask("Hi"), SAMPLED)
        history = answered(ask("Hi", "unbelievable", "be"), SAMPLED, history)
        new = splice(history, ask("Hi", "unbelievable", "be", "unbelievable", "un"), TOKENIZER)
        assert new.tokens[: len(history.tokens)] == history.tokens
        assert (
            VOCABULARY.text(new.tokens) == "<s>" + ask("Hi", "unbelievable", "be", "unbelievable", "un").text
        )

    def test_trimmed_white_space_costs_only_its_own_tokens(self) -> None:
        history = answered(ask("Hi"), [*SAMPLED, VOCABULARY.id("\n\n")])
        new = splice(history, ask("Hi", "unbelievable\n\n", "Hi", trim=True), TOKENIZER)
        assert new.tokens[: len(history.tokens) - 1] == history.tokens[:-1]
        assert VOCABULARY.text(new.tokens) == "<s>" + ask("Hi", "unbelievable", "Hi").text

    def test_a_token_that_ends_in_trimmed_white_space(self) -> None:
        history = answered(ask("Hi"), [*SAMPLED, VOCABULARY.id(".\n\n")])
        new = splice(history, ask("Hi", "unbelievable.", "Hi"), TOKENIZER)
        assert new.tokens[: len(history.tokens) - 1] == history.tokens[:-1]
        assert new.tokens[len(history.tokens) - 1] == ord(".")

    def test_a_character_that_was_cut_short(self) -> None:
        history = answered(ask("Hi"), [*SAMPLED, *"日".encode()[:2]])
        new = splice(history, ask("Hi", "unbelievable", "Hi"), TOKENIZER)
        assert new.tokens[: len(history.tokens) - 2] == history.tokens[:-2]

    def test_a_rewritten_answer_falls_back_to_the_turn_before(self) -> None:
        history = answered(ask("Hi"), SAMPLED)
        history = answered(ask("Hi", "unbelievable", "be"), [*b"<think>x</think>Yes"], history)
        new = splice(history, ask("Hi", "unbelievable", "be", "Yes", "Hi"), TOKENIZER)
        kept = sum(len(span.tokens) for span in history.spans[:3])
        assert new.tokens[:kept] == history.tokens[:kept]
        assert VOCABULARY.text(new.tokens) == "<s>" + ask("Hi", "unbelievable", "be", "Yes", "Hi").text

    def test_another_conversation_starts_anew(self) -> None:
        history = answered(ask("Hi"), SAMPLED)
        other = ask("there")
        assert splice(history, other, TOKENIZER).tokens == prompt_tokens(other, TOKENIZER)

    def test_a_control_token_is_not_taken_for_its_typed_text(self) -> None:
        history = answered(ask("Hi"), [*SAMPLED, END])
        typed = Prompt(
            (
                Segment("<|user|>Hi<|end|><|model|>unbelievable", True),
                Segment("<|end|>", False),
                Segment("<|end|><|model|>", True),
            )
        )
        new = splice(history, typed, TOKENIZER)
        assert new.tokens == prompt_tokens(typed, TOKENIZER)

    def test_a_protected_marker_in_the_history_still_matches(self) -> None:
        segments = (Segment("<|user|>", True), Segment("<|end|>", False), Segment("<|end|><|model|>", True))
        history = answered(Prompt(segments), SAMPLED)
        longer = Prompt((*segments[:2], Segment("<|end|><|model|>unbelievable<|end|><|model|>", True)))
        assert splice(history, longer, TOKENIZER).tokens == [*history.tokens, END, MODEL]

    def test_a_vocabulary_that_puts_a_blank_first(self) -> None:
        vocabulary = ToyVocabulary(blank=True)
        tokenizer = vocabulary.tokenizer()
        history = splice(History(), prompt("Hi"), tokenizer).with_sampled(SAMPLED, vocabulary.piece)
        new = splice(history, prompt("Hiunbelievable there"), tokenizer)
        assert new.tokens == [*history.tokens, VOCABULARY.id(" there")]

    def test_no_cut_where_the_tokenizer_cannot_start(self) -> None:
        vocabulary = ToyVocabulary(blank=True)

        def tokenize(text: str, *, add_special: bool, parse_special: bool) -> list[int]:
            """Like a vocabulary that joins a line feed with what follows."""
            if text.startswith("\n"):
                return [VOCABULARY.id(".\n\n")]
            return vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)

        tokenizer = Tokenizer(tokenize, vocabulary.piece, True, "<s>")
        history = splice(History(), prompt("Hi"), tokenizer).with_sampled(SAMPLED, vocabulary.piece)
        longer = prompt("Hiunbelievable there")
        assert splice(history, longer, tokenizer).tokens == prompt_tokens(longer, tokenizer)


ANSWER = st.lists(
    st.sampled_from([*SAMPLED, *"ü日".encode(), 0xFF, END, VOCABULARY.id("\n\n"), ord(" ")]), max_size=6
)
TURNS = st.lists(st.tuples(st.sampled_from(["Hi", "un", "", "日"]), ANSWER), min_size=1, max_size=4)


@given(TURNS, st.booleans(), st.booleans())
def test_the_text_is_always_that_of_the_prompt(
    turns: list[tuple[str, list[int]]], trim: bool, blank: bool
) -> None:
    vocabulary = ToyVocabulary(blank=blank)
    tokenizer = vocabulary.tokenizer()
    history = History()
    talk: list[str] = []
    for question, sampled in turns:
        talk.append(question)
        rendered = ask(*talk, trim=trim)
        history = splice(history, rendered, tokenizer)
        text = vocabulary.text(history.tokens).removeprefix("<s>")
        assert text.replace(" ", "") == rendered.text.replace(" ", "")
        if not blank:
            assert text == rendered.text
        history = history.with_sampled(sampled, vocabulary.piece)
        talk.append(b"".join(map(vocabulary.piece, sampled)).decode(errors="ignore"))
