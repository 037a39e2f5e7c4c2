# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The native path: the functions of `_fastpath_py` for the inputs that come in millions.

What each one means is said there. Here only exact, ordinary types are handled; whatever else comes is passed on to the
twin, which answers or raises. No code of a caller runs in a loop (no __eq__, no __iter__), but for the handlers that
`burst` is there to call; other threads and finalizers may, so indexes into a caller's lists are checked. The figure at
each function is what it buys, by bench/fastpath.py.
"""

from cpython.array cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.contextvars cimport PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit, PyContextVar_Set
from cpython.dict cimport PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.object cimport PyObject, PyObject_GenericSetAttr, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from libc.math cimport fabs, floor, isfinite, pow, signbit
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memchr, memcmp, memcpy

from uuid import UUID, SafeUUID

from orjson import dumps, loads

from forge import _fastpath_py as twin
from forge.job import Claim, Done, Ending, NewJob

cdef object CLAIM = Claim

cdef extern from "Python.h":
    int PyUnicode_1BYTE_KIND
    int PyUnicode_2BYTE_KIND
    int PyUnicode_KIND(object)
    const void* PyUnicode_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*)
    object PyUnicode_DecodeASCII(const char*, Py_ssize_t, const char*)
    object PyUnicode_DecodeUTF8(const char*, Py_ssize_t, const char*)
    long long PyLong_AsLongLongAndOverflow(object, int*)
    object PyType_GenericAlloc(PyTypeObject*, Py_ssize_t)
    void PyErr_Clear()

# An id's number and its 16 bytes: shifting and masking Python ints costs more than all the rest. The names with an underscore
# have been the way for 20 years; since 3.13 one of them takes other arguments, and there are public ones.
cdef extern from *:
    """
    static int forge_int_to_bytes(PyObject *number, unsigned char *out) {
    #if PY_VERSION_HEX >= 0x030D0000
        Py_ssize_t size = PyLong_AsNativeBytes(number, out, 16, Py_ASNATIVEBYTES_BIG_ENDIAN |
            Py_ASNATIVEBYTES_UNSIGNED_BUFFER | Py_ASNATIVEBYTES_REJECT_NEGATIVE);
        return size < 0 || size > 16 ? -1 : 0;
    #else
        return _PyLong_AsByteArray((PyLongObject *)number, out, 16, 0, 0);
    #endif
    }
    static PyObject *forge_int_from_bytes(const unsigned char *data) {
    #if PY_VERSION_HEX >= 0x030D0000
        return PyLong_FromUnsignedNativeBytes(data, 16, Py_ASNATIVEBYTES_BIG_ENDIAN);
    #else
        return _PyLong_FromByteArray(data, 16, 0, 0);
    #endif
    }
    """
    int forge_int_to_bytes(object, unsigned char*)
    object forge_int_from_bytes(const unsigned char*)

cdef object UNKNOWN = SafeUUID.unknown
cdef object NOTHING = ()  # Python has only one
cdef object ZERO = 0.0


# The places in Ending and Claim; checked when the module is loaded.
cdef enum:
    E_CLAIM = 0
    E_OUTCOME = 1
    E_DELAY = 2
    E_TRACEBACK = 3
    E_RESULT = 4
    E_CHILDREN = 5
    E_FIELDS = 6
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

if Ending._fields != ("claim", "outcome", "delay", "traceback", "result", "children") or Claim._fields != (
    "priority", "run_at", "id", "token", "queue", "kind", "payload", "attempt", "max_attempts", "timeout", "keep_result",
    "keyed",
):
    raise ImportError("the fields of Ending or Claim have moved; renumber them in _fastpath.pyx and build it again")


# 16x the twin (bench/fastpath.py): a payload of 8 fields.
def check_json(value, max_depth, limit):
    if type(max_depth) is not int or type(limit) is not int or not 0 <= max_depth <= 1000 or not 0 <= limit <= 1 << 40:
        return twin.check_json(value, max_depth, limit)
    return room_left(value, max_depth, limit) >= 0 or <bint>twin.check_json(value, max_depth, limit)


cdef int64_t room_left(object value, int depth, int64_t room) noexcept:
    cdef Py_ssize_t at = 0
    cdef PyObject *key
    cdef PyObject *item
    cdef int overflow = 0
    if type(value) is str:
        return room - PyUnicode_GET_LENGTH(value) - 2 if sound_text(value) else -1
    if type(value) is int:
        PyLong_AsLongLongAndOverflow(value, &overflow)
        return room - 1 if overflow == 0 else -1
    if type(value) is float:
        return room - 1 if isfinite(PyFloat_AS_DOUBLE(value)) else -1
    if value is None or value is True or value is False:
        return room - 4
    if type(value) is dict and depth > 0:
        room -= 2
        while PyDict_Next(value, &at, &key, &item):
            if type(<object>key) is not str or not sound_text(<object>key):
                return -1
            room = room_left(<object>item, depth - 1, room - PyUnicode_GET_LENGTH(<object>key) - 3)
            if room < 0:
                return -1
        return room
    if type(value) is list and depth > 0:
        room -= 2
        for each in <list>value:
            room = room_left(each, depth - 1, room)
            if room < 0:
                return -1
        return room
    if type(value) is tuple and depth > 0:
        room -= 2
        for each in <tuple>value:
            room = room_left(each, depth - 1, room)
            if room < 0:
                return -1
        return room
    return -1


cdef bint sound_text(object text) noexcept:
    cdef Py_ssize_t i, n = PyUnicode_GET_LENGTH(text)
    cdef const uint16_t *two
    cdef const uint32_t *four
    cdef uint32_t bad = 0
    if PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND:
        return memchr(PyUnicode_DATA(text), 0, n) == NULL
    # No early exit: so the loops are turned into vector instructions.
    if PyUnicode_KIND(text) == PyUnicode_2BYTE_KIND:
        two = <const uint16_t *>PyUnicode_DATA(text)
        for i in range(n):
            bad |= (two[i] == 0) | ((two[i] & 0xF800) == 0xD800)
    else:
        four = <const uint32_t *>PyUnicode_DATA(text)
        for i in range(n):
            bad |= (four[i] == 0) | ((four[i] & 0xFFFFF800) == 0xD800)
    return bad == 0


# 3.3x the twin (bench/fastpath.py).
def uuids(tick, rand):
    cdef uint64_t at, high
    cdef unsigned char id_[16]
    cdef Py_ssize_t i, j, n
    cdef const unsigned char *data
    if type(tick) is not int or type(rand) is not bytes or PyBytes_GET_SIZE(rand) % 8 or not 0 <= tick < 1 << 60:
        return twin.uuids(tick, rand)
    at, n, data = tick, PyBytes_GET_SIZE(rand) // 8, <const unsigned char *>PyBytes_AS_STRING(rand)
    made = []
    for i in range(n):
        high = (at >> 12 & 0xFFFFFFFFFFFF) << 16 | 0x7000 | at & 0xFFF
        for j in range(8):
            id_[j] = <unsigned char>(high >> (56 - 8 * j))
        memcpy(&id_[8], data + 8 * i, 8)
        id_[8] = id_[8] & 0x3F | 0x80
        found = PyType_GenericAlloc(<PyTypeObject *>UUID, 0)
        PyObject_GenericSetAttr(found, "int", forge_int_from_bytes(id_))
        PyObject_GenericSetAttr(found, "is_safe", UNKNOWN)
        made.append(found)
        at += 1
    return made


# 3.5x the twin (bench/fastpath.py).
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


cdef inline object item(object row, Py_ssize_t i):
    """Of a tuple that is so long."""
    return <object>PyTuple_GET_ITEM(row, i)


cdef inline void put_item(object made, Py_ssize_t i, object value) noexcept:
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, i, value)


cdef object made_uuid(const unsigned char *data):
    found = PyType_GenericAlloc(<PyTypeObject *>UUID, 0)
    PyObject_GenericSetAttr(found, "int", forge_int_from_bytes(data))
    PyObject_GenericSetAttr(found, "is_safe", UNKNOWN)
    return found


cdef object made_claim(
    object priority, object run_at, object id_, object token, object queue, object kind, object payload, object attempt,
    object max_attempts, object timeout, bint keep_result, bint keyed,
):
    """As `Claim(…)`, but that takes 0.15 µs more."""
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
    """Of a job that left nothing behind."""
    made = PyType_GenericAlloc(<PyTypeObject *>Ending, E_FIELDS)
    put_item(made, E_CLAIM, claim)
    put_item(made, E_OUTCOME, outcome)
    put_item(made, E_DELAY, ZERO)
    put_item(made, E_TRACEBACK, None)
    put_item(made, E_RESULT, None)
    put_item(made, E_CHILDREN, NOTHING)
    return made


# 12x the twin (bench/fastpath.py).
def exponential(n, base, cap):
    if type(n) is int and type(base) is float and type(cap) is float:
        return grown(2.0, clamped(n, 30), base, cap)
    return twin.exponential(n, base, cap)


# 14x the twin (bench/fastpath.py).
def decorrelated(n, base, cap, r):
    cdef double high, low
    if type(n) is int and type(base) is float and type(cap) is float and type(r) is float:
        high = grown(3.0, clamped(n, 30), base, cap)
        low = high if high < <double>base else <double>base
        return low + (high - low) * <double>r
    return twin.decorrelated(n, base, cap, r)


# 9x the twin (bench/fastpath.py).
def faktory(n, r):
    cdef int64_t count
    if type(n) is int and type(r) is float and 0.0 <= <double>r < 1.0:
        count = clamped(n, 101)
        count = count - 1 if count > 0 else 0
        return <double>(count * count * count * count + 15 + <int64_t>(<double>r * 30) * (count + 1))
    return twin.faktory(n, r)


# 10x the twin (bench/fastpath.py).
def delay(curve, n, base, cap, r):
    if curve == "decorrelated":
        return decorrelated(n, base, cap, r)
    if curve == "exponential":
        return exponential(n, base, cap)
    if curve == "faktory":
        return faktory(n, r)
    return twin.delay(curve, n, base, cap, r)


cdef int clamped(object n, int most) noexcept:
    cdef int overflow = 0
    cdef long long value = PyLong_AsLongLongAndOverflow(n, &overflow)
    if overflow:
        return most if overflow > 0 else 0
    return 0 if value < 0 else most if value > most else <int>value


cdef double grown(double factor, int n, double base, double cap) noexcept:
    cdef double value = base * pow(factor, n)
    return cap if cap < value else value


cdef struct Buffer:
    char *data
    Py_ssize_t size
    Py_ssize_t room


# 5x the twin (bench/fastpath.py): 100 bytes of payload.
def copy_rows(jobs, run_ats=None):
    cdef Buffer out = Buffer(NULL, 0, 0)
    cdef Py_ssize_t i, n
    cdef bint timed = run_ats is not None
    cdef list rows, times
    if type(jobs) is not list or timed and (type(run_ats) is not list or len(<list>run_ats) != len(<list>jobs)):
        return twin.copy_rows(jobs, run_ats)
    rows, times = jobs, run_ats
    try:
        n = len(rows)
        for i in range(n):
            if not put_row(&out, rows[i], timed) or timed and not put_int(&out, times[i], 8):
                return twin.copy_rows(rows, times)
        return PyBytes_FromStringAndSize(out.data, out.size)
    finally:
        free(out.data)


# The places of NewJob's fields; checked when the module is loaded.
cdef enum:
    ID = 0
    KIND = 1
    PAYLOAD = 2
    QUEUE = 3
    PRIORITY = 4
    RUN_AT = 5
    DELAY = 6
    MAX_ATTEMPTS = 7
    TIMEOUT = 8
    DEDUPE_KEY = 9
    TAGS = 12
    KEEP_RESULT = 13
    LINE = 14
    FIELDS = 15

if NewJob._fields != (
    "id", "kind", "payload", "queue", "priority", "run_at", "delay", "max_attempts", "timeout", "dedupe_key", "unique_for",
    "on_conflict", "tags", "keep_result", "line",
):
    raise ImportError("NewJob's fields have moved; renumber them in _fastpath.pyx and build it again")


cdef bint put_row(Buffer *out, object job, bint timed) except -1:
    """False: the twin must do it."""
    if type(job) is not NewJob or PyTuple_GET_SIZE(job) != FIELDS:
        return False
    payload = item(job, PAYLOAD)
    keep_result = item(job, KEEP_RESULT)
    tags = item(job, TAGS)
    if type(payload) is not bytes or type(tags) is not tuple:
        return False
    need(out, 2)
    put16(out, 10 if timed else 9)
    if not (put_uuid(out, item(job, ID)) and put_text(out, item(job, QUEUE))
            and put_text(out, item(job, KIND))):
        return False
    if not (put_bytes(out, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
            and put_int(out, item(job, PRIORITY), 2)
            and put_int(out, item(job, MAX_ATTEMPTS), 2)
            and put_int(out, item(job, TIMEOUT), 4)):
        return False
    if keep_result is None:
        need(out, 4)
        put32(out, -1)
    elif not put_int(out, keep_result, 4):
        return False
    need(out, 4)
    if PyTuple_GET_SIZE(tags) == 0:
        put32(out, -1)
        return True
    return put_tags(out, <tuple>tags)


cdef bint put_tags(Buffer *out, tuple tags) except -1:
    cdef Py_ssize_t start = out.size, end
    put32(out, 0)
    put_array_head(out, 25, len(tags), False)
    for tag in tags:
        if not put_text(out, tag):
            return False
    end, out.size = out.size, start
    put32(out, <int32_t>(end - start - 4))
    out.size = end
    return True


# 4x the twin (bench/fastpath.py): 3 arguments.
def task_jobs(calls, start, stop, shape, ids, kind, rest, max_depth, limit):
    cdef Py_ssize_t i, j, n
    cdef Py_ssize_t size
    cdef list items, numbers
    cdef tuple types, fields
    cdef dict payload = {"args": (), "kwargs": {}}
    cdef list made = []
    cdef int depth
    cdef int64_t room
    if (
        type(calls) is not list or type(ids) is not list or type(shape) is not tuple or type(rest) is not tuple
        or type(start) is not int or type(stop) is not int or type(max_depth) is not int or type(limit) is not int
        or not 0 <= max_depth <= 1000 or not 0 <= limit <= 1 << 40 or not 0 <= start <= len(calls) <= len(ids)
        or stop < 0
    ):
        return twin.task_jobs(calls, start, stop, shape, ids, kind, rest, max_depth, limit)
    items, numbers, types, fields = calls, ids, shape, rest
    depth, room = max_depth, limit
    n, size = min(stop, len(items)), len(types)
    for i in range(start, n):
        call = items[i]
        if type(call) is not tuple or PyTuple_GET_SIZE(call) != size:
            break
        for j in range(size):
            if type(item(call, j)) is not item(types, j):
                break
        else:
            payload["args"] = call
            if room_left(payload, depth, room) < 0 and not twin.check_json(payload, max_depth, limit):
                break
            data = dumps(payload)
            if PyBytes_GET_SIZE(data) > room:
                break
            made.append(tuple.__new__(NewJob, (
                numbers[i], kind, PyBytes_FromStringAndSize(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)),
            ) + fields))
            continue
        break
    return made


# 19x the twin (bench/fastpath.py).
def survey(jobs):
    cdef bint keyed = False, timed = False, lined = False
    if type(jobs) is not list:
        return twin.survey(jobs)
    for job in <list>jobs:
        if type(job) is not NewJob or PyTuple_GET_SIZE(job) != FIELDS:
            return twin.survey(jobs)
        if item(job, DEDUPE_KEY) is not None:
            keyed = True
        delay_ = item(job, DELAY)
        if type(delay_) is not float and type(delay_) is not int:
            return twin.survey(jobs)
        if item(job, RUN_AT) is not None or delay_ != 0:
            timed = True
        if item(job, LINE) is not None:
            lined = True
    return keyed, timed, lined


# 4x the twin (bench/fastpath.py).
def uuid_array(ids):
    cdef Buffer out = Buffer(NULL, 0, 0)
    cdef list items = ids if type(ids) is list else list(ids)
    try:
        put_array_head(&out, 2950, len(items), False)
        for each in items:
            if not put_uuid(&out, each):
                return twin.uuid_array(items)
        return PyBytes_FromStringAndSize(out.data, out.size)
    finally:
        free(out.data)


# 6.7x the twin (bench/fastpath.py).
def int8_array(values):
    cdef Buffer out = Buffer(NULL, 0, 0)
    cdef list items = values if type(values) is list else list(values)
    try:
        put_array_head(&out, 20, len(items), False)
        for each in items:
            if not put_int(&out, each, 8):
                return twin.int8_array(items)
        return PyBytes_FromStringAndSize(out.data, out.size)
    finally:
        free(out.data)


cdef struct Ended:
    unsigned char id[16]
    int64_t token


cdef int by_id(const void *a, const void *b) noexcept nogil:
    return memcmp(a, b, 16)


# 4.5x the twin (bench/fastpath.py): half as arrays, half as text.
def plain_endings(endings, arrays):
    cdef list items = endings if type(endings) is list else list(endings)
    cdef Py_ssize_t i, n = len(items)
    cdef bint sorted_ = True
    cdef int overflow = 0
    cdef set queues = set()
    cdef dict pods = {}
    cdef int64_t pod = 0
    cdef Py_ssize_t since = 0
    cdef Ended *found = <Ended *>malloc((n + 1) * sizeof(Ended))
    last_queue = None
    if found == NULL:
        raise MemoryError
    try:
        for i in range(n):
            ending = items[i]
            if type(ending) is not Ending or PyTuple_GET_SIZE(ending) != E_FIELDS:
                return twin.plain_endings(items, arrays)
            claim = item(ending, E_CLAIM)
            if type(claim) is not Claim or PyTuple_GET_SIZE(claim) != C_FIELDS:
                return twin.plain_endings(items, arrays)
            token = item(claim, C_TOKEN)
            if (
                type(item(ending, E_OUTCOME)) is not Done
                or item(ending, E_RESULT) is not None
                or item(ending, E_CHILDREN) is not NOTHING
                or item(claim, C_KEYED) is not False
                or type(token) is not int
                or not get_uuid(item(claim, C_ID), found[i].id)
            ):
                return twin.plain_endings(items, arrays)
            found[i].token = PyLong_AsLongLongAndOverflow(token, &overflow)
            if overflow:
                return twin.plain_endings(items, arrays)
            if i > 0 and found[i].token >> 32 != pod:
                pods[pod] = pods.get(pod, 0) + (i - since)
                since = i
            pod = found[i].token >> 32
            if i > 0 and memcmp(found[i - 1].id, found[i].id, 16) >= 0:
                sorted_ = False
            queue = item(claim, C_QUEUE)
            if queue is not last_queue:
                queues.add(queue)
                last_queue = queue
        if not sorted_:  # answers of several workers
            qsort(found, n, sizeof(Ended), by_id)
            for i in range(1, n):
                if memcmp(found[i - 1].id, found[i].id, 16) == 0:
                    return None
        if n > since:
            pods[pod] = pods.get(pod, 0) + (n - since)
        return (*(packed_arrays(found, n) if arrays else packed_text(found, n)), queues, pods)
    finally:
        free(found)


cdef tuple packed_arrays(Ended *found, Py_ssize_t n):
    cdef Buffer ids = Buffer(NULL, 0, 0)
    cdef Buffer tokens = Buffer(NULL, 0, 0)
    cdef Py_ssize_t i
    try:
        put_array_head(&ids, 2950, n, False)
        put_array_head(&tokens, 20, n, False)
        need(&ids, 20 * n)
        need(&tokens, 12 * n)
        for i in range(n):
            put32(&ids, 16)
            memcpy(ids.data + ids.size, found[i].id, 16)
            ids.size += 16
            put32(&tokens, 8)
            put64(&tokens, <uint64_t>found[i].token)
        return PyBytes_FromStringAndSize(ids.data, ids.size), PyBytes_FromStringAndSize(tokens.data, tokens.size)
    finally:
        free(ids.data)
        free(tokens.data)


cdef tuple packed_text(Ended *found, Py_ssize_t n):
    cdef Buffer ids = Buffer(NULL, 0, 0)
    cdef Buffer tokens = Buffer(NULL, 0, 0)
    cdef Py_ssize_t i
    try:
        need(&ids, 16 * n + 1)
        need(&tokens, 24 * n + 2)
        put_char(&tokens, b"[")
        for i in range(n):
            memcpy(ids.data + ids.size, found[i].id, 16)
            ids.size += 16
            if i > 0:
                put_char(&tokens, b",")
            put_number(&tokens, found[i].token)
        put_char(&tokens, b"]")
        return PyBytes_FromStringAndSize(ids.data, ids.size), PyBytes_FromStringAndSize(tokens.data, tokens.size)
    finally:
        free(ids.data)
        free(tokens.data)


cdef bint get_uuid(object value, unsigned char *data) except -1:
    """Its 16 bytes. False: it is none, or odd."""
    if type(value) is not UUID:
        return False
    number = value.int
    if type(number) is not int:
        return False
    if forge_int_to_bytes(number, data) < 0:  # not a number of 128 bits
        PyErr_Clear()
        return False
    return True


cdef const char *HEX = b"0123456789abcdef"


cdef inline void to_hex(const unsigned char *data, char *text) noexcept:
    cdef int i
    for i in range(16):
        text[2 * i] = HEX[data[i] >> 4]
        text[2 * i + 1] = HEX[data[i] & 15]


cdef inline int digit(char c) noexcept:
    """Of a hexadecimal number in lower case; -1: it is none."""
    return c - 48 if 48 <= c <= 57 else c - 87 if 97 <= c <= 102 else -1


cdef bint from_hex(const char *text, unsigned char *data) noexcept:
    cdef int i, high, low
    for i in range(16):
        high, low = digit(text[2 * i]), digit(text[2 * i + 1])
        if high < 0 or low < 0:
            return False
        data[i] = <unsigned char>(high << 4 | low)
    return True


cdef int put_number(Buffer *out, int64_t number) except -1:
    """In decimal."""
    cdef char digits[20]
    cdef int n = 0
    cdef uint64_t rest = <uint64_t>number if number >= 0 else 0 - <uint64_t>number
    need(out, 21)
    if number < 0:
        out.data[out.size] = b"-"
        out.size += 1
    while True:
        digits[n] = <char>(48 + rest % 10)
        n += 1
        rest //= 10
        if rest == 0:
            break
    while n > 0:
        n -= 1
        out.data[out.size] = digits[n]
        out.size += 1
    return 0


cdef int put_raw(Buffer *out, const char *data, Py_ssize_t size) except -1:
    need(out, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef bint put_field(Buffer *out, const char *name, Py_ssize_t size, object value) except -1:
    """A name and an int of 8 bytes. False: it is none."""
    cdef int overflow = 0
    cdef int64_t number
    if type(value) is not int:
        return False
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return False
    put_raw(out, name, size)
    put_number(out, number)
    return True


cdef bint put_quoted(Buffer *out, object text) except -1:
    """Text as JSON has it. False: something in it must be escaped."""
    cdef Py_ssize_t i, size
    cdef const char *data
    if type(text) is not str:
        return False
    data = PyUnicode_AsUTF8AndSize(text, &size)
    if data == NULL:  # a lone surrogate
        PyErr_Clear()
        return False
    for i in range(size):
        if <unsigned char>data[i] < 32 or data[i] == 34 or data[i] == 92:
            return False
    put_char(out, 34)
    put_raw(out, data, size)
    put_char(out, 34)
    return True


# 4.6x the twin (bench/fastpath.py).
def job_lines(claims, in_hand, now):
    cdef Buffer out = Buffer(NULL, 0, 0)
    cdef tuple items
    cdef list keys = []
    cdef Py_ssize_t i
    if type(claims) is not list or type(in_hand) is not dict:
        return twin.job_lines(claims, in_hand, now)
    items = tuple(claims)  # a key of the dict may run code that changes the list
    try:
        for claim in items:
            key = put_job(&out, claim)
            if key is None:
                return twin.job_lines(claims, in_hand, now)
            keys.append(key)
        for i in range(len(items)):
            (<dict>in_hand)[keys[i]] = (items[i], now)
        return PyBytes_FromStringAndSize(out.data, out.size)
    finally:
        free(out.data)


cdef object put_job(Buffer *out, object claim):
    """Its line; the answer is the hex of its id. None: the twin must do it."""
    cdef unsigned char id_[16]
    cdef char text[32]
    if type(claim) is not Claim or PyTuple_GET_SIZE(claim) != C_FIELDS:
        return None
    payload = item(claim, C_PAYLOAD)
    keep, keyed = item(claim, C_KEEP_RESULT), item(claim, C_KEYED)
    if (
        type(payload) is not bytes or type(keep) is not bool or type(keyed) is not bool
        or not get_uuid(item(claim, C_ID), id_)
    ):
        return None
    to_hex(id_, text)
    put_raw(out, b'{"id":"', 7)
    put_raw(out, text, 32)
    if not put_field(out, b'","token":', 10, item(claim, C_TOKEN)):
        return None
    put_raw(out, b',"kind":', 8)
    if not put_quoted(out, item(claim, C_KIND)):
        return None
    put_raw(out, b',"queue":', 9)
    if not (
        put_quoted(out, item(claim, C_QUEUE))
        and put_field(out, b',"attempt":', 11, item(claim, C_ATTEMPT))
        and put_field(out, b',"max_attempts":', 16, item(claim, C_MAX_ATTEMPTS))
        and put_field(out, b',"timeout":', 11, item(claim, C_TIMEOUT))
    ):
        return None
    put_raw(out, b',"keep":1,"keyed":' if keep is True else b',"keep":0,"keyed":', 18)
    put_raw(out, b'1,"payload":' if keyed is True else b'0,"payload":', 12)
    put_raw(out, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
    put_raw(out, b"}\n", 2)
    return PyUnicode_DecodeASCII(text, 32, NULL)


cdef struct Cursor:
    const char *at
    const char *end


cdef inline bint skip(Cursor *c, const char *words, Py_ssize_t size) noexcept:
    """Whether these words come next, and past them."""
    if c.end - c.at < size or memcmp(c.at, words, size) != 0:
        return False
    c.at += size
    return True


cdef bint get_natural(Cursor *c, int64_t *number) noexcept:
    """A natural number as JSON has it, of 18 digits at most."""
    cdef const char *start = c.at
    cdef int64_t value = 0
    while c.at < c.end and 48 <= c.at[0] <= 57:
        if c.at - start >= 18:
            return False
        value = value * 10 + (c.at[0] - 48)
        c.at += 1
    if c.at == start or start[0] == 48 and c.at - start > 1:
        return False
    number[0] = value
    return True


cdef bint get_flag(Cursor *c, bint *flag) noexcept:
    cdef int64_t number = 0
    if not get_natural(c, &number) or number > 1:
        return False
    flag[0] = number == 1
    return True


cdef class _Names:
    """Texts of JSON, decoded once for all jobs that share them."""

    cdef bytes raw
    cdef str text

    def __cinit__(self):
        self.raw, self.text = b"", ""

    cdef str get(self, Cursor *c):
        """The text that comes next. None: there is none, or something in it is escaped."""
        cdef const char *start
        cdef Py_ssize_t size
        if c.at == c.end or c.at[0] != 34:
            return None
        start = c.at + 1
        size = PyBytes_GET_SIZE(self.raw)
        if c.end - start > size and start[size] == 34 and memcmp(start, PyBytes_AS_STRING(self.raw), size) == 0:
            c.at = start + size + 1
            return self.text
        c.at = start
        while c.at < c.end and c.at[0] != 34:
            if <unsigned char>c.at[0] < 32 or c.at[0] == 92:
                return None
            c.at += 1
        if c.at == c.end:
            return None
        self.raw = PyBytes_FromStringAndSize(start, c.at - start)
        self.text = self.raw.decode("utf-8")
        c.at += 1
        return self.text


# 8x the twin (bench/fastpath.py).
def jobs_in(data):
    cdef Cursor line
    cdef const char *at
    cdef const char *end
    cdef const char *stop
    cdef _Names kinds = _Names()
    cdef _Names queues = _Names()
    cdef list found = []
    if type(data) is not bytes:
        return twin.jobs_in(data)
    at = PyBytes_AS_STRING(data)
    end = at + PyBytes_GET_SIZE(data)
    try:
        while True:
            stop = <const char *>memchr(at, 10, end - at)
            if stop == NULL:
                break
            line.at, line.end = at, stop
            if skip(&line, b'{"id":', 6):
                claim = get_job(&line, kinds, queues)
                if claim is None:
                    return twin.jobs_in(data)
                found.append(claim)
            else:
                found.append(PyBytes_FromStringAndSize(at, stop - at))
            at = stop + 1
    except UnicodeDecodeError:
        return twin.jobs_in(data)
    return found, PyBytes_FromStringAndSize(at, end - at)


cdef object get_job(Cursor *line, _Names kinds, _Names queues):
    """The claim in a line that is about one. None: the twin must read it."""
    cdef unsigned char id_[16]
    cdef int64_t token = 0, attempt = 0, max_attempts = 0, timeout = 0
    cdef bint keep = False, keyed = False
    if not (skip(line, b'"', 1) and line.end - line.at > 32 and from_hex(line.at, id_)):
        return None
    line.at += 32
    if not (skip(line, b'","token":', 10) and get_natural(line, &token) and skip(line, b',"kind":', 8)):
        return None
    kind = kinds.get(line)
    if kind is None or not skip(line, b',"queue":', 9):
        return None
    queue = queues.get(line)
    if queue is None or not (
        skip(line, b',"attempt":', 11) and get_natural(line, &attempt)
        and skip(line, b',"max_attempts":', 16) and get_natural(line, &max_attempts)
        and skip(line, b',"timeout":', 11) and get_natural(line, &timeout)
        and skip(line, b',"keep":', 8) and get_flag(line, &keep)
        and skip(line, b',"keyed":', 9) and get_flag(line, &keyed)
        and skip(line, b',"payload":', 11) and line.at < line.end
    ):
        return None
    return made_claim(
        0, None, made_uuid(id_), token, queue, kind, PyBytes_FromStringAndSize(line.at, line.end - line.at - 1), attempt,
        max_attempts, timeout, keep, keyed,
    )


# 5x the twin (bench/fastpath.py).
def done_line(id_, seconds):
    cdef unsigned char data[16]
    if type(seconds) is not float or not 0.0 <= <double>seconds < 1e6 or not get_uuid(id_, data):
        return twin.done_line(id_, seconds)
    return put_done(data, <double>seconds)


cdef bytes put_done(const unsigned char *id_, double seconds):
    """`seconds` are from 0 to a million."""
    cdef char line[100]
    cdef char digits[16]
    cdef double whole = floor(seconds * 1e6), rest = seconds * 1e6 - whole
    cdef int64_t left = <int64_t>whole + (rest > 0.5)
    cdef int size, n = 0
    memcpy(line, b'{"id":"', 7)
    to_hex(id_, line + 7)
    memcpy(line + 39, b'","status":"ok","took":', 23)
    if fabs(rest - 0.5) < 1e-3 or signbit(seconds):
        # Which way it is rounded is not for us to say; nor is -0.0. Not by snprintf: a handler's locale may have a comma.
        return b"%b%.6f}\n" % (PyBytes_FromStringAndSize(line, 62), seconds)
    # 0.2 µs less
    while left or n < 7:
        if n == 6:
            digits[n] = c"."
            n += 1
        digits[n] = <char>(48 + left % 10)
        left //= 10
        n += 1
    size = 62
    while n:
        n -= 1
        line[size] = digits[n]
        size += 1
    memcpy(line + size, b"}\n", 2)
    return PyBytes_FromStringAndSize(line, size + 2)


cdef object DULL = frozenset((int, float, str, bool, bytes, list, tuple, dict))  # results that are nothing but results


# 2.2x the twin (bench/fastpath.py). With what is read and written for it, a no-op job costs a worker 2.6 µs; by the steps that
# can do everything it was 5.5. That each job has context variables of its own is less than 0.05 of it.
def burst(jobs, plain, crew, seat, context, current, clock, until, most):
    cdef unsigned char id_[16]
    cdef Py_ssize_t done = 0, left = most
    cdef double end = until, start, now
    cdef bint kept
    if type(plain) is not dict:
        return twin.burst(jobs, plain, crew, seat, context, current, clock, until, most)
    take, back, early, link = jobs.popleft, jobs.appendleft, crew.early, crew.link
    began = clock()
    start = began
    while left > 0 and start < end and len(jobs) and not early and not crew.closed:
        claim = take()
        how = None
        if type(claim) is CLAIM and PyTuple_GET_SIZE(claim) == C_FIELDS:
            kind = item(claim, C_KIND)
            if type(kind) is str and get_uuid(item(claim, C_ID), id_):
                how = (<dict>plain).get(kind)
        if how is None:
            back(claim)
            break
        handler, app, fn, takes_ctx, ctx_first = <tuple>how
        ctx = PyType_GenericAlloc(<PyTypeObject *>context, 0)
        PyObject_GenericSetAttr(ctx, "_claim", claim)
        PyObject_GenericSetAttr(ctx, "_app", app)
        PyObject_GenericSetAttr(ctx, "_link", link)
        PyObject_GenericSetAttr(ctx, "_began", began)
        returned = error = None
        own = PyContext_CopyCurrent()
        PyContext_Enter(own)
        try:
            PyContextVar_Set(current, ctx)
            seat.ctx = ctx
            try:
                payload = loads(item(claim, C_PAYLOAD))
                if takes_ctx:
                    returned = fn(ctx, payload)
                elif ctx_first:
                    returned = fn(ctx, *payload["args"], **payload["kwargs"])
                else:
                    returned = fn(*payload["args"], **payload["kwargs"])
            except BaseException as raised:
                error = raised
            # Between two instructions of Python code a signal can raise; there are none between the handler's last and this.
            seat.ctx = None
            ended = clock()
            now = ended
            kept = item(claim, C_KEEP_RESULT) is not False
            if (
                error is None and (returned is None or not kept and type(returned) in DULL)
                and ctx._children is None and ctx._written is False and 0.0 <= now - start < 1e6
            ):
                crew.replies.append(put_done(id_, now - start))
                done += 1
            else:
                seat.ended(ctx, handler, began, returned, error)
                ended = clock()
                now = ended
        finally:
            PyContext_Exit(own)
        began, start = ended, now
        left -= 1
    return done


cdef double bounds[200]
cdef Py_ssize_t bound_count = len(twin.BOUNDS)
cdef Py_ssize_t buckets = bound_count + 1
for _at, _bound in enumerate(twin.BOUNDS):
    bounds[_at] = _bound


cdef inline Py_ssize_t bucket(double seconds) noexcept:
    """As bisect_left has it, NaN and all. There are four buckets to a doubling, so the exponent is nearly the answer: what
    is left are a few comparisons."""
    cdef double ratio = seconds / bounds[0]
    cdef uint64_t bits
    cdef Py_ssize_t at
    if not seconds > bounds[0]:
        return 0
    memcpy(&bits, &ratio, 8)
    at = 4 * <Py_ssize_t>((bits >> 52 & 0x7FF) - 1023) - 1
    at = 0 if at < 0 else bound_count if at > bound_count else at
    while at < bound_count and bounds[at] < seconds:
        at += 1
    return at


cdef inline bint good_times(object times) noexcept:
    return type(times) is array and (<array>times).ob_descr.typecode == c"q" and len(<array>times) == 2 * buckets


cdef int count_times(array times, double seconds, object run_at, object sent, object ahead) except -1:
    """`times` are good ones."""
    cdef int overflow = 0
    cdef long long due = 0
    if ahead is not None and type(run_at) is int:
        due = PyLong_AsLongLongAndOverflow(run_at, &overflow)
        if overflow or type(sent) is not float or type(ahead) is not float:
            twin.timed(times, seconds, run_at, sent, ahead)
            return 0
        times.data.as_longlongs[
            buckets + bucket(PyFloat_AS_DOUBLE(sent) + PyFloat_AS_DOUBLE(ahead) - <double>due / 1e6)
        ] += 1
    times.data.as_longlongs[bucket(seconds)] += 1
    return 0


# 14x the twin (bench/fastpath.py).
def timed(times, seconds, run_at, sent, ahead):
    if type(seconds) is not float or not good_times(times):
        return twin.timed(times, seconds, run_at, sent, ahead)
    count_times(<array>times, PyFloat_AS_DOUBLE(seconds), run_at, sent, ahead)


# 9x the twin (bench/fastpath.py). Counting times is 0.05 µs of a job's 0.3.
def answers(data, in_hand, done, times=None, ahead=None):
    cdef Cursor line
    cdef const char *at
    cdef const char *end
    cdef const char *stop
    cdef double seconds = 0.0, total = 0.0, most = 0.0
    cdef list endings = []
    cdef list others = []
    cdef bint counted = times is not None
    if type(data) is not bytes or type(in_hand) is not dict or counted and not good_times(times):
        return twin.answers(data, in_hand, done, times, ahead)
    at = PyBytes_AS_STRING(data)
    end = at + PyBytes_GET_SIZE(data)
    while True:
        stop = <const char *>memchr(at, 10, end - at)
        if stop == NULL:
            break
        line.at, line.end = at, stop
        held = None
        if get_done(&line, &seconds):
            held = (<dict>in_hand).pop(PyUnicode_DecodeASCII(at + 7, 32, NULL), None)
        if held is None:
            others.append(PyBytes_FromStringAndSize(at, stop - at))
        else:
            endings.append(made_ending(held[0], done))
            if counted:
                if type(held) is tuple and PyTuple_GET_SIZE(held) == 2 and type(item(held, 0)) is CLAIM:
                    due = <object>PyTuple_GET_ITEM(item(held, 0), 1)
                else:
                    due = held[0].run_at
                count_times(<array>times, seconds, due, held[1], ahead)
            total += seconds
            most = seconds if seconds > most else most
        at = stop + 1
    return endings, others, PyBytes_FromStringAndSize(at, end - at), total, most


cdef bint get_done(Cursor *line, double *seconds) noexcept:
    """Whether it is a line of `done_line`."""
    cdef unsigned char data[16]
    cdef const char *start
    cdef int64_t number = 0
    cdef int i
    if not (skip(line, b'{"id":"', 7) and line.end - line.at > 32 and from_hex(line.at, data)):
        return False
    line.at += 32
    if not skip(line, b'","status":"ok","took":', 23):
        return False
    start = line.at
    while line.at < line.end and 48 <= line.at[0] <= 57:
        if line.at - start >= 6:
            return False
        number = number * 10 + (line.at[0] - 48)
        line.at += 1
    if line.at == start or line.end - line.at != 8 or line.at[0] != 46 or line.at[7] != 125:
        return False
    for i in range(1, 7):
        if not 48 <= line.at[i] <= 57:
            return False
        number = number * 10 + (line.at[i] - 48)
    seconds[0] = <double>number / 1e6
    return True


# 25x the twin (bench/fastpath.py): 18 characters.
def text_array(values):
    cdef Buffer out = Buffer(NULL, 0, 0)
    cdef Py_ssize_t end
    cdef bint nulls = False
    cdef list items = values if type(values) is list else list(values)
    try:
        put_array_head(&out, 25, len(items), False)
        for each in items:
            if each is None:
                nulls = True
                need(&out, 4)
                put32(&out, -1)
            elif not (put_bytes(&out, PyBytes_AS_STRING(each), PyBytes_GET_SIZE(each)) if type(each) is bytes
                      else put_text(&out, each)):
                return twin.text_array(items)
        if nulls:
            end, out.size = out.size, 4
            put32(&out, 1)
            out.size = end
        return PyBytes_FromStringAndSize(out.data, out.size)
    finally:
        free(out.data)


cdef int need(Buffer *out, Py_ssize_t more) except -1:
    """Room for `more` bytes; the put_* of a fixed size rely on it."""
    cdef char *data
    cdef Py_ssize_t room
    if out.size + more > out.room:
        room = (out.size + more) * 2 + 4096
        data = <char *>realloc(out.data, room)
        if data == NULL:
            raise MemoryError
        out.data, out.room = data, room
    return 0


cdef inline void put16(Buffer *out, int value) noexcept:
    out.data[out.size] = <char>(value >> 8)
    out.data[out.size + 1] = <char>value
    out.size += 2


cdef inline void put32(Buffer *out, int32_t value) noexcept:
    put16(out, value >> 16)
    put16(out, value)


cdef inline void put64(Buffer *out, uint64_t value) noexcept:
    put32(out, <int32_t>(value >> 32))
    put32(out, <int32_t>value)


cdef bint put_bytes(Buffer *out, const char *data, Py_ssize_t size) except -1:
    if size > 0x7FFFFFFF:
        return False
    need(out, size + 4)
    put32(out, <int32_t>size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return True


cdef bint put_text(Buffer *out, object text) except -1:
    cdef Py_ssize_t size
    cdef const char *data
    if type(text) is not str:
        return False
    data = PyUnicode_AsUTF8AndSize(text, &size)
    if data == NULL:  # a lone surrogate
        PyErr_Clear()
        return False
    return put_bytes(out, data, size)


cdef bint put_int(Buffer *out, object value, int size) except -1:
    """An int of 2, 4 or 8 bytes, with its length."""
    cdef int overflow = 0
    cdef long long number
    if type(value) is not int:
        return False
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or size < 8 and not -(1LL << (8 * size - 1)) <= number < 1LL << (8 * size - 1):
        return False
    need(out, 12)
    put32(out, size)
    if size == 8:
        put64(out, <uint64_t>number)
    elif size == 4:
        put32(out, <int32_t>number)
    else:
        put16(out, <int>number)
    return True


cdef int put_char(Buffer *out, char value) except -1:
    need(out, 1)
    out.data[out.size] = value
    out.size += 1
    return 0


cdef bint put_uuid(Buffer *out, object value) except -1:
    """Its length and its 16 bytes."""
    need(out, 20)
    if not get_uuid(value, <unsigned char *>out.data + out.size + 4):
        return False
    put32(out, 16)
    out.size += 16
    return True


cdef int put_array_head(Buffer *out, int oid, Py_ssize_t n, bint nulls) except -1:
    need(out, 24)
    put32(out, 1 if n else 0)
    put32(out, nulls)
    put32(out, oid)
    if n:
        put32(out, <int32_t>n)
        put32(out, 1)
    return 0


# 4.8x the twin (bench/fastpath.py).
def resp_simple(text):
    cdef Py_ssize_t size
    cdef const char *data
    if type(text) is not str:
        return twin.resp_simple(text)
    data = PyUnicode_AsUTF8AndSize(text, &size)
    if data == NULL or not one_line(data, size):
        PyErr_Clear()
        return twin.resp_simple(text)
    return resp_line(b"+", data, size, NULL, 0)


# 7x the twin (bench/fastpath.py).
def resp_error(code, message):
    cdef Py_ssize_t size, more
    cdef const char *head
    cdef const char *data
    if type(code) is not str or type(message) is not str:
        return twin.resp_error(code, message)
    head, data = PyUnicode_AsUTF8AndSize(code, &size), NULL
    if head != NULL:
        data = PyUnicode_AsUTF8AndSize(message, &more)
    if data == NULL or not one_line(head, size) or not one_line(data, more):
        PyErr_Clear()
        return twin.resp_error(code, message)
    return resp_line(b"-", head, size, data, more)


# 1.9x the twin (bench/fastpath.py).
def resp_int(number):
    cdef char text[32]
    cdef int overflow = 0
    cdef long long value
    if type(number) is not int:
        return twin.resp_int(number)
    value = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow:
        return twin.resp_int(number)
    return PyBytes_FromStringAndSize(text, snprintf(text, sizeof(text), b":%lld\r\n", value))


# 2.1x the twin (bench/fastpath.py): 100 bytes.
def resp_bulk(data):
    cdef char head[32]
    cdef char *out
    cdef Py_ssize_t size, used
    if type(data) is not bytes:
        return twin.resp_bulk(data)
    size = PyBytes_GET_SIZE(data)
    used = snprintf(head, sizeof(head), b"$%zd\r\n", size)
    made = PyBytes_FromStringAndSize(NULL, used + size + 2)
    out = PyBytes_AS_STRING(made)
    memcpy(out, head, used)
    memcpy(out + used, PyBytes_AS_STRING(data), size)
    memcpy(out + used + size, b"\r\n", 2)
    return made


# 3.3x the twin (bench/fastpath.py): one line, as clients wait for each answer.
def resp_commands(data, limit):
    cdef const char *start
    cdef const char *at
    cdef const char *end
    cdef const char *stop
    cdef const char *space
    cdef Py_ssize_t most, size
    if type(data) is not bytes or type(limit) is not int or not 0 <= limit <= 1 << 40:
        return twin.resp_commands(data, limit)
    start, most = PyBytes_AS_STRING(data), limit
    at, stop = start, start + PyBytes_GET_SIZE(data)
    found = []
    while at < stop:
        end = <const char *>memchr(at, 10, stop - at)
        if end == NULL:
            break
        if end - at >= most:
            return twin.resp_commands(data, limit)
        size = end - at - (end > at and (end - 1)[0] == 13)
        space = <const char *>memchr(at, 32, size)
        if space == NULL:
            found.append((PyBytes_FromStringAndSize(at, size), b""))
        else:
            found.append((
                PyBytes_FromStringAndSize(at, space - at), PyBytes_FromStringAndSize(space + 1, at + size - space - 1)
            ))
        at = end + 1
    if stop - at >= most:
        return twin.resp_commands(data, limit)
    return found, at - start


# 7x the twin (bench/fastpath.py): one reply.
def resp_values(data, limit):
    cdef const char *text
    cdef const char *end
    cdef Py_ssize_t at = 0, size, most, total, length
    cdef int64_t number
    if type(data) is not bytes or type(limit) is not int or not 0 <= limit <= 1 << 40:
        return twin.resp_values(data, limit)
    text, total, most = PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), limit
    found = []
    while at < total:
        end = <const char *>memchr(text + at, 10, total - at)
        if end == NULL:
            break
        size = end - text - at - 2  # between the first character and the line's end
        if size + 2 >= most or size < 0 or (end - 1)[0] != 13:
            return twin.resp_values(data, limit)
        if text[at] == c"$":
            if size == 2 and memcmp(text + at + 1, b"-1", 2) == 0:
                found.append(("$", None))
                at += size + 3
                continue
            if not get_number(text + at + 1, size, &number) or number < 0 or number > most or text[at + 1] == c"-":
                return twin.resp_values(data, limit)
            length = number
            if total - at - size - 3 < length + 2:
                return found, at
            if memcmp(text + at + size + 3 + length, b"\r\n", 2) != 0:
                return twin.resp_values(data, limit)
            found.append(("$", PyBytes_FromStringAndSize(text + at + size + 3, length)))
            at += size + 3 + length + 2
            continue
        if text[at] == c"+":
            found.append(("+", PyUnicode_DecodeUTF8(text + at + 1, size, NULL)))
        elif text[at] == c"-":
            found.append(("-", PyUnicode_DecodeUTF8(text + at + 1, size, NULL)))
        elif text[at] == c":" and get_number(text + at + 1, size, &number):
            found.append((":", number))
        else:
            return twin.resp_values(data, limit)
        at += size + 3
    if total - at >= most:
        return twin.resp_values(data, limit)
    return found, at


cdef bint one_line(const char *data, Py_ssize_t size) noexcept:
    return memchr(data, 13, size) == NULL and memchr(data, 10, size) == NULL


cdef object resp_line(char first, const char *head, Py_ssize_t size, const char *rest, Py_ssize_t more):
    """The first character, the head, after a space the rest where there is one, and the line's end."""
    made = PyBytes_FromStringAndSize(NULL, size + more + (3 if rest == NULL else 4))
    cdef char *out = PyBytes_AS_STRING(made)
    out[0] = first
    memcpy(out + 1, head, size)
    out += 1 + size
    if rest != NULL:
        out[0] = c" "
        memcpy(out + 1, rest, more)
        out += 1 + more
    memcpy(out, b"\r\n", 2)
    return made


cdef bint get_number(const char *text, Py_ssize_t size, int64_t *number) noexcept:
    """1 to 19 digits, with a minus or without; False: it is something else or too large."""
    cdef bint negative = size > 0 and text[0] == c"-"
    cdef Py_ssize_t i
    cdef uint64_t value = 0
    if not 1 <= size - negative <= 19:  # so many fit in 64 bits without a sign
        return False
    for i in range(negative, size):
        if not c"0" <= text[i] <= c"9":
            return False
        value = value * 10 + <uint64_t>(text[i] - c"0")
    if value > <uint64_t>0x7FFFFFFFFFFFFFFF + negative:
        return False
    number[0] = <int64_t>(0 - value if negative else value)
    return True
