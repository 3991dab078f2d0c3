"""The most main memory this process has held since a moment: its peak resident set.

Linux keeps a high-water mark that can be set back (proc_pid_clear_refs(5)); elsewhere the peak is that of the
whole life of the process (getrusage(2)).
"""

from __future__ import annotations

import sys

from llmrun.engine.threads import ReadText, read_text
from llmrun.units import KIB

_RESET = "5"


def reset_peak() -> None:
    """Begin to watch; where the system does not allow it, nothing changes."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write(_RESET)
    except OSError:
        pass


def peak_rss_bytes(read: ReadText = read_text) -> int | None:
    """Bytes since `reset_peak`; None where the system does not tell."""
    for line in (read("/proc/self/status") or "").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "VmHWM:" and words[1].isdecimal():
            return int(words[1]) * KIB
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KIB
