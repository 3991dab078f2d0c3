"""From settings to what the engine is asked for."""

from __future__ import annotations

import pytest

from llmrun.app.plan import tensor_rules


@pytest.mark.parametrize(
    ("texts", "rules"),
    [
        ((), ()),
        (("ffn=CPU",), (("ffn", "CPU"),)),
        (("a=CPU,b=CUDA0", "c=CPU"), (("a", "CPU"), ("b", "CUDA0"), ("c", "CPU"))),
        ((r"blk\.\d{1,2}\.ffn=RPC0[127.0.0.1:5]",), ((r"blk\.\d{1,2}\.ffn", "RPC0[127.0.0.1:5]"),)),
        (("x(?=y)=CPU,z=CPU",), (("x(?=y)", "CPU"), ("z", "CPU"))),
    ],
)
def test_rules_for_tensors(texts: tuple[str, ...], rules: tuple[tuple[str, str], ...]) -> None:
    assert tensor_rules(texts) == rules
