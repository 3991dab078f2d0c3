"""`llmrun bench`: measure prefill and decode, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from llmrun.commands.bench_options import (
    Batch,
    CacheK,
    CacheV,
    Delay,
    Depth,
    Flash,
    Gen,
    Layers,
    ListOptions,
    Output,
    Pairs,
    Parallel,
    Prompts,
    Reps,
    Threads,
    Ubatch,
)
from llmrun.commands.options import takes_settings
from llmrun.commands.shared_options import Profile, Quiet, Verbose
from llmrun.config.schema import SETTINGS
from llmrun.errors import Interrupted, UsageError

_SINGLE = {
    "tensor_split", "main_gpu", "cpu_moe", "n_cpu_moe", "override_tensor", "rpc", "offload_kqv", "use_mmap",
    "use_mlock", "swa_full",
}  # fmt: skip
_WITHOUT = [*(setting.name for setting in SETTINGS if setting.name not in _SINGLE), "kv_type"]


@takes_settings(without=_WITHOUT)
def bench(
    *,
    models: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="MODEL", help="paths of .gguf files, or names; --compare: a saved run"),
    ] = None,
    n_prompt: Prompts = None,
    n_gen: Gen = None,
    pairs: Pairs = None,
    depth: Depth = None,
    parallel: Parallel = None,
    n_batch: Batch = None,
    n_ubatch: Ubatch = None,
    n_threads: Threads = None,
    n_gpu_layers: Layers = None,
    type_k: CacheK = None,
    type_v: CacheV = None,
    flash_attn: Flash = None,
    reps: Reps = 5,
    delay: Delay = 0.0,
    no_warmup: Annotated[
        bool, typer.Option("--no-warmup", help="no round before the first one that counts")
    ] = False,
    prompt: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--prompt", metavar="TEXT|@FILE", help="measure whole requests on this text as well"),
    ] = None,
    output: Output = None,
    json: Annotated[bool, typer.Option("--json", help="one JSON document with everything")] = False,
    save: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--save", metavar="NAME", help="name it in the history; runs may share a name"),
    ] = None,
    compare: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--compare", metavar="A", help="measure nothing; compare run A with MODEL, or the last"),
    ] = None,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--plot", metavar="FILE", help="draw the rates into FILE.png or FILE.svg"),
    ] = None,
    profile: Profile = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    flags: dict[str, object],
) -> None:
    """Measure how fast models read (prefill) and write (decode) on this machine.

    Tests and figures are those of llama-bench: random tokens, nothing tokenised or sampled. A run is kept in
    the history with every sample; --compare lays two of them beside each other.
    """
    from llmrun.commands.bench_runs import compare_runs, end_early, run_bench, run_name

    given = [*(models or [])]
    lists = ListOptions(
        n_prompt, n_gen, pairs, depth, parallel, n_batch, n_ubatch, n_threads, n_gpu_layers, type_k, type_v,
        flash_attn,
    )  # fmt: skip
    if compare is not None:
        if len(given) > 1 or plot or output or lists.given or (save, prompt) != (None, None):
            raise UsageError("--compare takes two runs and measures nothing", "llmrun bench --compare A [B]")
        compare_runs(compare, *given, json=json)
        return
    if json and output:
        raise UsageError("-o and --json are two formats of the same records", "leave one of them out")
    plan = lists.plan(given, reps=reps, warmup=not no_warmup, delay_s=delay, requests=prompt is not None)
    report = run_bench(
        plan, flags, profile, prompt=prompt, output="json document" if json else output, save=run_name(save),
        plot=plot, verbose=verbose, quiet=quiet,
    )  # fmt: skip
    if not report.complete:
        end_early(report.failure or Interrupted("interrupted"), document=json, quietly=bool(output))
