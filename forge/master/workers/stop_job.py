"""How a running job is made to stop, because it is past its timeout or was cancelled, or the pod stops: it is asked,
after a grace it is interrupted, after another its worker is killed with every process it started.

Whatever it answers meanwhile counts: done is done. Of a job past its timeout, any other end is a failure that says so;
of a pod that stops, any other end gives it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge import delays
from forge.codec import as_seconds
from forge.job import Cancelled, Claim, Ending, Failed, Released
from forge.master.workers.slot import Slot, Stop
from forge.protocol import frame_of
from forge.retry import Backoff

__all__ = ["cancel", "ended_late", "failed", "leave", "notice", "overdue", "press", "timed_out", "told_delay"]

RECALL_WITHIN = 0.2  # seconds in which a job that has not started comes back, or has started after all
NOTICE = 0.2  # how much of the time that a pod has to stop is left when its jobs are told to stop
LONGEST_NOTICE = 5.0  # seconds that are left then at most
STOPPING = "the pod is stopping"


def cancel(slot: Slot, id: str, now: float) -> None:
    """Begin to stop a job that was cancelled."""
    slot.stops.setdefault(id, Stop("cancelled by user", failed=False, next_at=now))


def overdue(slot: Slot, now: float) -> None:
    """Begin to stop the jobs that have run for longer than their timeouts."""
    for id, claim, since in slot.running():
        if now - since > claim.timeout and id not in slot.stops:
            slot.stops[id] = Stop(f"timeout after {claim.timeout} s", failed=True, next_at=now)


def notice(shutdown_timeout: float) -> float:
    """How many seconds before the end of a pod its jobs are told to stop."""
    return min(shutdown_timeout * NOTICE, LONGEST_NOTICE)


def leave(slot: Slot, now: float, grace: float) -> None:
    """Begin to stop what still runs because the pod's time is nearly up. What does not end by itself goes back."""
    for id, _, _ in slot.running():
        if id not in slot.stops:
            slot.stops[id] = Stop(STOPPING, failed=False, next_at=now, leaving=True, grace=grace)


def press(slot: Slot, now: float, grace: float) -> Stop | None:
    """Go one step further with each job whose time has come. Returns the one for which the worker must be killed, if
    there is one."""
    for id, stop in slot.stops.items():
        if now < stop.next_at:
            continue
        if not slot.runs(id):
            slot.recall(again=True)  # the first time it may have been about to start
            stop.put_off(now + RECALL_WITHIN)
            continue
        match stop.go_on(now, grace):
            case 1:
                slot.say(frame_of({"do": "cancel", "id": id, "why": stop.why, "ends": stop.ends}))
            case 2:
                slot.say(frame_of({"do": "interrupt", "id": id}))
            case _ if not stop.leaving:
                return stop
    return None


def ended_late(ending: Ending, stop: Stop, kinds: Mapping[str, Mapping[str, Any]]) -> Ending:
    """The ending that counts for a job that was told to stop and then ended so."""
    if not stop.failed or not isinstance(ending.outcome, (Failed, Cancelled, Released)):
        return ending
    late = timed_out(ending.claim, stop, kinds)
    return late._replace(traceback=ending.traceback, delay=ending.delay or late.delay)  # its own word comes first


def timed_out(claim: Claim, stop: Stop, kinds: Mapping[str, Mapping[str, Any]]) -> Ending:
    """The failure of a job past its timeout; it is tried again by its curve, or as the worker has said before it was
    killed."""
    ending = failed(claim, stop.why, kinds)
    return ending if stop.delay is None else ending._replace(delay=stop.delay)


def failed(claim: Claim, why: str, kinds: Mapping[str, Mapping[str, Any]]) -> Ending:
    """A failure that the master itself finds; the job is tried again by the curve of its kind."""
    about = kinds.get(claim.kind, {})
    if "curve" not in about:
        return Ending(claim, Failed(why), delays.by_default(claim.attempt))
    curve = Backoff(about["curve"], about["base"], about["cap"])
    return Ending(claim, Failed(why), delays.by_curve(curve, claim.attempt))


def told_delay(slot: Slot, message: Mapping[str, Any]) -> None:
    """Keep what a worker says of the task's own delay for a job that is past its timeout."""
    stop, seconds = slot.stops.get(str(message.get("id"))), as_seconds(message.get("seconds"))
    if stop is not None and seconds is not None:
        stop.retry_after(seconds)
