# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The native path: the functions of `_fastpath_py` for the inputs that come in millions.

This is its front door: one extension, whose parts are the files in `_native`, by subject. The part `_native/ids.pxi` is
the twin of `_reference/ids.py`, with the same functions in the same order; what each one means is said there.

Here only exact, ordinary types are handled; whatever else comes is passed on to the twin, which answers or raises. No
code of a caller runs in a loop (no __eq__, no __iter__), but for the handlers that `burst` is there to call; other
threads and finalizers may, so indexes into a caller's lists are checked. The figure at each function is what it buys,
by bench/fastpath.py.
"""

cdef object twin
from forge import _fastpath_py as twin

# What the others are made of. No Python code calls these two, and they have no twin.
include "_native/python.pxi"
include "_native/buffer.pxi"

# A part uses what those before it have.
include "_native/ids.pxi"
include "_native/json.pxi"
include "_native/records.pxi"
include "_native/pgwire.pxi"
include "_native/endings.pxi"
include "_native/backoff.pxi"
include "_native/histogram.pxi"
include "_native/frames.pxi"
include "_native/burst.pxi"
include "_native/resp.pxi"
