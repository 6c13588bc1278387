"""`ps.show` and what notebooks show of pipelines, loaders and statistics."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps

TEXTS = [f"text {i}: the river <b>runs</b> past the mill" for i in range(20)]


def test_a_batch_of_any_step_as_text_and_html() -> None:
    pipeline = ps.from_texts(TEXTS).tokenize("bytes", show_progress=False).windows(32).shuffle(seed=7).batch(4)
    loader = pipeline.to_numpy(threads=0)
    next(iter(loader))
    shown = ps.show(loader)
    assert shown.batch.step == 1 and loader.step == 1  # the next batch, which stays the next one
    wanted = bytes(i for i in loader.batch_at(1)["input_ids"][0].tolist() if i < 256).decode()
    assert repr(wanted) in repr(shown) and "step 1 of epoch 0" in repr(shown) and "why: document" in repr(shown)
    html = shown._repr_html_()
    assert html.startswith('<div class="penstock">') and "&lt;" in html and "<b>runs" not in html
    assert ps.show(pipeline, 5, rows=2, first=1).batch.rows[0].number == 1


def test_a_batch_of_another_loader() -> None:
    import torch

    batch = {"input_ids": torch.tensor([[104, 105, 256]]), "labels": torch.tensor([[-100, 105, 256]])}
    shown = ps.show(batch, tokenizer="bytes")
    assert "hi" in repr(shown) and "why" not in repr(shown)
    assert "input_ids: int64, 1 × 3" in repr(shown)
    assert "1: objects, 2" in repr(ps.show((np.zeros((2, 3)), ["a", "b"])))
    half = ps.show({"x": torch.zeros(2, 3, dtype=torch.bfloat16), "name": ["a", "b"]})
    assert "name a" in repr(half)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ps.UsageError, match="a loader or a pipeline with step="):
        ps.show({"x": np.zeros(2)}, step=3)
    with pytest.raises(ps.UsageError, match="an integer of at least 1 for rows="):
        ps.show({"x": np.zeros(2)}, rows=0)
    with pytest.raises(ps.UsageError, match="a dict or a tuple"):
        ps.show("text")


def test_pipelines_loaders_and_statistics_in_a_notebook() -> None:
    opened = []

    def spy(row: dict[str, object]) -> dict[str, object]:
        opened.append(row)
        return row

    pipeline = ps.from_texts([*TEXTS, "<script>"]).map(spy).shuffle(seed=7).batch(4)
    html = pipeline._repr_html_()
    assert ".shuffle" in html and "5 batches an epoch, 1 rows dropped" in html and ".map" in html
    loader = pipeline.to_numpy(threads=0)
    assert "steps per epoch" in loader._repr_html_() and "no batch was taken yet" in loader._repr_html_()
    assert opened == []  # nothing was read to show them
    next(iter(loader))
    stats = loader.stats()
    assert isinstance(stats, dict) and "<td>1</td>" in stats._repr_html_()
    mixed = ps.mix([ps.from_arrays({"x": range(9)}), ps.from_arrays({"x": range(9)})], weights=[1, 1], seed=1)
    assert mixed._repr_html_().count("<tr>") == repr(mixed).count("\n") + 1
    for made in (pipeline, loader, stats):
        assert "<script>" not in made._repr_html_()


def test_the_style_of_a_cell_reaches_nothing_outside_it() -> None:
    html = ps.from_texts(["a"])._repr_html_()
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert style.startswith(".penstock {") and style.count("{") == style.count("}")
    depth, outside = 0, ""
    for character in style:
        depth += (character == "{") - (character == "}")
        outside += character if depth == 0 else ""
    assert outside.strip() == ".penstock }" and ":root" not in style and "body {" not in style
