"""The parts of the reference (`forge._fastpath_py`), by subject.

Each is the twin of the part of the same name in `_native`, with the same functions in the same order.
Pure: no I/O, no clock, no randomness, no logging; only `burst` calls what it is given, handlers and a clock.
"""
