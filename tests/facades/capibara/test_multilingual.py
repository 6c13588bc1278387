"""Several languages: shares of tokens, repetition, counts, and scripts of every kind surviving the way through."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from penstock.core.errors import UsageError
from penstock.facades.capibara.languages import Language, plan_languages
from penstock.facades.capibara.loader import CapibaraDataLoader

SCRIPTS = {
    "ja": "吾輩は猫である。名前はまだ無い。",
    "th": "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "he": "שָׁלוֹם עוֹלָם \u200f(עברית)\u200e abc",
    "ar": "مَرْحَبًا بِالعَالَم",
    "vi": "Tie\u0302\u0301ng Vie\u0323\u0302t",  # combining marks, decomposed
    "emoji": "👩‍👩‍👧‍👦 🇨🇭 👍🏽 ❤️",
    "hi": "नमस्ते दुनिया",
}


def corpus(word: str, rows: int, words: int) -> list[str]:
    return [f"{word}{i} " * words for i in range(rows)]


@pytest.fixture
def three() -> dict[str, list[str]]:
    """Three languages of very different size, with rows of different length."""
    return {"de": corpus("haus", 120, 3), "en": corpus("river", 40, 6), "sw": corpus("mto", 10, 2)}


def share_of(loader: CapibaraDataLoader) -> dict[str, float]:
    for _ in loader:
        pass
    tokens = loader.stats()["tokens"]
    return {name: count / sum(tokens.values()) for name, count in tokens.items()}


@pytest.mark.parametrize("sampling", ["proportional", "temperature", "unimax"])
def test_shares_are_of_tokens(three: dict[str, list[str]], sampling: str) -> None:
    sizes = {name: sum(len(t.encode()) + 1 for t in texts) for name, texts in three.items()}
    total = sum(sizes.values())
    settings = {"batch_size": 10, "max_length": 64, "sampling": sampling, "temperature": 3.0, "train_tokens": total * 5}
    loader = CapibaraDataLoader(tokenizer="bytes", dataset_name=three, max_repeats=80.0, **settings)
    got = share_of(loader)
    if sampling == "proportional":
        want = {name: size / total for name, size in sizes.items()}
    elif sampling == "temperature":
        roots = {name: size ** (1 / 3) for name, size in sizes.items()}
        want = {name: root / sum(roots.values()) for name, root in roots.items()}
    else:  # all of them fit 80 passes, so UniMax is uniform
        want = dict.fromkeys(three, 1 / 3)
    assert got == pytest.approx(want, abs=0.02)
    given = sum(loader.stats()["tokens"].values())
    assert given == pytest.approx(total * 5, rel=0.05), "an epoch is as long as was asked"


def test_counts_are_what_the_batches_held(three: dict[str, list[str]]) -> None:
    loader = CapibaraDataLoader(
        tokenizer="bytes", dataset_name=three, batch_size=8, max_length=32, sampling="temperature", prefetch=5
    )
    begins = {"de": b"haus", "en": b"river", "sw": b"mto"}
    want = {name: [0, 0] for name in three}
    run = iter(loader)
    for _ in range(7):
        batch = next(run)
        for ids, mask in zip(np.asarray(batch["input_ids"]), np.asarray(batch["attention_mask"]), strict=True):
            text = bytes(ids[(mask == 1) & (ids < 256)].astype(np.uint8))
            name = next(n for n, begin in begins.items() if text.startswith(begin))
            want[name][0] += 1
            want[name][1] += int(mask.sum())
    facts = loader.stats()
    assert {n: [facts["rows"][n], facts["tokens"][n]] for n in three} == want
    state = loader.state_dict()
    again = CapibaraDataLoader(
        tokenizer="bytes", dataset_name=three, batch_size=8, max_length=32, sampling="temperature"
    )
    again.load_state_dict(state)
    assert sum(again.stats()["rows"].values()) == 0, "counts begin at the restore"
    assert np.array_equal(next(iter(again))["input_ids"], next(run)["input_ids"])
    assert again.why(0)["from"]["mixture_source"] in (0, 1, 2)


def test_epochs_go_on_where_the_last_one_ended(three: dict[str, list[str]]) -> None:
    loader = CapibaraDataLoader(tokenizer="bytes", dataset_name=three, batch_size=5, max_length=32)
    first = [np.asarray(b["input_ids"]) for b in loader]
    second = [np.asarray(b["input_ids"]) for b in loader]
    assert len(first) == len(second) == len(loader)
    assert not np.array_equal(first[0], second[0])
    rows = {r.tobytes() for b in first for r in b}
    assert len(rows) > 0.95 * sum(map(len, first)), "proportional: nearly every text once in an epoch"


def test_without_shuffle_an_epoch_has_every_row_once(three: dict[str, list[str]]) -> None:
    loader = CapibaraDataLoader(
        tokenizer="bytes", dataset_name=three, batch_size=5, max_length=32, shuffle=False, remainder="short", eos=False
    )
    for _ in range(2):
        rows = [bytes(r[: m.sum()].tolist()) for b in loader for r, m in zip(
            np.asarray(b["input_ids"]), np.asarray(b["attention_mask"]), strict=True)]  # fmt: skip
        assert rows == [text.encode()[:32] for texts in three.values() for text in texts]
    assert loader.stats()["rows"] == {name: 2 * len(texts) for name, texts in three.items()}
    assert loader.why(0)["from"]


def test_repetition_beyond_the_cap_is_an_error(three: dict[str, list[str]]) -> None:
    settings = {"tokenizer": "bytes", "dataset_name": three, "batch_size": 10, "max_length": 64}
    with pytest.raises(UsageError, match=r"no source to be repeated more than 2 times") as met:
        CapibaraDataLoader(**settings, sampling="temperature", temperature=5.0, max_repeats=2.0)
    assert "passes over 'sw'" in str(met.value)
    loader = CapibaraDataLoader(**settings, max_repeats=1.2)
    for _ in loader:
        pass
    with pytest.raises(UsageError, match="no source to be repeated more than 1.2 times"):
        iter(loader)  # a second epoch would be a second pass
    assert loader.stats()["passes_per_epoch"]["sw"] == pytest.approx(1, abs=0.1)


def test_unimax_keeps_the_cap() -> None:
    sizes = [Language("a", 10, 100), Language("b", 1000, 10_000), Language("c", 1000, 10_000)]
    plan = plan_languages(sizes, "unimax", max_repeats=4.0, train_tokens=8_400)
    assert plan.passes() == {"a": 4.0, "b": 0.4, "c": 0.4}
    with pytest.raises(UsageError, match="no source to be repeated more than 4 times"):
        plan_languages(sizes, "unimax", max_repeats=4.0, train_tokens=100_000)
    with pytest.raises(UsageError, match="none in 'x'"):
        plan_languages([Language("x", 1, 0)], "proportional")


def test_one_dataset_with_a_language_column(three: dict[str, list[str]], tmp_path: Path) -> None:
    rows = [{"text": text, "lang": name} for name, texts in three.items() for text in texts]
    data = datasets.Dataset.from_list(rows).shuffle(seed=1)
    apart = CapibaraDataLoader(tokenizer="bytes", dataset_name=data, language_field="lang", batch_size=5, max_length=32)
    facts = share_of(apart)
    assert set(facts) == set(three)
    assert apart.stats()["rows"]["sw"] == 10
    file = tmp_path / "all.jsonl"
    data.to_json(file)
    again = CapibaraDataLoader(
        tokenizer="bytes", dataset_name=str(file), language_field="lang", batch_size=5, max_length=32
    )
    assert share_of(again) == facts
    with pytest.raises(UsageError, match="a column 'tongue' that says the language"):
        CapibaraDataLoader(tokenizer="bytes", dataset_name=rows, language_field="tongue")


def texts_of(loader: CapibaraDataLoader, tokenizer: Any) -> list[str]:
    rows = [np.asarray(row) for batch in loader for row in batch["input_ids"]]
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_survives(name: str, tokenizer: Any) -> None:
    text = SCRIPTS[name]
    loader = CapibaraDataLoader(tokenizer=tokenizer, dataset_name=[text], batch_size=1, max_length=256)
    assert texts_of(loader, tokenizer) == [text], "not a character is changed unless asked"


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normalisation_is_asked_for_by_name(form: str, tokenizer: Any) -> None:
    text = SCRIPTS["vi"] + " ﬁ"
    changed = unicodedata.normalize(form, text)
    made = [
        texts_of(
            CapibaraDataLoader(tokenizer=tokenizer, dataset_name=[text], batch_size=1, max_length=256, normalize=how),
            tokenizer,
        )
        for how in (form, None)
    ]
    assert made == [[changed], [text]], "each form has a cache entry of its own"


def test_streams_and_budgets_cannot_be_mixed(three: dict[str, list[str]]) -> None:
    stream = datasets.Dataset.from_dict({"text": three["de"]}).to_iterable_dataset()
    with pytest.raises(UsageError, match="a stream for 'de'"):
        CapibaraDataLoader(tokenizer="bytes", dataset_name={"de": stream, "en": three["en"]})
    with pytest.raises(UsageError, match="one language with batch_tokens="):
        CapibaraDataLoader(tokenizer="bytes", dataset_name=three, batch_tokens=512, max_length=64)
