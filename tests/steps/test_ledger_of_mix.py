"""The ledger of a mixture: records of different sources are different, also where their numbers are equal."""

import numpy as np
import pytest

import penstock as ps


@pytest.mark.parametrize("seed", range(4))
def test_every_bad_record_that_was_tried_for_a_row_is_listed(seed: int) -> None:
    tried: set[int] = set()

    def one_in_four(record: dict[str, int]) -> dict[str, int]:
        if record["x"] % 4 < 3:
            tried.add(int(record["x"]))
            raise ValueError("bad")
        return record

    sources = [ps.from_arrays({"x": np.arange(4) + first}) for first in (0, 100)]
    pipeline = ps.mix(sources, seed=seed, stop="all").map(one_in_four, version="1").skip_errors()
    loader = pipeline.batch(1).to_numpy(threads=0)
    for step in range(len(loader)):
        tried.clear()
        before = loader.ledger.total
        loader.batch_at(step)
        assert loader.ledger.total - before == len(tried)


def test_the_ledger_survives_a_change_of_weights() -> None:
    def odd(record: dict) -> dict:
        if record["x"] % 5 == 0:
            raise ValueError("a multiple of 5")
        return record

    sources = [ps.from_arrays({"x": range(k, k + 40)}).map(odd, version="1").skip_errors() for k in (0, 100)]
    loader = ps.mix(sources, [1, 1]).batch(4).to_numpy(threads=0)
    run = iter(loader)
    for _ in range(10):
        next(run)
    before = loader.ledger.total
    assert before > 0
    loader.set_weights([0.25, 0.75])
    assert loader.ledger.total == before
    for _ in range(10):
        next(run)
    assert loader.ledger.total > before
    assert len(loader.ledger.entries) == loader.ledger.total
    assert loader.shard(0, 2).ledger.total == 0
