"""The Plan page: the true counts of each step, of the mixture and of the ranks."""

from __future__ import annotations

import numpy as np

import penstock as ps
from penstock.view.plan_facts import PlanStep, plan_of


def chain(step: PlanStep) -> list[PlanStep]:
    return [*(chain(step.inputs[0]) if step.inputs else []), step]


def test_counts_are_those_of_the_loader(viewer) -> None:
    texts = [f"text number {n} " * (1 + n % 7) for n in range(120)]
    documents = ps.from_texts(texts).tokenize("bytes")
    for pipeline in (
        ps.open_tokens(np.arange(5000)).windows(16).shuffle(seed=3).batch(12),
        documents.pack(64).shuffle(seed=3).batch(7, remainder="short"),
        documents.pack(64, overlong="drop").batch(3),
        documents.bucket([40, 80, 120], sizes=[6, 6, 6]),
        ps.from_arrays({"x": range(101)}).take(90).filter(lambda row: row["x"] % 2).batch(8).map_batches(dict),
        ps.concat([ps.from_arrays({"x": range(30)}).skip(3), ps.from_arrays({"x": range(50)})]).batch(10),
    ):
        facts, loader = plan_of(pipeline), pipeline.to_numpy(threads=0)
        steps = chain(facts.last)
        batched = next(step for step in steps if step.unit == "batches")
        assert batched.rows == len(loader) == facts.estimate.steps_per_epoch
        lost = {name.replace(" ", "_"): n for step in steps for name, n in step.lost.items()}
        assert lost == {name: n for name, n in loader.stats()["left_out"].items() if n}
        text = viewer(pipeline).get("/plan").text
        for step in steps:
            assert step.name in text and f"{step.rows:,} {step.unit}" in text, step
        for name, n in lost.items():
            assert f"drops {n:,} {name.replace('_', ' ')}" in text
    rows = {step.name: step.rows for step in chain(plan_of(pipeline).last)}
    assert rows == {"arrays": 30, "skip": 27, "concat": 77, "batch": 7}


def test_a_mixture_has_its_shares_over_time_and_ranks_their_rows(viewer) -> None:
    sources = [ps.from_arrays({"x": range(400)}), ps.from_arrays({"x": range(200)})]
    pipeline = ps.mix(sources, [3, 1], stop="all").batch(8)
    facts = plan_of(pipeline, world=4)
    rows = pipeline.to_numpy(threads=0)
    seen = np.concatenate([rows.row_numbers(step) for step in range(len(rows))])
    assert len(seen) == len(rows) * 8
    assert list(facts.mixture) == ["0: arrays", "1: arrays"]
    shares = [np.mean([share for _, share in line]) for line in facts.mixture.values()]
    np.testing.assert_allclose(shares, [0.75, 0.25], atol=0.02)
    assert all(abs(a + b - 1) < 1e-9 for (_, a), (_, b) in zip(*facts.mixture.values(), strict=True))
    assert [(share.rank, share.rows) for share in facts.ranks] == [(0, 2), (1, 2), (2, 2), (3, 2)]
    client = viewer(pipeline)
    text = client.get("/plan?world=4").text
    assert "Mixture over time" in text and "rank 3: 2 rows" in text and "weight 3<" in text
    assert "a global batch that 3 ranks can share equally" in client.get("/plan?world=3").text
    assert client.get("/plan?world=abc").status == 200


def test_changed_weights_are_seen_in_the_mixture() -> None:
    sources = [ps.from_arrays({"x": range(400)}), ps.from_arrays({"x": range(200)})]
    loader = ps.mix(sources, [1, 1]).batch(10).to_numpy(threads=0)
    for _, _batch in zip(range(100), loader, strict=False):
        pass
    loader.set_weights([9, 1])
    line = plan_of(ps.Pipeline(loader.definition)).mixture["0: arrays"]
    half = len(line) // 2
    assert abs(np.mean([share for _, share in line[: half - 2]]) - 0.5) < 0.06
    assert abs(np.mean([share for _, share in line[half + 2 :]]) - 0.9) < 0.06


def test_a_pipeline_without_batch_and_one_that_is_wrong_are_shown(viewer) -> None:
    assert "batches of 32 rows are assumed" in viewer(ps.from_arrays({"x": range(99)})).get("/plan").text
    endless = viewer(ps.from_arrays({"x": range(99)}).repeat().batch(4)).get("/plan").text
    assert "endless batches" in endless
    hostile = ps.from_arrays({"<script>x": range(9)}).rename({"<script>x": "<img src=y>"}).batch(3)
    text = viewer(hostile).get("/plan").text
    assert "<script>x" not in text and "<img" not in text and "3 batches" in text
