# Endings of jobs that are done, packed for the database.

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcmp, memcpy

cdef struct Ended:
    unsigned char id[16]
    int64_t token


# 8.5x the twin (bench/fastpath.py): half as arrays, half as text.
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


cdef int by_id(const void *a, const void *b) noexcept nogil:
    return memcmp(a, b, 16)


cdef tuple packed_arrays(Ended *found, Py_ssize_t n):
    """A uuid[] and a bigint[], as PostgreSQL takes them."""
    cdef Buffer ids = Buffer(NULL, 0, 0)
    cdef Buffer tokens = Buffer(NULL, 0, 0)
    cdef Py_ssize_t i
    try:
        put_array_head(&ids, UUID_OID, n)
        put_array_head(&tokens, INT8_OID, n)
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
    """The bytes of the ids, and the tokens as JSON, as SQLite takes them."""
    cdef Buffer ids = Buffer(NULL, 0, 0)
    cdef Buffer tokens = Buffer(NULL, 0, 0)
    cdef Py_ssize_t i
    try:
        need(&ids, 16 * n + 1)
        need(&tokens, 24 * n + 2)
        put_char(&tokens, c"[")
        for i in range(n):
            memcpy(ids.data + ids.size, found[i].id, 16)
            ids.size += 16
            if i > 0:
                put_char(&tokens, c",")
            put_number(&tokens, found[i].token)
        put_char(&tokens, c"]")
        return PyBytes_FromStringAndSize(ids.data, ids.size), PyBytes_FromStringAndSize(tokens.data, tokens.size)
    finally:
        free(ids.data)
        free(tokens.data)
