# The curves of retries.

from libc.math cimport pow
from libc.stdint cimport int64_t

cdef int MAX_EXPONENT, MAX_FAKTORY_COUNT
from forge._reference.backoff import MAX_EXPONENT, MAX_FAKTORY_COUNT


# 13x the twin (bench/fastpath.py).
def delay(curve, n, base, cap, r):
    if type(n) is int and type(base) is float and type(cap) is float and type(r) is float and 0.0 <= <double>r < 1.0:
        if curve == "decorrelated":
            return decorrelated(clamped(n, MAX_EXPONENT), base, cap, r)
        if curve == "exponential":
            return grown(2.0, clamped(n, MAX_EXPONENT), base, cap)
        if curve == "faktory":
            return faktory(clamped(n, MAX_FAKTORY_COUNT + 1), r)
    return twin.delay(curve, n, base, cap, r)


cdef double decorrelated(int n, double base, double cap, double r) noexcept:
    cdef double high = grown(3.0, n, base, cap)
    cdef double low = high if high < base else base
    return low + (high - low) * r


cdef double grown(double factor, int n, double base, double cap) noexcept:
    """min(base·factor^n, cap)"""
    cdef double value = base * pow(factor, n)
    return cap if cap < value else value


cdef double faktory(int n, double r) noexcept:
    cdef int64_t count = n - 1 if n > 0 else 0
    return <double>(count * count * count * count + 15 + <int64_t>(r * 30) * (count + 1))


cdef int clamped(object n, int most) noexcept:
    """An int, but at least 0 and at most so many."""
    cdef int overflow = 0
    cdef long long value = PyLong_AsLongLongAndOverflow(n, &overflow)
    if overflow:
        return most if overflow > 0 else 0
    return 0 if value < 0 else most if value > most else <int>value
