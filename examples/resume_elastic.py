"""Elastic resume: another world size, another batch size, the same sequence of rows."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np

import penstock as ps

ROWS = ps.from_arrays({"row": range(1000)}).shuffle(seed=7)


def main() -> None:
    uninterrupted = ROWS.batch(12).to_numpy()
    expected = np.concatenate([batch["row"] for batch in islice(uninterrupted, 20)])

    # One process, batches of 12, stopped after five of them.
    first = ROWS.batch(12).to_numpy()
    seen = [batch["row"] for batch in islice(first, 5)]
    saved = json.dumps(first.state_dict())
    print(f"saved after {first.step} batches of 12, {len(saved)} bytes: {saved[:58]}...")

    # Four ranks, global batches of 24. Every rank loads the same state.
    ranks = [ROWS.shard(rank, world=4).batch(24).to_numpy() for rank in range(4)]
    for loader in ranks:
        loader.load_state_dict(json.loads(saved))
    for parts in islice(zip(*ranks, strict=True), 5):
        seen.append(np.concatenate([part["row"] for part in parts]))
    saved = json.dumps(ranks[2].state_dict())
    print(
        f"saved on four ranks: the state is the same on each: {len({json.dumps(r.state_dict()) for r in ranks}) == 1}"
    )

    # Two ranks, batches of 6.
    ranks = [ROWS.shard(rank, world=2).batch(6).to_numpy(threads=2) for rank in range(2)]
    for loader in ranks:
        loader.load_state_dict(json.loads(saved))
    for parts in islice(zip(*ranks, strict=True), 10):
        seen.append(np.concatenate([part["row"] for part in parts]))

    rows = np.concatenate(seen)
    print(f"{len(rows)} rows over three set-ups, equal to an uninterrupted run: {np.array_equal(rows, expected)}")
    assert np.array_equal(rows, expected)

    # Random access: any step, past or future; the position does not change.
    loader = ROWS.batch(12).to_numpy()
    assert np.array_equal(loader.batch_at(3)["row"], expected[36:48])
    assert loader.step == 0
    print("batch 1,000,000 begins with rows", loader.batch_at(1_000_000)["row"][:4].tolist())
    print("why(step=3, row=5):", json.dumps(loader.why(3, row=5)))

    # A state of other data is refused, and the message says what differs.
    try:
        ps.from_arrays({"row": range(999)}).shuffle(seed=7).batch(12).to_numpy().load_state_dict(json.loads(saved))
    except ps.StateError as error:
        print(error)
    else:
        raise AssertionError("a state of other data was taken")


if __name__ == "__main__":
    main()
