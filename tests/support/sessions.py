"""An open session, seen as what its file should hold."""

from __future__ import annotations

from llmrun.journal.session import Session
from llmrun.journal.session_records import Transcript


def transcript_of(session: Session) -> Transcript:
    """The conversation as it is now."""
    return Transcript(
        session.name,
        session._history.created,
        session.model,
        session.system,
        session.turns,
        session.damaged_lines,
    )
