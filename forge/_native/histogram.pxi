# Histograms of how long jobs took and how long they had waited.

from cpython.array cimport array
from cpython.float cimport PyFloat_AS_DOUBLE
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from forge._reference.histogram import BOUNDS, BUCKETS

cdef double bounds[200]
cdef Py_ssize_t bound_count = len(BOUNDS)
cdef Py_ssize_t buckets = BUCKETS
for _at, _bound in enumerate(BOUNDS):
    bounds[_at] = _bound


# 14x the twin (bench/fastpath.py).
def timed(times, seconds, run_at, sent, ahead):
    if type(seconds) is not float or not good_times(times):
        return twin.timed(times, seconds, run_at, sent, ahead)
    count_times(<array>times, PyFloat_AS_DOUBLE(seconds), run_at, sent, ahead)


cdef inline Py_ssize_t bucket(double seconds) noexcept:
    """As bisect_left has it, NaN and all. There are four buckets to a doubling, so the exponent is nearly the answer:
    what is left are a few comparisons."""
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
    """Whether it is an array of two histograms."""
    return type(times) is array and (<array>times).ob_descr.typecode == c"q" and len(<array>times) == 2 * buckets


cdef int count_times(array times, double seconds, object run_at, object sent, object ahead) except -1:
    """As `timed`, whose `times` are good ones."""
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
