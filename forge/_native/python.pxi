# Python's own C functions, and tuples read and filled without checks.

from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM


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


cdef inline object item(object row, Py_ssize_t i):
    """The item at `i` of a tuple that is known to have it."""
    return <object>PyTuple_GET_ITEM(row, i)


cdef inline void put_item(object made, Py_ssize_t i, object value) noexcept:
    """Fill the place `i` of a tuple that is new and has nothing there yet."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, i, value)
