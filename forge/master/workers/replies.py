"""What workers say: how jobs went, questions, progress, that they want to leave."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from typing import Any

from forge import fastpath
from forge.codec import as_text
from forge.job import Claim, Released, Written
from forge.job_messages import ending_of, seconds_taken
from forge.master.finalizer import Finalizer, without_payload
from forge.master.message_checks import MAX_PID, message_of, shown, text, whole
from forge.master.pod.log import a_bug
from forge.master.pod.meter import Meter
from forge.master.pod_state import PodState
from forge.master.queues.local_queue import LocalQueue
from forge.master.workers.requests import Requests
from forge.master.workers.slot import Slot
from forge.master.workers.stop_job import ended_late, failed, told_delay
from forge.master.workers.zygotes import Zygotes
from forge.protocol import ProtocolError

__all__ = ["Replies", "WorkerBroken"]

MOST_AT_ONCE = 10_000  # jobs in one worker, by its word; the queue's own setting counts if that is less


class WorkerBroken(Exception):
    """A worker has said what no worker may, or what cannot be read, and must be killed. The message says why."""


class Replies:
    """Reads what workers say about jobs, and passes it on."""

    def __init__(
        self,
        queues: Mapping[str, LocalQueue],
        state: PodState,
        zygotes: Zygotes,
        finalizer: Finalizer,
        requests: Requests,
        meter: Meter,
    ) -> None:
        self._queues, self._state, self._zygotes = queues, state, zygotes
        self._finalizer, self._requests, self._meter = finalizer, requests, meter

    def hear(self, slot: Slot) -> bool:
        """Read what has come from a worker. Returns whether that was anything. Raises EOFError if its process is gone,
        and WorkerBroken if it must be killed."""
        queue, now = self._queues[slot.queue], time.monotonic()
        back: list[Claim] = []  # unstarted
        times = self._meter.tally(slot.queue).times
        try:
            heard = slot.receive(now, times, self._meter.ahead)
            if heard.done:
                queue.note_all(len(heard.done), heard.total, heard.longest)
                if heard.long or queue.long_kinds:
                    queue.long_kinds.learn(heard.done, heard.long)
                self._finalizer.done([without_payload(e) for e in heard.done] if queue.heavy else heard.done)
            for line in heard.lines:
                message = message_of(line)
                if "status" in message:
                    self._replied(queue, slot, message, now, back, times)
                else:
                    self._said(queue, slot, message)
        except EOFError:
            raise
        except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as e:
            raise WorkerBroken(f"broke the protocol: {e if isinstance(e, ProtocolError) else repr(e)}") from e
        except Exception as e:  # (the last net: it costs this worker, not the master and all the others)
            a_bug(f"reading what worker {slot.label} said")
            raise WorkerBroken("was killed: what it said could not be read") from e
        finally:
            if self._state.stopping or queue.closing:
                self._finalizer.release(back)
            elif back:
                others, chained = self._finalizer.chains.apart(back)
                self._finalizer.release(chained)
                queue.take_back(others)
        return bool(heard.done or heard.lines)

    def _replied(
        self, queue: LocalQueue, slot: Slot, message: dict[str, Any], now: float, back: list[Claim], times: array[int]
    ) -> None:
        """A reply. The claim leaves the worker's hands only for somebody else's: whatever is wrong with the reply, it
        is not lost."""
        claim, sent = slot.in_hand.get(text(message, "id"), (None, 0.0))
        if claim is None:
            if slot.killed_for is None:
                raise ProtocolError(f"it answered for {shown(message['id'])}, which it did not have")
            return  # not ours any more
        try:
            ending, seconds = ending_of(message, claim), min(seconds_taken(message), max(0.0, now - sent))
        except Exception as e:
            self._misunderstood(slot, claim, e, now)
            raise ProtocolError(f"a reply that cannot be understood: {as_text(str(e), 200)}") from e
        stop = slot.answered(message["id"], now)[1]
        unstarted = isinstance(ending.outcome, Released) and not ending.delay and ending.outcome.message is None
        if unstarted and stop is None:
            back.append(claim)  # another worker gets it
            return
        if isinstance(ending.outcome, Written):  # in the database already, with the handler's own writes
            self._meter.completed(slot.queue)
            self._finalizer.written(claim)
        else:
            late = ending if stop is None else ended_late(ending, stop, self._zygotes.current.kinds)
            self._finalizer.end(late)
        if not unstarted:
            queue.note(seconds)
            queue.long_kinds.took(claim.kind, seconds)
            fastpath.timed(times, seconds, claim.run_at, sent, self._meter.ahead)

    def _misunderstood(self, slot: Slot, claim: Claim, error: Exception, now: float) -> None:
        """End a job as failed whose reply cannot be understood: it has ended, and nobody can tell how."""
        why = f"the worker's reply could not be understood: {as_text(str(error), 500)}"
        ending = failed(claim, why, self._zygotes.current.kinds)
        slot.answered(claim.id.hex, now)
        self._finalizer.end(ending)

    def _said(self, queue: LocalQueue, slot: Slot, message: dict[str, Any]) -> None:
        if "hello" in message:
            most = 1 if queue.settings.worker == "process" else queue.settings.concurrency
            capacity = whole(message, "capacity", 1, MOST_AT_ONCE)
            slot.greeted(whole(message, "hello", 2, MAX_PID), min(capacity, most))
        elif message.get("say") == "failed":
            slot.could_not_start(text(message, "why", 1000))
        elif not slot.ready:
            raise ProtocolError("it spoke before it was ready")
        elif "ask" in message:
            self._requests.asked(slot, message)
        elif message.get("say") == "progress":
            self._requests.progress(slot, message)
        elif message.get("say") == "delay":
            told_delay(slot, message)
        elif message.get("say") == "leaving":
            slot.wants_to_leave(text(message, "why", 200))
        else:
            raise ProtocolError(f"no message that there is: {shown(message)}")
