"""What `llmrun doctor` finds about the machine: processor, memory, disks, settings, models, the Hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from llmrun.app.bench.bandwidth import ReadBandwidth, read_bandwidth
from llmrun.app.doctor.engine import failed
from llmrun.app.loading import DEFAULT_MODEL, PREFIX_FOLDER
from llmrun.app.memory.host_memory import HostMemory, host_memory
from llmrun.app.prefixes.disk import prefix_store
from llmrun.app.settings import SettingSources
from llmrun.config.dirs import user_cache_dir, user_config_dir, user_data_dir
from llmrun.config.layers import Effective
from llmrun.config.profiles import profile_paths
from llmrun.engine.threads import ReadText, count_threads, cpu_quota, physical_cores, read_text
from llmrun.errors import LlmrunError
from llmrun.gguf.check import check_runnable
from llmrun.gguf.reader import read_header
from llmrun.reports.doctor import Finding
from llmrun.store.hf_cache import cached_repos, hub_cache_dir, partial_files
from llmrun.store.resolve import resolve
from llmrun.units import GIB, format_bandwidth, format_bytes, format_seconds

SCARCE_BYTES = GIB
_EXAMPLE_BYTES = 8e9


@dataclass(frozen=True, slots=True)
class MachineProbes:
    """How the machine is asked; replaced by tests."""

    read: ReadText = read_text
    memory: Callable[[], HostMemory] = host_memory
    bandwidth: Callable[[int], ReadBandwidth] = read_bandwidth
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free


def cpu_finding(read: ReadText) -> Finding:
    """The processor, and what of it this process may use."""
    if hasattr(os, "sched_getaffinity"):
        allowed = frozenset(os.sched_getaffinity(0))
    else:
        allowed = frozenset(range(os.cpu_count() or 1))
    online, cores, quota = os.cpu_count() or 1, physical_cores(allowed, read), cpu_quota(read)
    name, threads = _cpu_model(read), count_threads(allowed, read)
    of = "" if len(allowed) == online else f" of {online:,}"
    text = f"{_named(len(allowed), 'CPU')}{of} on {_named(cores, 'core')}"
    if quota is not None:
        text += f"; its control group allows {quota:g} CPUs' worth of time"
    data = {
        "model": name,
        "cpus": online,
        "allowed_cpus": len(allowed),
        "cores": cores,
        "cpu_quota": quota,
        "threads": threads,
    }
    text = f"{text}; {_named(threads, 'thread')} by default"
    return Finding("cpu", "ok", f"{name}: {text}" if name else text, data=data)


def _named(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _cpu_model(read: ReadText) -> str:
    lines = (read("/proc/cpuinfo") or "").splitlines()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


def memory_finding(memory: HostMemory) -> Finding:
    """Main memory within every limit on this process."""
    text = f"{format_bytes(memory.free_bytes)} free of {format_bytes(memory.total_bytes)}"
    if memory.free_bytes < SCARCE_BYTES:
        todo = "end other programs, or raise the limit; `llmrun vram MODEL` tells what a model takes"
        return Finding("memory", "warn", text, todo, asdict(memory))
    return Finding("memory", "ok", text, data=asdict(memory))


def bandwidth_finding(probes: MachineProbes, threads: int) -> Finding:
    """What decode is bound by."""
    try:
        found = probes.bandwidth(threads)
    except LlmrunError as error:
        return Finding("bandwidth", "warn", f"not measured: {error.message}", error.hint)
    most = found.bytes_per_s / _EXAMPLE_BYTES
    text = (
        f"{format_bandwidth(found.bytes_per_s)} read by {_named(found.n_threads, 'thread')}: "
        f"8 GB of weights decode at {most:.3g} tok/s at most"
    )
    if found.busy:
        text += f" (too low: other programs used {found.others_cores:.1f} cores meanwhile)"
    return Finding("bandwidth", "ok", text, data={**asdict(found), "busy": found.busy})


def disk_findings(env: Mapping[str, str], free_bytes: Callable[[Path], int]) -> Iterator[Finding]:
    """Room where files are written, and whether they can be."""
    folders = {
        "cache": (user_cache_dir(env), "LLMRUN_CACHE_DIR"),
        "data": (user_data_dir(env), "LLMRUN_DATA_DIR"),
        "models": (hub_cache_dir(), "HF_HUB_CACHE"),
    }
    for name, (folder, variable) in folders.items():
        there = next((place for place in (folder, *folder.parents) if os.path.exists(place)), folder)
        data: dict[str, object] = {"folder": name, "path": str(folder), "free_bytes": None}
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            todo = f"mend its permissions, or move it with {variable}"
            yield Finding("disk", "warn", f"{name}: {there} is not a folder that can be written", todo, data)
            continue
        try:
            free = free_bytes(there)
        except OSError as error:
            yield Finding("disk", "warn", f"{name}: {there}: {error.strerror}", data=data)
            continue
        text, data["free_bytes"] = f"{name}: {format_bytes(free)} free at {folder}", free
        if free < SCARCE_BYTES:
            todo = f"make room, or move it with {variable}"
            yield Finding("disk", "warn", text, todo, data)
        else:
            yield Finding("disk", "ok", text, data=data)


def prefix_finding(env: Mapping[str, str], settings: Effective) -> Finding:
    """Prefixes kept on disk, against their bound. Damaged ones are removed as they are met."""
    context = settings.context
    if not context.prefix_cache or context.prefix_cache_mib == 0:
        return Finding("prefixes", "ok", "kept in memory only: the settings say so", data={"on_disk": False})
    store = prefix_store(user_cache_dir(env) / PREFIX_FOLDER, context)
    used, most = store.used_bytes(), store.limit()
    text = f"{format_bytes(used)} on disk, of {format_bytes(most)} at most"
    data = {"on_disk": True, "used_bytes": used, "limit_bytes": most}
    if used > most:
        return Finding("prefixes", "warn", text, "`llmrun cache clear` makes room", data)
    return Finding("prefixes", "ok", text, data=data)


def settings_findings(sources: SettingSources) -> tuple[Effective | None, list[Finding]]:
    """Settings as every command would read them, and each profile; None where no command could."""
    try:
        settings = sources.resolve()
    except LlmrunError as error:
        return None, [failed("settings", error)]
    found = []
    profiles = profile_paths(user_config_dir(sources.env))
    for name in profiles:
        try:
            SettingSources(profile=name, env=sources.env).resolve()
        except LlmrunError as error:
            found.append(Finding("settings", "warn", f"profile {name}: {error.message}", error.hint))
    if not found:
        text = f"readable, with {_named(len(profiles), 'profile')}"
        found.append(Finding("settings", "ok", text, data={"profiles": sorted(profiles)}))
    return settings, found


def model_finding(settings: Effective | None) -> Finding:
    """The model that answers when none is named."""
    name = (settings.context.model if settings else None) or DEFAULT_MODEL
    try:
        model = resolve(name)
        facts = check_runnable(read_header(model.path), name=model.path.name)
    except LlmrunError as error:
        return Finding("model", "warn", f"the model used when none is named: {error.message}", error.hint)
    text = f"{name} answers when no model is named ({facts.quant}, {format_bytes(facts.size_bytes)})"
    return Finding("model", "ok", text, data={"ref": name, "path": str(model.path)})


def download_findings() -> Iterator[Finding]:
    """Broken-off downloads in the models' cache."""
    for repo in cached_repos():
        try:
            partial = partial_files(repo)
        except (LlmrunError, OSError):
            continue
        if partial:
            held = sum(file.size_bytes for file in partial)
            text = f"{repo}: {_named(len(partial), 'unfinished file')}, {format_bytes(held)}"
            todo = f"`llmrun pull {repo}` goes on with it, `llmrun rm {repo}` deletes it"
            data = {"repo": repo, "files": [str(file.file) for file in partial], "size_bytes": held}
            yield Finding("downloads", "warn", text, todo, data)


def network_finding(reach: Callable[[], tuple[str, float]]) -> Finding:
    """Whether the Hub answers; nothing on this machine needs it."""
    try:
        endpoint, took_s = reach()
    except LlmrunError as error:
        return Finding("network", "warn", error.message, error.hint)
    text = f"the Hub answers at {endpoint} after {format_seconds(took_s)}"
    return Finding("network", "ok", text, data={"endpoint": endpoint, "seconds": took_s})
