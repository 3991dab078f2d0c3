"""Random search goes on at every run at home; a run that gates a change must not fail by a new draw.

No example has a deadline: a busy machine is no fault of the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("home", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "home")


@pytest.fixture(autouse=True)
def _no_test_takes_the_hub_offline_for_the_next() -> Iterator[None]:
    """The Hub's client remembers HF_HUB_OFFLINE from its first import, which a test may do that sets it."""
    yield
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        vars(constants)["HF_HUB_OFFLINE"] = False
