"""Command-line options of settings, made from the one table in `config/schema.py`.

A command decorated with `takes_settings` gets an option for each setting and receives those given as
`flags`, a mapping by setting name. Values stay text until the table parses them, so that a flag, a
variable and a line of YAML are checked by the same rule and refused with the same words.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Annotated, Any, Optional

import typer

from llmrun.config.kinds import BiasMap, Choice, Switch, TextList
from llmrun.config.schema import KV_TYPE, SETTINGS, Setting

_ALIASES = {
    "n_ctx": "--ctx",
    "max_tokens": "--max-tokens",
    "n_threads": "--threads",
    "n_threads_batch": "--threads-batch",
    "n_batch": "--batch",
    "n_ubatch": "--ubatch",
    "n_gpu_layers": "--gpu-layers",
    "tensor_split": "-ts",
    "cpu_moe": "-cmoe",
    "n_cpu_moe": "-ncmoe",
    "override_tensor": "-ot",
    "offload_kqv": "-kvo",
    "n_parallel": "--parallel",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
    "flash_attn": "--flash-attn",
    "seed": "--seed",
    "system": "--system",
}
_PANELS = {"hardware": "Hardware", "context": "Context", "sampling": "Sampling", "output": "Answer"}
_METAVARS = {
    "logit_bias": "TOKEN+BIAS",
    "stop": "TEXT",
    "system": "TEXT",
    "n_gpu_layers": "auto|all|N",
    "tensor_split": "N,N,...",
    "override_tensor": "REGEX=BUFFER",
    "rpc": "HOST:PORT",
    "n_ctx": "N|max",
    "type_k": "TYPE",
    "type_v": "TYPE",
    "kv_type": "TYPE",
    "rope_scaling": "METHOD",
    "overflow": "WORD",
    "think": "WORD",
    "panel": "WORD",
}
_METAVAR_COLUMNS = 12  # more, and Typer cuts flags short on a terminal of 80
_ON_OFF = {True: "on", False: "off", None: None}
_OFF_SHORT = {"offload_kqv": "-nkvo"}  # an option of its own: a column of help for it would cut long flags
_SWITCHES = {"stats"}  # choices that read better as --x / --no-x


def takes_settings(*, without: Iterable[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option for every setting but those in `without`, and hand them over as `flags`."""
    left_out = {"model", *without}
    settings = [s for s in (*SETTINGS, KV_TYPE) if s.name not in left_out]
    off = [name for name in _OFF_SHORT if name not in left_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapper(**arguments: Any) -> None:
            for name in off:
                if arguments.pop(f"{name}_off"):
                    arguments[name] = False
            flags = {s.name: _flag_value(s, arguments.pop(s.name)) for s in settings}
            command(**arguments, flags=flags)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
        parameters = [*own, *map(_parameter, settings), *map(_off_parameter, off)]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _flag_value(setting: Setting, given: Any) -> object:
    if setting.name in _SWITCHES:
        return _ON_OFF[given]
    return (list(given) if given else None) if isinstance(given, list | tuple) else given


def _parameter(setting: Setting) -> inspect.Parameter:
    names = [name for name in (setting.flag, _ALIASES.get(setting.name)) if name]
    value_type: Any = str
    if isinstance(setting.kind, Switch) or setting.name in _SWITCHES:
        value_type = bool
        names = [_switch(name) for name in names]
    elif isinstance(setting.kind, TextList | BiasMap):
        value_type = list[str]
    option = typer.Option(
        *names,
        help=_help(setting),
        metavar=None if value_type is bool else _metavar(setting),
        rich_help_panel=_PANELS[setting.group],
        show_default=False,
    )
    annotation = Annotated[Optional[value_type], option]  # noqa: UP045 a runtime type for Typer
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _off_parameter(name: str) -> inspect.Parameter:
    annotation = Annotated[bool, typer.Option(_OFF_SHORT[name], hidden=True)]
    return inspect.Parameter(
        f"{name}_off", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation
    )


def _switch(name: str) -> str:
    """Both spellings of a switch, as Typer takes them; short ones have no opposite."""
    return f"{name}/--no-{name.lstrip('-')}" if name.startswith("--") else name


def _metavar(setting: Setting) -> str:
    spelt = _spelt_out(setting)
    return spelt or _METAVARS.get(setting.name, "N")


def _spelt_out(setting: Setting) -> str:
    """All words of a choice where there is room for them in the column of metavars, else nothing."""
    words = "|".join(setting.kind.options) if isinstance(setting.kind, Choice) else ""
    return words if len(words) <= _METAVAR_COLUMNS else ""


def _help(setting: Setting) -> str:
    if isinstance(setting.kind, Choice) and not _spelt_out(setting):
        return f"{setting.help} ({', '.join(setting.kind.options)})"
    off = _OFF_SHORT.get(setting.name)
    return f"{setting.help} ({off}: not)" if off else setting.help
