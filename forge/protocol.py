"""What a master, its zygote and its workers say to each other: frames on a socket pair, each a JSON object in one line.

Every message there is stands here as a type: what it holds, who sends it and what it makes the other side do. Whoever
sends one makes it of its type; workers and zygotes believe their master, and a master believes nobody (see
`forge.master.message_checks`). How a job or an ending is put into one: `forge.job_messages`. Ids of jobs are 32
hexadecimal digits.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, final

import orjson

from forge.job import LARGEST_PAYLOAD

__all__ = [
    "MAX_LINE",
    "MOST_UNANSWERED",
    "AnswerMessage",
    "Ends",
    "ExecOrder",
    "FrameSplitter",
    "FromZygote",
    "ProtocolError",
    "Question",
    "ReplyMessage",
    "ReplyStatus",
    "ToWorker",
    "ToZygote",
    "TrialKind",
    "channel_of",
    "channel_pair",
    "frame_of",
    "within_limit",
]

# Bytes of a line: the largest payload that can be configured, and what is around it. That is a few names and numbers in
# a job, and in a job to be enqueued its key and tags too; a result has no more, and a traceback much less.
MAX_LINE = LARGEST_PAYLOAD + 1024 * 1024
# Replies that a worker keeps to itself at most. So of the jobs in a dead worker's hands no more than these, and the one
# after them, can have been started.
MOST_UNANSWERED = 500


class ProtocolError(ValueError):
    """What a peer says is no message, or none that it may send: in which way. Whoever reads it ends the peer."""


# -- from a master to a worker -------------------------------------------------------------------------------------
# Jobs, which `fastpath.job_lines` writes and `fastpath.jobs_in` reads: `id`, `token`, `kind`, `queue`, `attempt`,
# `max_attempts`, `timeout`, `keep`, `keyed`, and the `payload` as the text it was stored as. And:

Ends = Literal["cancelled", "failed", "released"]  # how a job that is told to stop ends, unless it is done by then


@final
class WorkerOrder(TypedDict):
    """`drain`: give back what has not started, finish what has, and leave. `recall`: give back what has not started;
    more may come. `stopping`: the pod stops; handlers may look whether it does. `stacks`: write the stacks of all
    threads to the log."""

    do: Literal["drain", "recall", "stopping", "stacks"]


@final
class CancelOrder(TypedDict):
    """Tell the handler of this job to stop."""

    do: Literal["cancel"]
    id: str
    why: str
    ends: Ends  # failed: it is past its timeout; released: the pod stops


@final
class InterruptOrder(TypedDict):
    """Raise in the handler of this job, which was told to stop and has not."""

    do: Literal["interrupt"]
    id: str


@final
class AnswerMessage(TypedDict):
    """To the question with this number; `error` alone if it could not be answered."""

    answer: int
    error: NotRequired[str]
    receipts: NotRequired[list[tuple[bool, str]]]  # enqueue: whether each is new, and its id or that of the one before
    granted: NotRequired[Literal[True]]  # acquire: the tokens were there,
    retry_after: NotRequired[float]  # or seconds to wait before asking again


ToWorker = WorkerOrder | CancelOrder | InterruptOrder | AnswerMessage

# -- from a worker to its master -----------------------------------------------------------------------------------


@final
class HelloMessage(TypedDict):
    """The first one, when it is ready for jobs."""

    hello: int  # its pid
    capacity: int  # jobs that it runs at the same time


ReplyStatus = Literal["ok", "written", "error", "dead", "cancelled", "throttled", "snoozed", "released"]


class ReplyMessage(TypedDict):
    """A job has ended, in whatever order. The usual one, `ok` and nothing more, is written by `fastpath.done_line`."""

    id: str
    status: ReplyStatus
    took: float  # seconds that the handler ran
    result: NotRequired[Any]  # ok
    spare_result: NotRequired[bool]  # ok: if the database refuses the result, the job is done without it
    children: NotRequired[list[dict[str, Any]]]  # ok: jobs to be stored with it, see `forge.job_messages.record_of`
    message: NotRequired[str | None]  # error, dead, cancelled, released
    error_type: NotRequired[str]  # the class of what was raised
    traceback: NotRequired[str]
    retry_after: NotRequired[float | None]  # throttled: seconds
    job_only: NotRequired[bool]  # throttled: the job, and not its queue
    seconds: NotRequired[float]  # snoozed
    delay: NotRequired[float]  # seconds until it is tried again,
    by_queue: NotRequired[bool]  # unless its queue has a curve
    give_up_after: NotRequired[float]  # released, of a kind that nobody knows: seconds until it is dead


@final
class ProgressMessage(TypedDict):
    """How far a job is."""

    say: Literal["progress"]
    id: str
    percent: float
    message: str | None


@final
class DelayMessage(TypedDict):
    """What the task's own backoff says of a job past its timeout, in case the worker has to be killed for it."""

    say: Literal["delay"]
    id: str
    seconds: float


