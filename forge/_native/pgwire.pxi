# PostgreSQL's binary formats: rows of COPY, and arrays.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

cdef enum:
    UUID_OID = 2950
    INT8_OID = 20
    TEXT_OID = 25
    ABSENT = -1  # the length of a null


# 8.6x the twin (bench/fastpath.py): 100 bytes of payload.
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


cdef bint put_row(Buffer *out, object job, bint timed) except -1:
    """A row, but for its time. False: the twin must do it."""
    if type(job) is not NewJob or PyTuple_GET_SIZE(job) != J_FIELDS:
        return False
    payload = item(job, J_PAYLOAD)
    keep_result = item(job, J_KEEP_RESULT)
    tags = item(job, J_TAGS)
    if type(payload) is not bytes or type(tags) is not tuple:
        return False
    need(out, 2)
    put16(out, 10 if timed else 9)
    if not (put_uuid(out, item(job, J_ID)) and put_text(out, item(job, J_QUEUE))
            and put_text(out, item(job, J_KIND))):
        return False
    if not (put_bytes(out, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
            and put_int(out, item(job, J_PRIORITY), 2)
            and put_int(out, item(job, J_MAX_ATTEMPTS), 2)
            and put_int(out, item(job, J_TIMEOUT), 4)):
        return False
    if keep_result is None:
        need(out, 4)
        put32(out, ABSENT)
    elif not put_int(out, keep_result, 4):
        return False
    need(out, 4)
    if PyTuple_GET_SIZE(tags) == 0:
        put32(out, ABSENT)
        return True
    return put_tags(out, <tuple>tags)


cdef bint put_tags(Buffer *out, tuple tags) except -1:
    cdef Py_ssize_t start = out.size, end
    put32(out, 0)
    put_array_head(out, TEXT_OID, len(tags))
    for tag in tags:
        if not put_text(out, tag):
            return False
    end, out.size = out.size, start
    put32(out, <int32_t>(end - start - 4))
    out.size = end
    return True


# 3.7x the twin (bench/fastpath.py).
def uuid_array(ids):
    cdef Buffer out = Buffer(NULL, 0, 0)
    cdef list items = ids if type(ids) is list else list(ids)
    try:
        put_array_head(&out, UUID_OID, len(items))
        for each in items:
            if not put_uuid(&out, each):
                return twin.uuid_array(items)
        return PyBytes_FromStringAndSize(out.data, out.size)
    finally:
        free(out.data)


# 7.5x the twin (bench/fastpath.py).
def int8_array(values):
    cdef Buffer out = Buffer(NULL, 0, 0)
    cdef list items = values if type(values) is list else list(values)
    try:
        put_array_head(&out, INT8_OID, len(items))
        for each in items:
            if not put_int(&out, each, 8):
                return twin.int8_array(items)
        return PyBytes_FromStringAndSize(out.data, out.size)
    finally:
        free(out.data)


# 27x the twin (bench/fastpath.py): 18 characters.
def text_array(values):
    cdef Buffer out = Buffer(NULL, 0, 0)
    cdef Py_ssize_t end
    cdef bint nulls = False
    cdef list items = values if type(values) is list else list(values)
    try:
        put_array_head(&out, TEXT_OID, len(items))
        for each in items:
            if each is None:
                nulls = True
                need(&out, 4)
                put32(&out, ABSENT)
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


cdef bint put_bytes(Buffer *out, const char *data, Py_ssize_t size) except -1:
    """Their length and themselves. False: there are too many."""
    if size > 0x7FFFFFFF:
        return False
    need(out, size + 4)
    put32(out, <int32_t>size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return True


cdef bint put_text(Buffer *out, object text) except -1:
    """As UTF-8, with its length. False: it is no text, or cannot be encoded."""
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
    """An int of 2, 4 or 8 bytes, with its length. False: it is none, or too large."""
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


cdef bint put_uuid(Buffer *out, object value) except -1:
    """Its length and its 16 bytes. False: it is no id."""
    need(out, 20)
    if not get_uuid(value, <unsigned char *>out.data + out.size + 4):
        return False
    put32(out, 16)
    out.size += 16
    return True


cdef int put_array_head(Buffer *out, int oid, Py_ssize_t n) except -1:
    """Of an array of one dimension, without nulls."""
    need(out, 24)
    put32(out, 1 if n else 0)
    put32(out, 0)
    put32(out, oid)
    if n:
        put32(out, <int32_t>n)
        put32(out, 1)
    return 0
