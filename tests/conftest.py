"""Random search goes on at every run at home; a run that gates a change must not fail by a new draw.

No example has a deadline: a busy machine is no fault of the program.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("home", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "home")
