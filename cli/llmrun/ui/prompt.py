"""How the chat asks for a message, and one way in which a user may decline."""

from __future__ import annotations

PROMPT = ">>> "
CONTINUATION = "... "


class LineDiscarded(KeyboardInterrupt):
    """Ctrl-C threw a typed line away; it was no wish to leave."""
