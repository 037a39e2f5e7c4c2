# RESP, which clients of Faktory speak: commands and replies.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memchr, memcmp, memcpy


# 3.8x the twin (bench/fastpath.py).
def resp_simple(text):
    cdef Py_ssize_t size
    cdef const char *data
    if type(text) is not str:
        return twin.resp_simple(text)
    data = PyUnicode_AsUTF8AndSize(text, &size)
    if data == NULL or not one_line(data, size):
        PyErr_Clear()
        return twin.resp_simple(text)
    return resp_line(c"+", data, size, NULL, 0)


# 5.8x the twin (bench/fastpath.py).
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
    return resp_line(c"-", head, size, data, more)


# 1.8x the twin (bench/fastpath.py).
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


# 1.8x the twin (bench/fastpath.py): 100 bytes.
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


# 3.5x the twin (bench/fastpath.py): one line, as clients wait for each answer.
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
        end = <const char *>memchr(at, c"\n", stop - at)
        if end == NULL:
            break
        if end - at >= most:
            return twin.resp_commands(data, limit)
        size = end - at - (end > at and (end - 1)[0] == c"\r")
        space = <const char *>memchr(at, c" ", size)
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


# 9x the twin (bench/fastpath.py): one reply.
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
        end = <const char *>memchr(text + at, c"\n", total - at)
        if end == NULL:
            break
        size = end - text - at - 2  # between the first character and the line's end
        if size + 2 >= most or size < 0 or (end - 1)[0] != c"\r":
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
    return memchr(data, c"\r", size) == NULL and memchr(data, c"\n", size) == NULL


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
        if not is_digit(text[i]):
            return False
        value = value * 10 + <uint64_t>(text[i] - c"0")
    if value > <uint64_t>0x7FFFFFFFFFFFFFFF + negative:
        return False
    number[0] = <int64_t>(0 - value if negative else value)
    return True
