"""What values a setting takes: each kind reads a value from YAML, the environment or a flag, and shows it.

`parse` raises ValueError or OverflowError; their text is unimportant, as the caller names the setting, its
source and `expected`.
YAML 1.1 reads a bare `on` and `off` as booleans, so choices with these words take booleans too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

TokenBias = tuple[tuple[int, float], ...]
INT32_MAX = (1 << 31) - 1
"""Largest token id and position of the engine, which counts both in 32 bits."""

Value = int | float | str | bool | None | tuple[str, ...] | tuple[float, ...] | TokenBias


class Kind(Protocol):
    """A set of values with their spellings."""

    @property
    def expected(self) -> str:
        """The allowed values in words."""
        ...

    def parse(self, raw: object) -> Value:
        """The value `raw` stands for. Raises ValueError or OverflowError if it is none."""
        ...

    def show(self, value: Value) -> str:
        """The value as a user would write it."""
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """A number in [low, high] (bounds None: open), or one of `words` that stand for special values."""

    low: float | None = None
    high: float | None = None
    words: Mapping[str, int | str | None] = field(default_factory=dict)
    whole: bool = True
    above_low: bool = False

    @property
    def expected(self) -> str:
        noun = "a whole number" if self.whole else "a number"
        words = " or ".join(word for word in self.words if not word.startswith("-"))
        return f"{noun}{self._range()}, or {words}" if words else noun + self._range()

    def _range(self) -> str:
        if self.low is None:
            return ""
        if self.high is not None:
            return (
                f" above {self.low} up to {self.high}"
                if self.above_low
                else f" from {self.low} to {self.high}"
            )
        return f" above {self.low}" if self.above_low else f" of {self.low} or more"

    def parse(self, raw: object) -> Value:
        word = "" if raw is None else str(raw).strip().casefold()
        if word in self.words:
            return self.words[word]
        if raw is None and None in self.words.values():
            return None
        number = self._number(raw)
        below = self.low is not None and (number < self.low or (self.above_low and number == self.low))
        if below or (self.high is not None and number > self.high):
            raise ValueError
        return number

    def _number(self, raw: object) -> int | float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError
        if self.whole:
            if isinstance(raw, float):
                raise ValueError
            return int(raw)
        number = float(raw)
        if not math.isfinite(number):
            raise ValueError
        return number

    def show(self, value: Value) -> str:
        for word, stands_for in self.words.items():
            if stands_for == value and type(stands_for) is type(value):
                return word
        return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false."""

    @property
    def expected(self) -> str:
        return "true or false"

    def parse(self, raw: object) -> Value:
        if isinstance(raw, bool):
            return raw
        word = str(raw).strip().casefold()
        if word in ("1", "true", "yes", "on"):
            return True
        if word in ("0", "false", "no", "off"):
            return False
        raise ValueError

    def show(self, value: Value) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words, in any letter case; `none_word` is the spelling of None where that is allowed."""

    options: tuple[str, ...]
    none_word: str | None = None

    @property
    def expected(self) -> str:
        words = self.options if self.none_word is None else (*self.options, self.none_word)
        return f"one of {', '.join(words)}"

    def parse(self, raw: object) -> Value:
        if isinstance(raw, bool):
            raw = "on" if raw else "off"
        word = self.none_word if raw is None else str(raw).strip().casefold()
        if self.none_word is not None and word == self.none_word:
            return None
        if word not in self.options:
            raise ValueError
        return word

    def show(self, value: Value) -> str:
        return str(self.none_word if value is None else value)


@dataclass(frozen=True, slots=True)
class Text:
    """Free text; null or nothing means none."""

    @property
    def expected(self) -> str:
        return "text"

    def parse(self, raw: object) -> Value:
        if raw is None or isinstance(raw, str):
            return raw or None
        raise ValueError

    def show(self, value: Value) -> str:
        return "none" if value is None else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class TextList:
    """A list of texts; in the environment a JSON list, or one text. `form`: what each of them matches."""

    form: str = r"(?s:.+)"
    expected: str = "a list of non-empty texts"

    def parse(self, raw: object) -> Value:
        if isinstance(raw, str):
            raw = _json_list(raw)
        texts = () if raw is None else raw
        if not isinstance(texts, list | tuple):
            raise ValueError
        items: list[str] = []
        for text in texts:
            if not isinstance(text, str) or not re.fullmatch(self.form, text):
                raise ValueError
            items.append(text)
        return tuple(items)

    def show(self, value: Value) -> str:
        return json.dumps(value, ensure_ascii=False) if value else "none"


def _json_list(text: str) -> list[object]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return [text]
    return parsed if isinstance(parsed, list) and all(isinstance(t, str) for t in parsed) else [text]


@dataclass(frozen=True, slots=True)
class Shares:
    """Numbers of 0 or more, at least one above 0: a list, or text like `3,1` or `3/1`; none is no share."""

    @property
    def expected(self) -> str:
        return "numbers of 0 or more with commas between, not all 0, or none"

    def parse(self, raw: object) -> Value:
        if isinstance(raw, str):
            raw = [] if raw.strip().casefold() == "none" else re.split("[,/]", raw)
        items = [] if raw is None else raw
        if not isinstance(items, list | tuple):
            raise ValueError
        number = Number(0, whole=False)
        shares = [share for item in items if isinstance(share := number.parse(item), float)]
        if shares and not 0 < sum(shares) < math.inf:
            raise ValueError
        return tuple(shares)

    def show(self, value: Value) -> str:
        if not isinstance(value, tuple) or not value:
            return "none"
        return ",".join(f"{share:g}" for share in value)


_BIAS = re.compile(r"\s*(\d+)\s*(=\s*[+-]?|[+-])\s*(\d+(?:\.\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class BiasMap:
    """Token id -> number added to its logit: a mapping, or texts like `15043=-5` or llama.cpp's `15043-5`."""

    @property
    def expected(self) -> str:
        return "token ids with a bias each, such as {15043: -5} or 15043=-5"

    def parse(self, raw: object) -> Value:
        if isinstance(raw, str):
            raw = raw.strip().removeprefix("{").removesuffix("}").replace(":", "=").split(",")
        if raw is None:
            return ()
        if isinstance(raw, Mapping):
            pairs = [self._pair(token, bias) for token, bias in raw.items()]
        elif isinstance(raw, list | tuple):
            pairs = [self._from_text(item) for item in raw]
        else:
            raise ValueError
        return tuple(dict(pairs).items())

    def _from_text(self, item: object) -> tuple[int, float]:
        if isinstance(item, tuple) and len(item) == 2:
            return self._pair(*item)
        found = _BIAS.fullmatch(item) if isinstance(item, str) else None
        if found is None:
            raise ValueError
        return self._pair(int(found[1]), float(found[2].strip("= ") + found[3]))

    def _pair(self, token: object, bias: object) -> tuple[int, float]:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= INT32_MAX:
            raise ValueError
        if not isinstance(bias, int | float) or isinstance(bias, bool) or not math.isfinite(bias):
            raise ValueError
        return token, float(bias)

    def show(self, value: Value) -> str:
        if not isinstance(value, tuple) or not value:
            return "none"
        return ", ".join(f"{pair[0]}{pair[1]:+g}" for pair in value if isinstance(pair, tuple))
