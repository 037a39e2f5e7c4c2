# Jobs, claims and endings, which are named tuples: their fields by place, and many of them at once.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject, Py_TYPE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t

cdef object dumps, Claim, Done, Ending, NewJob
from orjson import dumps

from forge.job import Claim, Done, Ending, NewJob

cdef object NOTHING = ()  # Python has only one
cdef object ZERO = 0.0

# The places of the fields of a NewJob (J), a Claim (C) and an Ending (E); checked when the module is loaded.
cdef enum:
    J_ID = 0
    J_KIND = 1
    J_PAYLOAD = 2
    J_QUEUE = 3
    J_PRIORITY = 4
    J_RUN_AT = 5
    J_DELAY = 6
    J_MAX_ATTEMPTS = 7
    J_TIMEOUT = 8
    J_DEDUPE_KEY = 9
    J_TAGS = 12
    J_KEEP_RESULT = 13
    J_LINE = 14
    J_FIELDS = 15
    C_PRIORITY = 0
    C_RUN_AT = 1
    C_ID = 2
    C_TOKEN = 3
    C_QUEUE = 4
    C_KIND = 5
    C_PAYLOAD = 6
    C_ATTEMPT = 7
    C_MAX_ATTEMPTS = 8
    C_TIMEOUT = 9
    C_KEEP_RESULT = 10
    C_KEYED = 11
    C_FIELDS = 12
    E_CLAIM = 0
    E_OUTCOME = 1
    E_DELAY = 2
    E_TRACEBACK = 3
    E_RESULT = 4
    E_CHILDREN = 5
    E_FIELDS = 6

if (
    NewJob._fields != (
        "id", "kind", "payload", "queue", "priority", "run_at", "delay", "max_attempts", "timeout", "dedupe_key",
        "unique_for", "on_conflict", "tags", "keep_result", "line",
    )
    or Claim._fields != (
        "priority", "run_at", "id", "token", "queue", "kind", "payload", "attempt", "max_attempts", "timeout",
        "keep_result", "keyed",
    )
    or Ending._fields != ("claim", "outcome", "delay", "traceback", "result", "children")
):
    raise ImportError(
        "the fields of NewJob, Claim or Ending have moved; renumber them in _native/records.pxi and build it again"
    )


# 3.7x the twin (bench/fastpath.py).
def claims(rows, token, queue):
    if type(rows) is not list:  # an iterator could not be begun anew by the twin
        return twin.claims(rows, token, queue)
    found = []
    for row in <list>rows:
        if type(row) is not tuple or PyTuple_GET_SIZE(row) != 10:
            return twin.claims(rows, token, queue)
        id_, payload = item(row, 2), item(row, 4)
        if type(id_) is not bytes or PyBytes_GET_SIZE(id_) != 16:
            return twin.claims(rows, token, queue)
        if type(payload) is str:
            payload = (<str>payload).encode()
        elif type(payload) is not bytes:
            return twin.claims(rows, token, queue)
        found.append(made_claim(
            item(row, 0), item(row, 1), made_uuid(<const unsigned char *>PyBytes_AS_STRING(id_)), token, queue,
            item(row, 3), payload, item(row, 5), item(row, 6), item(row, 7), item(row, 8) is not None,
            item(row, 9) is not None,
        ))
    return found


# 5.5x the twin (bench/fastpath.py): 3 arguments.
def task_jobs(calls, start, stop, shape, ids, kind, rest, max_depth, limit):
    cdef Py_ssize_t i, n
    cdef list items, numbers
    cdef tuple types, fields
    cdef dict payload = {"args": (), "kwargs": {}}
    cdef list made = []
    cdef int depth
    cdef int64_t room
    if (
        type(calls) is not list or type(ids) is not list or type(shape) is not tuple or type(rest) is not tuple
        or type(start) is not int or type(stop) is not int or not may_judge(max_depth, limit)
        or not 0 <= start <= len(calls) <= len(ids) or stop < 0
    ):
        return twin.task_jobs(calls, start, stop, shape, ids, kind, rest, max_depth, limit)
    items, numbers, types, fields = calls, ids, shape, rest
    depth, room = max_depth, limit
    n = min(stop, len(items))
    for i in range(start, n):
        call = items[i]
        if not has_shape(call, types):
            break
        payload["args"] = call
        if room_left(payload, depth, room) < 0 and not twin.check_json(payload, max_depth, limit):
            break
        data = dumps(payload)
        if PyBytes_GET_SIZE(data) > room:
            break
        made.append(tuple.__new__(NewJob, (
            numbers[i], kind, PyBytes_FromStringAndSize(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)),
        ) + fields))
    return made


cdef inline bint has_shape(object call, tuple types) noexcept:
    """Whether it is a tuple whose items are of exactly these types."""
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(types)
    if type(call) is not tuple or PyTuple_GET_SIZE(call) != n:
        return False
    for i in range(n):
        if <PyObject *>Py_TYPE(<object>PyTuple_GET_ITEM(call, i)) != PyTuple_GET_ITEM(types, i):
            return False
    return True


# 25x the twin (bench/fastpath.py).
def survey(jobs):
    cdef bint keyed = False, timed = False, lined = False
    if type(jobs) is not list:
        return twin.survey(jobs)
    for job in <list>jobs:
        if type(job) is not NewJob or PyTuple_GET_SIZE(job) != J_FIELDS:
            return twin.survey(jobs)
        if item(job, J_DEDUPE_KEY) is not None:
            keyed = True
        delay_ = item(job, J_DELAY)
        if type(delay_) is not float and type(delay_) is not int:
            return twin.survey(jobs)
        if item(job, J_RUN_AT) is not None or delay_ != 0:
            timed = True
        if item(job, J_LINE) is not None:
            lined = True
    return keyed, timed, lined


cdef object made_claim(
    object priority, object run_at, object id_, object token, object queue, object kind, object payload, object attempt,
    object max_attempts, object timeout, bint keep_result, bint keyed,
):
    """As `Claim(…)`, which would take 0.15 µs more."""
    made = PyType_GenericAlloc(<PyTypeObject *>Claim, C_FIELDS)
    put_item(made, C_PRIORITY, priority)
    put_item(made, C_RUN_AT, run_at)
    put_item(made, C_ID, id_)
    put_item(made, C_TOKEN, token)
    put_item(made, C_QUEUE, queue)
    put_item(made, C_KIND, kind)
    put_item(made, C_PAYLOAD, payload)
    put_item(made, C_ATTEMPT, attempt)
    put_item(made, C_MAX_ATTEMPTS, max_attempts)
    put_item(made, C_TIMEOUT, timeout)
    put_item(made, C_KEEP_RESULT, True if keep_result else False)
    put_item(made, C_KEYED, True if keyed else False)
    return made


cdef object made_ending(object claim, object outcome):
    """As `Ending(claim, outcome)`: of a job that left nothing behind."""
    made = PyType_GenericAlloc(<PyTypeObject *>Ending, E_FIELDS)
    put_item(made, E_CLAIM, claim)
    put_item(made, E_OUTCOME, outcome)
    put_item(made, E_DELAY, ZERO)
    put_item(made, E_TRACEBACK, None)
    put_item(made, E_RESULT, None)
    put_item(made, E_CHILDREN, NOTHING)
    return made
