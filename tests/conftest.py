"""Random search goes on at every run at home; a run that gates a change must not fail by a new draw."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