@final
class WordMessage(TypedDict):
    """`leaving`: send no more; what has not started comes back, and it goes when it is told to drain. `failed`: a
    function of `on_worker_start` has, and it ends instead of saying hello; or, as it leaves, one of `on_worker_stop`.
    """

    say: Literal["leaving", "failed"]
    why: str


# With a key that is a word of Python, these cannot be classes. Each is answered by an `AnswerMessage`.
EnqueueQuestion = TypedDict(
    "EnqueueQuestion", {"ask": int, "for": Literal["enqueue"], "id": str, "jobs": list[dict[str, Any]]}
)
AcquireQuestion = TypedDict(
    "AcquireQuestion", {"ask": int, "for": Literal["acquire"], "id": str, "scope": str, "tokens": int}
)
DrainQuestion = TypedDict("DrainQuestion", {"ask": int, "for": Literal["drain"], "scope": str})  # its tokens are gone

Question = EnqueueQuestion | AcquireQuestion | DrainQuestion
FromWorker = HelloMessage | ReplyMessage | ProgressMessage | DelayMessage | WordMessage | Question

# -- from a master to its zygote -----------------------------------------------------------------------------------

# Said at its start: it is ready only if a worker can start, or start and leave in order. Or nothing is tried.
TrialKind = Literal["", "start", "stop"]


@final
class ZygoteOrder(TypedDict):
    """`retire`: no more forks; it leaves after its last child. `stacks`: write them to the log. `ping`: say pong."""

    do: Literal["retire", "stacks", "ping"]


@final
class ForkOrder(TypedDict):
    """Fork a worker. Its end of a channel comes along as a descriptor, and with `output` its stdout and stderr."""

    do: Literal["fork"]
    label: str  # queue/number
    serial: int  # of the process in that slot: the answer has it too
    alone: bool  # it runs one job at a time, whatever its queue says
    output: bool


@final
class ExecOrder(TypedDict):
    """Start a program. Its stdin, stdout and stderr come along as descriptors."""

    do: Literal["exec"]
    number: int  # the answer has it too
    argv: Sequence[str]
    env: Mapping[str, str | None]  # changes to the zygote's own; None takes a variable away
    cwd: str


ToZygote = ZygoteOrder | ForkOrder | ExecOrder

# -- from a zygote to its master -----------------------------------------------------------------------------------


class ReadyMessage(TypedDict):
    """The modules are imported, and workers can be forked."""

    ready: Literal[True]
    kinds: dict[str, dict[str, Any]]  # that it has handlers for; of each its `curve`, `base`, `cap`, or `builtin`
    schedules: list[dict[str, Any]]  # see `NewSchedule.as_message`
    unsafe: list[str]  # what the modules left running that does not survive a fork, a sentence each
    remarks: list[str]  # what else is to be logged


class NotReadyMessage(TypedDict):
    """Instead of that: why not, in one line, and the exit code that the master should have."""

    failed: str
    code: int


class ForkedMessage(TypedDict):
    """The answer to `ForkOrder`."""

    forked: str  # its label
    serial: int
    pid: int  # 0: there is none, and `error` says why
    error: str | None


class StartedMessage(TypedDict):
    """The answer to `ExecOrder`."""

    started: int  # its number
    pid: int  # 0: there is none, and `error` says why
    error: str | None


class ExitedMessage(TypedDict):
    """A worker or program has ended."""

    exited: int  # its pid
    status: int  # its exit code, or minus the signal


class PongMessage(TypedDict):
    """The answer to `ping`."""

    pong: Literal[True]


FromZygote = ReadyMessage | NotReadyMessage | ForkedMessage | StartedMessage | ExitedMessage | PongMessage

# -- frames --------------------------------------------------------------------------------------------------------


def frame_of(message: ToWorker | FromWorker | ToZygote | FromZygote) -> bytes:
    """A message as its line."""
    return orjson.dumps(message) + b"\n"


def within_limit(rest: bytes) -> bytes:
    """The beginning of a line whose end has not come. Past the limit the peer has lost its mind."""
    if len(rest) > MAX_LINE:
        raise ProtocolError(f"a line of more than {MAX_LINE:,} bytes")
    return rest


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a channel. They block, whatever somebody has said by `socket.setdefaulttimeout`."""
    ours, theirs = socket.socketpair()
    ours.setblocking(True)
    theirs.setblocking(True)
    return ours, theirs


def channel_of(fd: int) -> socket.socket:
    """The end of a channel that this process was given. It blocks, as above."""
    channel = socket.socket(fileno=fd)
    channel.setblocking(True)
    return channel


class FrameSplitter:
    """Bytes as they come, cut into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now, without their ends."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = within_limit(rest)
        return lines
