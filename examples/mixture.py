"""Three sources mixed by weight, and weights computed from the sizes of the sources."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

import penstock as ps
from penstock.order.weights import proportional, temperature, unimax

SENTENCES = {
    "web": "The weather page says that it may rain on the coast in the evening. ",
    "code": "def flow(pipe, head): return pipe.area * (2 * 9.81 * head) ** 0.5\n",
    "books": "It was a quiet morning, and the water stood high behind the old dam. ",
}
SIZES = {"web": 600, "code": 200, "books": 50}
WEIGHTS = [0.6, 0.3, 0.1]


def main(cache: Path) -> None:
    # Each source has its own order; when one ends it begins again, reshuffled.
    sources = [
        ps.from_texts([f"{name} {i}: {SENTENCES[name]}" for i in range(SIZES[name])])
        .tokenize("bytes", cache_dir=cache, show_progress=False)
        .windows(64)
        .shuffle(seed=7)
        for name in SIZES
    ]
    mixed = ps.mix(sources, weights=WEIGHTS, seed=7)
    loader = mixed.batch(40).to_numpy()
    print(mixed)

    counts: Counter[int] = Counter()
    for step, _ in enumerate(islice(loader, 50)):
        counts[loader.why(step, row=step % 40)["from"]["mixture_source"]] += 1
    for source, name in enumerate(SIZES):
        print(f"  {name:<6} asked {WEIGHTS[source]:.2f}  drawn {counts[source] / 50:.2f} in 50 rows looked at")
        assert abs(counts[source] / 50 - WEIGHTS[source]) < 0.2

    # A mixture resumes exactly, too.
    again = mixed.batch(40).to_numpy()
    again.load_state_dict(loader.state_dict())
    assert (next(iter(again))["input_ids"] == loader.batch_at(50)["input_ids"]).all()

    sizes = [len(source.rows()) for source in sources]
    print("windows in each source:     ", sizes)
    print("in proportion:              ", [round(w, 3) for w in proportional(sizes)])
    print("temperature 3:              ", [round(w, 3) for w in temperature(sizes, t=3)])
    print("UniMax, at most 4 passes:   ", [round(w, 3) for w in unimax(sizes, budget=2000, max_passes=4)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
