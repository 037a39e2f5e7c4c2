"""What the parts of the loop share: the settings in force, whether the pod serves, and what it has in hand.

One object, given to each of them. Only the loop's thread changes it, by the methods below; the heart's thread reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forge.config import Config

__all__ = ["PodState"]


class PodState:
    """What the parts of one pod's loop share."""

    def __init__(self, config: Config) -> None:
        self.config = config  # replaced as a whole by a reload
        self.stop_by: float | None = None  # monotonic: when the pod is to be gone; None: it is not stopping
        self.fenced = False  # no beat was confirmed for so long that nothing may run
        self.holding = False  # jobs are in hand, so somebody may want them cancelled
        self.running: Mapping[str, int] = {}  # workers by queue; never changed, but replaced as a whole
        self.idle: Sequence[str] = ()  # queues that could take jobs; replaced as a whole

    @property
    def stopping(self) -> bool:
        """Whether the pod was told to stop: nothing new begins."""
        return self.stop_by is not None

    def configure(self, config: Config) -> None:
        """Put other settings in force."""
        self.config = config

    def stop(self, by: float) -> None:
        """Begin to stop. The pod is to be gone by then (monotonic)."""
        self.stop_by = by

    def fence(self) -> None:
        """Let nothing run until `reopen`."""
        self.fenced = True

    def reopen(self) -> None:
        """Let jobs run again, after `fence`."""
        self.fenced = False

    def note_held(self, holding: bool) -> None:
        """Note whether jobs are in hand."""
        self.holding = holding

    def note_running(self, running: Mapping[str, int]) -> None:
        """Note how many workers each queue has, or how many places its jobs in programs take."""
        self.running = running

    def note_idle(self, names: Sequence[str]) -> None:
        """Note which queues could take jobs and have none waiting, as far as is known."""
        self.idle = names
