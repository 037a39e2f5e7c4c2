"""How far running jobs are."""

from __future__ import annotations

from collections.abc import Sequence

from forge.codec import clean_text
from forge.storage.contract.values import Note

__all__ = ["tidy_notes"]

MAX_PROGRESS_MESSAGE = 500  # characters; the rest is cut


def tidy_notes(notes: Sequence[Note]) -> list[Note]:
    """The last note of each claim, by id (two transactions must lock rows in one order), in bounds."""
    last = {(note[0], note[1]): note for note in notes}
    return [
        (job, token, min(max(percent, 0.0), 100.0), message and clean_text(message[:MAX_PROGRESS_MESSAGE]))
        for job, token, percent, message in sorted(last.values(), key=lambda note: (note[0].int, note[1]))
        if percent == percent  # NaN is not JSON
    ]
