"""llama-bench's syntax for lists: `512,1024`, ranges `first-last+step` and `first-last*mult`.

As there, a list may end in a comma; a flag that names nothing is refused, though, and not passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from llmrun.errors import UsageError

MAX_VALUES = 10_000
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})(?:([+*])(\d{1,18}))?", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)
_SHOWN = 60
_HINT = "a number, a list such as 128,512, or a range such as 0-8192+1024 or 64-1024*2"


def parse_numbers(texts: Sequence[str], flag: str, *, least: int = 0, most: int) -> tuple[int, ...]:
    """All numbers that the uses of a flag name, in order.

    Raises:
        UsageError: a text is no list of numbers, or a number is out of its bounds.
    """
    found: list[int] = []
    for part in _parts(texts, flag, _HINT):
        if _NUMBER.fullmatch(part):
            found.append(int(part))
        elif match := _RANGE.fullmatch(part):
            found += _expanded(int(match[1]), int(match[2]), match[3] or "+", int(match[4] or 1), flag, part)
        else:
            raise UsageError(f"{flag} cannot be {part[:_SHOWN]!r}", _HINT)
        if len(found) > MAX_VALUES:
            raise UsageError(f"{flag} names more than {MAX_VALUES:,} values", "take a larger step")
    for number in found:
        if not least <= number <= most:
            raise UsageError(f"{flag} cannot be {number}", f"a number from {least} to {most:,}")
    return tuple(found)


def _expanded(first: int, last: int, sign: str, step: int, flag: str, text: str) -> list[int]:
    if last < first or (step < 2 and sign == "*") or step < 1 or (first == 0 and sign == "*"):
        raise UsageError(f"{flag}: the range {text!r} does not go anywhere", _HINT)
    if sign == "+":
        return list(range(first, last + 1, step)[: MAX_VALUES + 1])
    found: list[int] = []
    while first <= last and len(found) <= MAX_VALUES:
        found.append(first)
        first *= step
    return found


def _parts(texts: Sequence[str], flag: str, hint: str) -> Iterator[str]:
    for text in texts:
        for part in (part.strip() for part in text.strip().removesuffix(",").split(",")):
            if not part:
                raise UsageError(f"{flag} has an empty place in {text[:_SHOWN]!r}", hint)
            yield part


def parse_words(texts: Sequence[str], flag: str) -> tuple[str, ...]:
    """The words of comma-separated lists, in order; whether each means something is checked elsewhere.

    Raises:
        UsageError: a place in a list is empty.
    """
    return tuple(_parts(texts, flag, "a value, or several with commas between them"))


def parse_layers(texts: Sequence[str], flag: str, *, most: int) -> tuple[str, ...]:
    """Numbers of layers, ranges of them written out, beside words (`auto`, `all`, `-1`) as they are.

    Raises:
        UsageError: a place is empty, a range is none or goes beyond `most`.
    """
    found: list[str] = []
    for word in parse_words(texts, flag):
        is_range = _RANGE.fullmatch(word)
        found += map(str, parse_numbers([word], flag, most=most)) if is_range else [word]
    return tuple(found)


def parse_pair(text: str, flag: str, *, most: int) -> tuple[int, int]:
    """Two numbers such as `512,128`.

    Raises:
        UsageError: it is something else.
    """
    numbers = parse_numbers([text], flag, most=most)
    if len(numbers) != 2 or not any(numbers):
        raise UsageError(f"{flag} cannot be {text!r}", "two counts, prompt and output, such as 512,128")
    return numbers[0], numbers[1]
