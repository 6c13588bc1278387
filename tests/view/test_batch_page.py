"""The batch explorer: in a browser, over HTTP, and against the batches of the loader."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps


def packed(folder: Path) -> ps.Pipeline:
    records = [
        {"instruction": f"Name {i}.", "input": "", "output": f"It is <b>{i}</b> & more. " * 3} for i in range(60)
    ]
    (folder / "inst.jsonl").write_text("\n".join(map(json.dumps, records)))
    engine = ps.PromptEngine("bytes", "alpaca", mask="prompt")
    ps.prepare_prompts(str(folder / "inst.jsonl"), engine, folder / "sft", show_progress=False)
    return ps.open_store(folder / "sft").pack(600).shuffle(seed=7).batch(3)


def shown_ids(page: Any) -> list[int]:
    titles = page.eval_on_selector_all(".tok[title]", "all => all.map(one => one.title)")
    return [int(re.findall(r"id (\d+)", title)[0]) for title in titles]


def wanted_ids(batch: dict[str, Any]) -> list[int]:
    real: list[int] = batch["input_ids"][batch["segment_ids"] > 0].tolist()
    return real


def test_slider_steps_and_tokens_in_a_browser(viewer: Callable[..., Any], chromium: Any, tmp_path: Path) -> None:
    loader = packed(tmp_path).to_numpy(threads=0)
    client = viewer(loader)
    page = chromium.new_context(viewport={"width": 420, "height": 900}).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if "Security" in message.text else None)
    page.goto(client.viewer.url)
    page.wait_for_url("**/data*")
    page.goto(f"http://127.0.0.1:{client.viewer.port}/batch")
    assert shown_ids(page) == wanted_ids(loader.batch_at(0))
    assert page.evaluate("document.documentElement.scrollWidth") <= 420

    page.focus("#slider")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("h2:text-is('step 1')")
    assert shown_ids(page) == wanted_ids(loader.batch_at(1))
    assert page.evaluate("document.activeElement.id") == "slider"

    why = loader.why(1, 2)
    second = why["from"]["documents"][1]
    page.click(f"#a-row-2 .tok[data-at='{second['at'] + 5}']")
    chosen = page.inner_text("#a-row-2 .documents li.chosen")
    assert f"document {second['document']:,}" in chosen and f"line {second['line']}" in chosen.replace(",", "")
    assert str(loader.batch_at(1)["input_ids"][2][second["at"] + 5]) in page.inner_text("#a-row-2 output.token")

    page.fill("#step", "9000000000000000000")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=is not a step of this run")
    last = int(page.input_value("#step").replace(",", ""))
    assert last > 10**15 and shown_ids(page) == wanted_ids(loader.batch_at(last))
    assert not problems and loader.step == 0


def test_two_steps_and_two_seeds_beside_each_other(viewer: Callable[..., Any], tmp_path: Path) -> None:
    pipeline = packed(tmp_path)
    client = viewer(pipeline)
    html = client.get("/batch?step=2&other=40&seed=11").text
    other = ps.open_store(tmp_path / "sft").pack(600).shuffle(seed=11).batch(3).to_numpy(threads=0)
    ids = [int(found) for found in re.findall(r'title="token [\d,]+ · id (\d+)', html)]
    assert ids == wanted_ids(pipeline.to_numpy(threads=0).batch_at(2)) + wanted_ids(other.batch_at(40))
    assert "step 40, seed 11" in html and 'id="b-row-0"' in html
    assert client.get("/batch?step=-5&first=99999").status == 200
    assert client.get("/batch?step=%00%3Cscript%3E").text.count("<script") == 1  # the viewer's own


def test_pictures_are_served_as_delivered(viewer: Callable[..., Any], tmp_path: Path) -> None:
    for i in range(9):
        small = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        Image.fromarray(small).resize((300, 200), Image.Resampling.BICUBIC).save(tmp_path / f"{i}<img>.jpg", quality=95)
    loader = ps.read_images(tmp_path, labels=None).decode_images(40, crop="random", dtype="uint8").batch(4).to_numpy()
    client = viewer(loader)
    html = client.get("/batch?step=1").text
    addresses = [one.replace("&amp;", "&") for one in re.findall(r'<img src="([^"]+)"', html)]
    assert len(addresses) == 8 and "&lt;img&gt;" in html
    batch = loader.batch_at(1)["image"]
    found = [client.get(one) for one in addresses]
    assert {one.headers["content-type"] for one in found} == {"image/png"}
    after = [np.asarray(Image.open(io.BytesIO(one.body))) for one in found[1::2]]
    assert np.array_equal(np.stack(after), batch)
    missing = client.get(addresses[0].replace("kind=before", "kind=../../etc"))
    assert missing.status == 400 and "a picture or sound of this batch" in missing.text


def test_targets_without_a_pipeline_are_shown_with_what_was_assumed(viewer: Callable[..., Any], tmp_path: Path) -> None:
    import soundfile

    packed(tmp_path)
    (tmp_path / "audio" / "a").mkdir(parents=True)
    for i in range(3):
        soundfile.write(tmp_path / "audio" / "a" / f"{i}.wav", np.sin(np.arange(8000) / (5 + i)) / 2, 16000)
    (tmp_path / "images" / "a").mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (60, 40), (i * 40, 9, 9)).save(tmp_path / "images" / "a" / f"{i}.png")
    (tmp_path / "rows.csv").write_text("name,count\nriver,1\nmill,2\n")
    for target, words in {
        "sft": (".windows(", 'class="tok'),
        "inst.jsonl": (".shuffle(", "instruction"),
        "rows.csv": (".batch(2)", "river"),
        "audio": (".decode_audio(16000)", "<audio"),
        "images": (".decode_images(224)", "<img"),
    }.items():
        answer = viewer(str(tmp_path / target)).get("/batch")
        assert answer.status == 200, (target, answer.text)
        assert all(word in answer.text for word in words), target


def test_two_plans_beside_each_other(viewer: Callable[..., Any], tmp_path: Path) -> None:
    """A second pipeline: its own batches, files and plan, with its own steps and seed."""
    for name, colour in (("red", (250, 9, 9)), ("blue", (9, 9, 250))):
        (tmp_path / name).mkdir()
        for i in range(8):
            Image.new("RGB", (60, 40), colour).save(tmp_path / name / f"{name}{i}.png")

    def images(name: str, size: int) -> ps.Pipeline:
        rows = ps.read_images(tmp_path / name, labels=None).decode_images(16, dtype="uint8")
        return rows.shuffle(seed=7).batch(size)

    client = viewer(images("red", 2), beside=images("blue", 4))
    html = client.get("/batch?step=1").text
    addresses = [one.replace("&amp;", "&") for one in re.findall(r'<img src="([^"]+)"', html)]
    means = [
        np.asarray(Image.open(io.BytesIO(client.get(one).body))).mean((0, 1)).round().tolist() for one in addresses
    ]
    assert means == 4 * [[250, 9, 9]] + 8 * [[9, 9, 250]]  # before and after, of 2 rows and of 4
    assert html.index("red") < html.index("blue") and html.count("step 1</h2>") == 2
    reseeded = client.get("/batch?step=1&other=3&seed=5").text
    assert "step 3, seed 5" in reseeded and reseeded.count('id="b-row-') == 4
    plan = client.get("/plan").text
    assert "4 batches" in plan and "2 batches" in plan and plan.count("<h2>pipeline of 4 steps</h2>") == 2


def test_beside_takes_configurations_and_refuses_runs(viewer: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(12)))
    for name, seed in (("a", 1), ("b", 2)):
        rows = ps.read_jsonl(str(tmp_path / "texts.jsonl")).shuffle(seed=seed).batch(3)
        (tmp_path / f"{name}.json").write_text(json.dumps(rows.to_config()))
    client = viewer(tmp_path / "a.json", beside=tmp_path / "b.json")
    html = client.get("/batch?step=2").text
    assert "a.json: step 2" in html and "b.json: step 2" in html
    for name, seed in (("a", 1), ("b", 2)):
        first, second = html.split("b.json: step 2")
        side = second if name == "b" else first
        loader = ps.read_jsonl(str(tmp_path / "texts.jsonl")).shuffle(seed=seed).batch(3).to_numpy(threads=0)
        assert all(text in side for text in loader.batch_at(2)["text"].tolist())
    list(ps.from_arrays({"x": range(4)}).batch(2).to_numpy().write_snapshots(tmp_path / "run.jsonl"))
    with pytest.raises(ps.UsageError, match="snapshots of a run"):
        ps.open_viewer(tmp_path / "a.json", beside=tmp_path / "run.jsonl", browser=False)
