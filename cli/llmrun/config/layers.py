"""Which value of a setting counts: layers of settings, the highest that has one wins.

    /set in a chat > flag > LLMRUN_* environment > --profile > user's config file > catalogue's sampling
         > general.sampling.* of the model file > built-in

Every layer is checked in full, also where a higher one wins: a mistake in a file does not hide until later.
All of it is pure: flags, environment and file contents are handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmrun.config.kinds import BiasMap, Value
from llmrun.config.schema import (
    BY_NAME,
    KV_TYPE,
    RESERVED_ENV,
    SETTINGS,
    UNQUANTISED_KV_TYPES,
    Group,
    Setting,
    env_name,
    suggest_setting,
)
from llmrun.config.views import ContextSettings, HardwareSettings, OutputSettings, SamplingSettings
from llmrun.errors import UsageError

MODEL_FILE_KEYS: Mapping[str, str] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
}
"""GGUF key (llama.cpp's names) -> setting, for the samplers that llmrun has."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Raw values of one source. `label` names it to the user, `path` is its file and `lines` the line of
    each key there. `groups` are those whose settings it may hold, None for all."""

    label: str
    values: Mapping[str, object]
    path: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] | None = None

    def place(self, key: str) -> str:
        """Where the key stands: file and line, or the label."""
        where = self.path or self.label
        return f"{where}, line {self.lines[key]}" if key in self.lines else where


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `config show`."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Effective:
    """The value and the source of every setting; the typed views below are for code that uses them.

    `warnings` are sentences about values that were left out.
    """

    values: Mapping[str, Value]
    sources: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def source(self, name: str) -> str:
        """Who set it: "flag -c", "LLMRUN_CTX", "profile low-memory", a file, "built-in"..."""
        return self.sources[name]

    @property
    def hardware(self) -> HardwareSettings:
        """Settings of the machine."""
        return HardwareSettings(**self._group("hardware"))

    @property
    def context(self) -> ContextSettings:
        """Settings of model and window."""
        return ContextSettings(**self._group("context"))

    @property
    def sampling(self) -> SamplingSettings:
        """Settings of the sampler chain."""
        return SamplingSettings(**self._group("sampling"))

    @property
    def output(self) -> OutputSettings:
        """Settings of the answer and its display."""
        return OutputSettings(**self._group("output"))

    def _group(self, group: Group) -> dict[str, Any]:
        return {s.name: self.values[s.name] for s in SETTINGS if s.group == group}

    def as_json(self) -> dict[str, object]:
        """All values as JSON can hold them: lists for tuples, an object for the logit bias."""
        return {s.name: _json_value(s, self.values[s.name]) for s in SETTINGS}

    def rows(self) -> Iterator[Row]:
        """All settings in the order of the table, values as a user would write them."""
        for s in SETTINGS:
            yield Row(s.name, s.kind.show(self.values[s.name]), self.sources[s.name])


def _json_value(setting: Setting, value: Value) -> object:
    if not isinstance(value, tuple):
        return value
    if isinstance(setting.kind, BiasMap):
        return {str(pair[0]): pair[1] for pair in value if isinstance(pair, tuple)}
    return list(value)


def resolve(
    *,
    chat: Mapping[str, object] | None = None,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    profile: Layer | None = None,
    user_file: Layer | None = None,
    catalogue_sampling: Mapping[str, object] | None = None,
    model_file: Mapping[str, object] | None = None,
) -> Effective:
    """Effective settings. Mappings are by setting name; `chat` is what a chat's user changed, `env` the
    whole environment and `model_file` the file's metadata by GGUF key. Flags that are None were not given.

    Raises UsageError for an unknown name, a value that is not allowed, or a pair that excludes each other.
    An unusable value in a model file is left out with a warning: its user did not write it.
    """
    values: dict[str, Value] = {s.name: s.default for s in SETTINGS}
    sources = {s.name: "built-in" for s in SETTINGS}
    file_values, warnings = _from_model_file(model_file or {})
    values.update(file_values)
    sources.update(dict.fromkeys(file_values, "model file"))
    given = {name: raw for name, raw in (flags or {}).items() if raw is not None}
    for layer in (
        Layer("catalogue", catalogue_sampling or {}, groups=("sampling",)),
        user_file,
        profile,
    ):
        if layer is not None:
            _apply(layer, values, sources)
    for name, text in _from_environment(env or {}).items():
        _apply(Layer(env_name(name), {name: text}), values, sources)
    for name in sorted(given, key=lambda name: name != KV_TYPE.name):
        _apply(Layer(_flag_label(name), {name: given[name]}), values, sources)
    _apply(Layer("/set", chat or {}), values, sources)
    _check_pairs(values, sources)
    return Effective(values, sources, tuple(warnings))


def _apply(layer: Layer, values: dict[str, Value], sources: dict[str, str]) -> None:
    # the shorthand first, so that type_k or type_v of the same layer overrides its half
    for name in sorted(layer.values, key=lambda name: name != KV_TYPE.name):
        value = parse_setting(layer, name)
        for target in ("type_k", "type_v") if name == KV_TYPE.name else (name,):
            values[target] = value
            sources[target] = layer.label


def parse_setting(layer: Layer, name: str) -> Value:
    """Value of `name` in the layer. Raises UsageError if the name or the value cannot be used there."""
    setting = KV_TYPE if name == KV_TYPE.name else BY_NAME.get(name)
    if setting is None:
        meant = suggest_setting(name)
        hint = f"did you mean {meant}?" if meant else "`llmrun config show` lists all settings"
        raise UsageError(f"{layer.place(name)}: unknown setting {name!r}", hint)
    if layer.groups is not None and setting.group not in layer.groups:
        raise UsageError(f"{layer.place(name)}: {name} is not a {' or '.join(layer.groups)} setting")
    raw = layer.values[name]
    try:
        return setting.kind.parse(raw)
    except (ValueError, OverflowError):
        message = f"{layer.place(name)}: {name} cannot be {_shorten(raw)}"
        raise UsageError(message, f"allowed: {setting.kind.expected}") from None


def _shorten(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


def _flag_label(name: str) -> str:
    setting = KV_TYPE if name == KV_TYPE.name else BY_NAME[name]
    return f"flag {setting.flag}" if setting.flag else "command line"


def _from_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Settings among the variables, the shorthand first; an empty variable is as good as none."""
    names = {env_name(s.name): s.name for s in (KV_TYPE, *SETTINGS)}
    ours = {key for key, text in env.items() if key.startswith("LLMRUN_") and text}
    for key in sorted(ours - names.keys() - RESERVED_ENV):
        meant = suggest_setting(key.removeprefix("LLMRUN_"))
        hint = f"did you mean {env_name(meant)}?" if meant else "unset it"
        raise UsageError(f"environment variable {key} is not a setting", hint)
    return {name: env[key] for key, name in names.items() if key in ours}


def _from_model_file(metadata: Mapping[str, object]) -> tuple[dict[str, Value], list[str]]:
    values: dict[str, Value] = {}
    warnings: list[str] = []
    for key, name in MODEL_FILE_KEYS.items():
        if key not in metadata:
            continue
        try:
            values[name] = BY_NAME[name].kind.parse(metadata[key])
        except (ValueError, OverflowError):
            allowed = BY_NAME[name].kind.expected
            warnings.append(f"the model file's {key} is {_shorten(metadata[key])}, not {allowed}: left out")
    return values, warnings


def _check_pairs(values: Mapping[str, Value], sources: Mapping[str, str]) -> None:
    """The engine refuses a quantised V cache without flash attention, with no reason given."""
    if values["flash_attn"] == "off" and values["type_v"] not in UNQUANTISED_KV_TYPES:
        raise UsageError(
            f"type_v {values['type_v']} ({sources['type_v']}) needs flash attention, "
            f"which is off ({sources['flash_attn']})",
            "turn it on with `-fa on`, or choose f16 with `-ctv f16`",
        )
