"""The panel under an answer: golden renders at three widths, and nothing cut in the middle at any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmrun.events import (
    Completion,
    ContextUse,
    DeviceKv,
    FinishReason,
    GenerationStats,
    ItlStats,
    KvUse,
    ModelInfo,
    PrefixReport,
)
from llmrun.ui.panel import Figures, fitting, one_line_figures, panel, panel_rows, plain_lines, rendered_lines

STATS = GenerationStats(
    load_s=0.4, queue_s=0.0, tokenize_s=0.005, prefill_s=0.25, ttft_s=0.3, ttft_answer_s=0.3,
    generation_s=9.9, total_s=10.2, prompt_tokens=1234, cached_tokens=1000, generated_tokens=100,
    reasoning_tokens=0,
    itl=ItlStats(0.1, 0.1, 0.11, 0.2, 0.3),
)  # fmt: skip
COMPLETION = Completion(
    model=ModelInfo("smollm2-135m", "/models/SmolLM2.gguf", "SmolLM2", "llama", "Q4_1", 98_362_432),
    text="text",
    reasoning="",
    finish_reason="stop",
    stats=STATS,
    prefix=PrefixReport(memory_tokens=1000),
    kv=KvUse(1333, 8192, "f16", "f16", (DeviceKv("CPU", 188_743_680, 30_712_320),)),
    dropped_messages=0,
    settings={"n_threads": 2},
)

NARROW = """\
generation    10.0 tok/s
prompt eval   936.0 tok/s
TTFT          300 ms
KV CPU        29.3 MiB of 180.0 MiB
prefix cache  1,000 of 1,234
status        done
"""
USUAL = """\
╭─  smollm2-135m Q4_1  ────────────────────────────────────────────────────────╮
│ generation    10.0 tok/s             100 tokens, 100 ms each                 │
│ prompt eval   936.0 tok/s            234 tokens in 250 ms                    │
│ TTFT          300 ms                 total 10.2 s                            │
│ KV cache      29.3 MiB of 180.0 MiB  on CPU  ▕██░░░░░░░░▏ 1,333/8,192 tokens │
│ prefix cache  1,000 of 1,234         prompt tokens reused                    │
│ status        done                   2 threads                               │
╰──────────────────────────────────────────────────────────────────────────────╯
"""


def render(completion: Completion, columns: int) -> str:
    lines = rendered_lines(panel(Figures.of_completion(completion), columns), columns, no_color=True)
    return "".join(f"{without_styles(line).rstrip()}\n" for line in lines)


def without_styles(line: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.mark.parametrize(("columns", "golden"), [(40, NARROW), (80, USUAL), (200, USUAL)])
def test_golden(columns: int, golden: str) -> None:
    assert render(COMPLETION, columns) == golden


WIDE = replace(
    COMPLETION,
    model=replace(COMPLETION.model, ref="/models/" + "long-name-" * 12 + ".gguf"),
    prefix=PrefixReport(miss_reason="the sliding window has passed token 12"),
    stats=replace(STATS, reasoning_tokens=40, prompt_tokens=1_234_567),
    kv=KvUse(
        999_999, 1_048_576, "f16", "f16",
        (DeviceKv("CPU", 1 << 40, 1 << 39), DeviceKv("CUDA0", 1 << 40, 1 << 39)),
    ),
)  # fmt: skip


@pytest.mark.parametrize("columns", range(40, 130, 3))
@pytest.mark.parametrize("completion", [COMPLETION, WIDE], ids=["usual", "wide"])
def test_no_label_or_figure_is_cut_and_nothing_is_wider_than_the_terminal(
    completion: Completion, columns: int
) -> None:
    text = render(completion, columns)
    assert max(map(len, text.splitlines())) <= columns
    boxed = "╭" in text
    for label, figure, detail in panel_rows(Figures.of_completion(completion), name_devices=not boxed):
        assert label in text
        assert figure in text
        if boxed and columns >= 110:
            assert detail in text
    for device in completion.kv.devices:
        assert device.device in text


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (40, ""),
        (80, "history 2,222, newest 333"),
        (100, "history 2,222, newest 333, answer 512, system 4,444"),
    ],
)
def test_a_narrow_panel_says_of_the_context_what_changes(columns: int, shown: str) -> None:
    context = ContextUse(4444, 2222, 333, 512, 8192)
    text = render(replace(COMPLETION, context=context), columns)
    (row,) = [line for line in text.splitlines() if "context" in line]
    assert "681 free" in row
    assert shown in row
    assert all(part in row or columns < 100 for part in ("answer", "system"))


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        (40, "on CPU  ▕██░▏ 1,333/8,192 tokens"),
        (28, "on CPU  ▕██░▏ 1,333/8,192"),
        (20, "on CPU"),
        (5, ""),
        (-3, ""),
    ],
)
def test_details_lose_whole_parts(columns: int, kept: str) -> None:
    assert fitting("on CPU  ▕██░▏ 1,333/8,192 tokens", columns) == kept
    assert fitting("100 tokens, 100 ms each", 20) == "100 tokens"


def test_what_is_not_known_is_a_dash_not_a_zero() -> None:
    stats = replace(
        STATS,
        ttft_s=None,
        ttft_answer_s=None,
        generated_tokens=0,
        generation_s=0.0,
        itl=None,
        prefill_complete=False,
    )
    figures = Figures.of_completion(replace(COMPLETION, stats=stats, finish_reason="interrupted"))
    shown = {label: figure for label, figure, _ in panel_rows(figures)}
    assert shown["generation"].startswith("–")
    assert shown["prompt eval"].startswith("–")
    assert shown["TTFT"] == "–"


@pytest.mark.parametrize("reason", ["stop", "length", "context", "interrupted"])
def test_how_it_ended_is_said(reason: FinishReason) -> None:
    figures = Figures.of_completion(replace(COMPLETION, finish_reason=reason))
    assert figures.status
    assert figures.status in one_line_figures(figures)
    assert any(figures.status in line for line in plain_lines(figures))


def test_names_are_shown_as_they_are() -> None:
    model = replace(COMPLETION.model, ref="/m/[bold]x[.] :smile:\x1b[31m.gguf")
    device = DeviceKv("[red]dev\x1b", 1 << 20, 1 << 10)
    completion = replace(COMPLETION, model=model, kv=replace(COMPLETION.kv, devices=(device,)))
    text = render(completion, 100)
    assert "[bold]x[.] :smile:␛[31m.gguf" in text
    assert "[red]dev␛" in text


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        (PrefixReport(memory_tokens=9), "prompt tokens reused"),
        (PrefixReport(disk_tokens=9), "prompt tokens reused from disk"),
        (PrefixReport(checkpoint_tokens=9), "prompt tokens reused through a checkpoint"),
        (PrefixReport(miss_reason="nothing stored"), "prompt tokens reused (nothing stored)"),
    ],
)
def test_the_panel_says_where_a_prefix_came_from(prefix: PrefixReport, told: str) -> None:
    rows = panel_rows(Figures.of_completion(replace(COMPLETION, prefix=prefix)))
    assert next(detail for label, _, detail in rows if label == "prefix cache") == told
