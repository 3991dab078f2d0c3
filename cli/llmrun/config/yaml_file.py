"""YAML files as mappings, with errors that name the file and the line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from llmrun.errors import UsageError

if TYPE_CHECKING:
    from yaml import MappingNode, Node

MAX_FILE_BYTES = 1 << 20


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{path} cannot be read: {reason}", "check the path and its permissions") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UsageError(
            f"{path} is larger than {MAX_FILE_BYTES:,} bytes", "settings files are small; check it"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: not UTF-8 text", "save the file as UTF-8") from None


def _check_keys(path: Path, node: Node) -> None:
    """Refuse keys that are no text or occur twice: YAML would keep the last one without a word."""
    from yaml import MappingNode, ScalarNode, SequenceNode

    children: list[Node] = []
    if isinstance(node, MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                raise _at(path, key, "a key must be plain text")
            if key.value in seen:
                raise _at(path, key, f"the key {key.value} occurs twice")
            seen.add(key.value)
            children.append(value)
    elif isinstance(node, SequenceNode):
        children = node.value
    for child in children:
        _check_keys(path, child)


def _at(path: Path, node: Node, problem: str) -> UsageError:
    return UsageError(f"{path}, line {node.start_mark.line + 1}: {problem}", "correct the file")


def _refuse_aliases(path: Path, text: str, loader: type) -> None:
    import yaml

    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            line = f", line {event.start_mark.line + 1}" if event.start_mark is not None else ""
            raise UsageError(
                f"{path}{line}: aliases (*{event.anchor}) are not supported", "write the value out"
            )


def read_with_lines(path: Path) -> tuple[Mapping[str, object], Mapping[tuple[str, ...], int]]:
    """The mapping in the YAML file at `path`, and the line of each key under the keys that lead to it.

    Keys are text. Raises `UsageError` naming file and line where the file cannot be read, is no YAML, is
    no mapping, names a key twice, or uses aliases.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = _text(path)
    try:
        _refuse_aliases(path, text, loader)
        reader = loader(text)
        node = reader.get_single_node()
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return {}, {}
        if not isinstance(node, yaml.MappingNode):
            raise _at(path, node, "the file must hold `key: value` lines")
        _check_keys(path, node)
        content: dict[object, object] = reader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{path}{where}: {error.problem or 'not valid YAML'}", "correct the file") from None
    except (yaml.YAMLError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise UsageError(f"{path}: not valid YAML ({problem})", "correct the file") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply", "correct the file") from None
    return {str(key): value for key, value in content.items()}, dict(_lines(node))


def _lines(node: MappingNode, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    from yaml import MappingNode

    for key, value in node.value:
        keys = (*above, key.value)
        yield keys, key.start_mark.line + 1
        if isinstance(value, MappingNode):
            yield from _lines(value, keys)
