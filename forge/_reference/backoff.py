"""The curves of retries."""

from __future__ import annotations

# 2^30 or 3^30 times the shortest base is past any cap, and more would overflow a float in the end.
MAX_EXPONENT = 30
# Faktory's curve has no cap: at 100 it is three years, and not far past it lies the last date a database can hold.
MAX_FAKTORY_COUNT = 100


def delay(curve: str, n: int, base: float, cap: float, r: float) -> float:
    """Seconds to wait by the curve of this name after `n` attempts; `r` is uniform in [0, 1)."""
    if curve == "decorrelated":
        return _decorrelated(n, base, cap, r)
    if curve == "exponential":
        return _exponential(n, base, cap)
    if curve == "faktory":
        return _faktory(n, r)
    if curve == "fixed":
        return base
    if curve == "none":
        return 0.0
    raise ValueError(f"no curve {curve!r}")


def _exponential(n: int, base: float, cap: float) -> float:
    """min(base·2^n, cap)"""
    return min(base * 2.0 ** min(max(n, 0), MAX_EXPONENT), cap)


def _decorrelated(n: int, base: float, cap: float, r: float) -> float:
    """Uniform between base and min(cap, base·3^n), as `r` in [0, 1) has it; a cap under the base wins."""
    high = min(base * 3.0 ** min(max(n, 0), MAX_EXPONENT), cap)
    low = min(base, high)
    return low + (high - low) * r


def _faktory(n: int, r: float) -> float:
    """count⁴ + 15 + rand(0..29)·(count+1), where count is 0 after the first attempt."""
    count = min(max(n - 1, 0), MAX_FAKTORY_COUNT)
    return float(count**4 + 15 + int(r * 30) * (count + 1))
