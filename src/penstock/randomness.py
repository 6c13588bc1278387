"""Random numbers for your own steps: each draw is a function of a key, never of threads, workers or a resume point.

`.map_batches(function)` passes a parameter called `keys`: one 64-bit key per row, from (seed, epoch, record, step).
`uniform` and `integers` draw from all of them at once; `generator` makes a NumPy generator of one. The second argument
numbers the draws of a row: use another one for each decision.

>>> import penstock as ps
>>> def flip(columns, keys):
...     return {"x": columns["x"] * (1 - 2 * integers(keys, 0, 2))}
>>> rows = ps.from_arrays({"x": [3, 3, 3, 3]}).map_batches(flip).peek(4)
>>> {abs(int(row["x"])) for row in rows}
{3}
"""

from penstock.core.randomness import bits, generator, integers, key, keys, uniform

__all__ = ["bits", "generator", "integers", "key", "keys", "uniform"]
