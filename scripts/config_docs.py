"""Write docs/reference/config.md from the table of settings, or check that it is up to date.

python scripts/config_docs.py [--check]
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from llmrun.config.kinds import INT32_MAX
from llmrun.config.schema import GROUPS, KV_TYPE, RESERVED_ENV, SETTINGS, Setting, env_name

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "config.md"
TITLES = {
    "hardware": "Hardware: how the machine is used",
    "context": "Context: model, window and K/V cache",
    "sampling": "Sampling: how the next token is chosen",
    "output": "Output: how long an answer and the conversation may be, and what is shown",
}
INTRODUCTION = """\
# Settings

Made from the table in `cli/llmrun/config/schema.py` by `make docs`; edit that table, not this page.

## Where a setting comes from

The first of these that has a value wins:

1. the flag on the command line
2. its `LLMRUN_*` environment variable (an empty one counts as not set)
3. the profile named with `--profile NAME`
4. `config.yaml` in the user's configuration folder
5. the [catalogue](models.md)'s sampling settings for the model
6. `general.sampling.*` in the model file: temperature, top_k, top_p, min_p, repeat_last_n, repeat_penalty
7. the built-in default

`llmrun config show` prints every setting in force with its source, `llmrun config path` where the files are.
Every source is checked in full: an unknown name or a value that is not allowed ends the program with exit
code 2 and names the file and line, the flag or the variable. Only a model file's unusable values are left
out with a warning.

## Files

`config.yaml` and profiles are YAML files of `name: value` lines with the names below:

```yaml
n_ctx: 16384
kv_type: q8_0
temperature: 0.2
stop: ["###"]
logit_bias: {15043: -5}
```

`--profile NAME` reads `profiles/NAME.yaml` beside `config.yaml`, or the shipped profile of that name: `cpu`,
`default`, `long-context`, `low-memory`. llmrun never writes to the configuration folder.

| variable | what it moves or does |
|---|---|
"""
RESERVED_HELP = {
    "LLMRUN_CONFIG_DIR": "folder of `config.yaml` and `profiles/`",
    "LLMRUN_CACHE_DIR": "folder of what can be made again, such as results of probes",
    "LLMRUN_DATA_DIR": "folder of the request log and histories",
    "LLMRUN_DEBUG": "`1` shows tracebacks",
}
SAMPLING_NOTE = """\
Applied in llmrun as in llama.cpp, each step to what the one before it left: logit bias, penalties, top-k,
typical, top-p, min-p, temperature, then the draw. Temperature 0 takes the likeliest token, so that only the
bias and the penalties matter.
"""


def table(settings: list[Setting]) -> str:
    """One Markdown row a setting."""
    lines = ["| setting | flag | variable | values | default | meaning |", "|---|---|---|---|---|---|"]
    for s in settings:
        flag = f"`{s.flag}`" if s.flag else "argument"
        default = "" if s.name == KV_TYPE.name else s.kind.show(s.default)
        values = s.kind.expected.replace(f" to {INT32_MAX}", " up")
        lines.append(f"| `{s.name}` | {flag} | `{env_name(s.name)}` | {values} | {default} | {s.help} |")
    return "\n".join(lines) + "\n"


def render() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION + "".join(f"| `{name}` | {RESERVED_HELP[name]} |\n" for name in sorted(RESERVED_ENV))
    ]
    for group in GROUPS:
        rows = [s for s in SETTINGS if s.group == group]
        if group == KV_TYPE.group:
            rows.append(KV_TYPE)
        parts.append(f"## {TITLES[group]}\n")
        if group == "sampling":
            parts.append(SAMPLING_NOTE)
        parts.append(table(rows))
    return "\n".join(parts)


def main(arguments: list[str] | None = None, target: Path = TARGET) -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="Write docs/reference/config.md from the table of settings.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    page = render()
    if not parser.parse_args(arguments).check:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
        return 0
    old = target.read_text(encoding="utf-8") if target.exists() else ""
    if old == page:
        return 0
    change = difflib.unified_diff(old.splitlines(), page.splitlines(), target.name, "the table", lineterm="")
    print(*change, f"\n{target.name} is out of date; run `make docs`.", sep="\n", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
