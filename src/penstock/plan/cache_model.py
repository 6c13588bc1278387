"""How many pages a host fetches when a cache keeps some of them: a closed form for a global shuffle.

Accesses to `pages` pages are random and equally likely; the cache evicts the page whose next use is furthest away, as a
cache can that knows the order. A page is then kept if its next use comes within a fraction x of the time in which each
page is used once on average, where x is such that what is kept fills the cache: 1 - (1 + x) exp(-x) = kept / pages.
"""

from __future__ import annotations

from math import exp, expm1


def pages_fetched(accesses: float, pages: float, kept: float, *, warm: bool = False) -> float:
    """Pages that an epoch of `accesses` page reads fetches; `warm`: the cache holds pages of an earlier epoch.

    >>> round(pages_fetched(33_000, 1_000, 0)), round(pages_fetched(33_000, 1_000, 100, warm=True))
    (33000, 19389)
    >>> round(pages_fetched(33_000, 1_000, 1_000)), round(pages_fetched(33_000, 1_000, 1_000, warm=True))
    (1000, 0)
    """
    if accesses <= 0 or pages <= 0:
        return 0.0
    span = accesses / pages
    if kept >= pages:
        return -pages * expm1(-span) * (exp(-span) if warm else 1.0)  # warm: only what no epoch has used yet
    x = _reach(kept / pages)
    if warm:
        return accesses * exp(-x)
    reach = min(x, span)
    hits = pages * (reach + expm1(-reach)) - (accesses - reach * pages) * expm1(-reach)
    return accesses - hits


def _reach(share: float) -> float:
    """x with 1 - (1 + x) exp(-x) = share."""
    low, high = 0.0, 64.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - (1 + middle) * exp(-middle) < share else (low, middle)
    return (low + high) / 2
