# JSON: what may be stored, judged without writing it.

from cpython.dict cimport PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.object cimport PyObject
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memchr


# 18x the twin (bench/fastpath.py): a payload of 8 fields.
def check_json(value, max_depth, limit):
    if not may_judge(max_depth, limit):
        return twin.check_json(value, max_depth, limit)
    return room_left(value, max_depth, limit) >= 0 or <bint>twin.check_json(value, max_depth, limit)


cdef bint may_judge(object max_depth, object limit) except -1:
    """Whether they are numbers that `room_left` can count with, and not so deep that the stack ends first."""
    return type(max_depth) is int and type(limit) is int and 0 <= max_depth <= 1000 and 0 <= limit <= 1 << 40


cdef int64_t room_left(object value, int depth, int64_t room) noexcept:
    """How much of `room` is left after `value` at its shortest; negative: let the twin judge."""
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
    """No NUL and no lone surrogate."""
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
