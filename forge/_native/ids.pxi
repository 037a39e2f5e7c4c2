# Ids: made, taken apart, and as 32 hexadecimal digits.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject_GenericSetAttr, PyTypeObject
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef object UUID, SafeUUID
from uuid import UUID, SafeUUID

cdef object UNKNOWN = SafeUUID.unknown

# An id's number and its 16 bytes: shifting and masking Python ints costs more than all the rest. The names with an
# underscore have been the way for 20 years; since 3.13 one of them takes other arguments, and there are public ones.
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

cdef enum:
    HEX_DIGITS = 32  # of an id


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
        made.append(made_uuid(id_))
        at += 1
    return made


cdef object made_uuid(const unsigned char *data):
    """The id of these 16 bytes, as `UUID(bytes=…)` makes it."""
    found = PyType_GenericAlloc(<PyTypeObject *>UUID, 0)
    PyObject_GenericSetAttr(found, "int", forge_int_from_bytes(data))
    PyObject_GenericSetAttr(found, "is_safe", UNKNOWN)
    return found


cdef bint get_uuid(object value, unsigned char *data) except -1:
    """Its 16 bytes. False: it is no id, or its number is odd."""
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


cdef inline int hex_digit(char c) noexcept:
    """The value of a hexadecimal digit in lower case; -1: it is none."""
    return c - c"0" if is_digit(c) else c - c"a" + 10 if c"a" <= c <= c"f" else -1


cdef bint from_hex(const char *text, unsigned char *data) noexcept:
    cdef int i, high, low
    for i in range(16):
        high, low = hex_digit(text[2 * i]), hex_digit(text[2 * i + 1])
        if high < 0 or low < 0:
            return False
        data[i] = <unsigned char>(high << 4 | low)
    return True
