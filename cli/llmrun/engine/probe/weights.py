"""Which device each tensor of the file lies on, from what the engine says while it loads.

The input embedding stays on the CPU, tensors of a block go with their layer, rotation tables go to every
device that has layers, the rest goes with the output (llama-model.cpp, llama-arch.cpp). A model without an
output matrix uses its input embedding instead: on another device that is a second copy, and on the same one
too where an architecture asks for the output first and the file is not mapped there. Overridden tensors, all
copies of them, and unused ones are named in the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from llmrun.gguf.header import TensorInfo

_BLOCK = re.compile(r"blk\.(\d+)\.")
_INPUT = ("token_embd.weight", "token_types.weight", "position_embd.weight", "per_layer_token_embd.weight")
_FIRST_LAYER = ("per_layer_model_proj.weight", "per_layer_proj_norm.weight")
_EVERYWHERE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_OVERRIDDEN = re.compile(r"tensor (\S+) \(\d+ MiB \S+\) buffer type overridden to (\S+)")
_UNUSED = re.compile(r"model has unused tensor (\S+) \(size")
_LOADING = re.compile(r"loading tensor (\S+)")


def weights_by_device(
    tensors: Sequence[TensorInfo],
    layer_devices: Sequence[str],
    log: Sequence[str],
    buffer_devices: Mapping[str, str],
    cpu: str,
    *,
    mapped: bool,
) -> Counter[str]:
    """Bytes of tensors on each device.

    Args:
        layer_devices: device of each layer, the output's last.
        log: what the library wrote while it loaded the model.
        buffer_devices: device of each buffer type that a tensor may be forced into.
        mapped: the file is mapped into memory, so that copies on the CPU are one.
    """
    moved = {m[1]: buffer_devices.get(m[2], cpu) for line in log if (m := _OVERRIDDEN.search(line))}
    unused = {m[1] for line in log if (m := _UNUSED.search(line))}
    loads = [m[1] for line in log if (m := _LOADING.search(line))]
    tied = loads.count(_INPUT[0]) > 1
    output_first = (_INPUT[0], _INPUT[0]) in pairwise(loads)
    output = layer_devices[-1] if layer_devices else cpu
    found: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.name in unused:
            continue
        if tensor.name in moved:
            places = {moved[tensor.name]}
        elif tensor.name in _EVERYWHERE:
            places = set(layer_devices[:-1])
        elif tensor.name in _INPUT:
            places = {cpu, output} if tied and tensor.name == _INPUT[0] else {cpu}
        elif tensor.name in _FIRST_LAYER:
            places = {layer_devices[0]}
        elif block := _BLOCK.match(tensor.name):
            places = {layer_devices[int(block[1])]}
        else:
            places = {output}
        for place in places:
            found[place] += tensor.size_bytes
    first = moved.get(_INPUT[0], cpu)
    together = first == moved.get(_INPUT[0], output)
    if tied and output_first and together and not (first == cpu and mapped):
        found[first] += next((t.size_bytes for t in tensors if t.name == _INPUT[0]), 0)
    return found
