"""`close()` and `with loader:` end threads and processes and keep the position."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest

import penstock as ps

MODES = [{"threads": 0}, {"threads": 2}, {"workers": 2, "threads": 1}]


def numbers(options: dict[str, int]) -> ps.Loader:
    return ps.from_arrays({"x": np.arange(400)}).shuffle(seed=7).batch(4).to_numpy(**options)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_closed_loader_leaves_nothing_behind_and_goes_on_where_it_was(options: dict[str, int]) -> None:
    expected = [b["x"].tolist() for b in numbers({"threads": 0})]
    before = set(threading.enumerate()), set(multiprocessing.active_children())
    loader = numbers(options)
    run = iter(loader)
    seen = [next(run)["x"].tolist() for _ in range(5)]
    loader.close()
    assert set(multiprocessing.active_children()) <= before[1]
    assert {t for t in threading.enumerate() if "stalls" not in t.name} <= before[0]
    with pytest.raises(StopIteration):
        next(run)
    assert loader.step == 5
    loader.close()  # twice is harmless
    with pytest.raises(KeyError), loader as same:
        assert same is loader
        for batch in loader:
            seen.append(batch["x"].tolist())
            if loader.step == 9:
                raise KeyError
    assert loader.loop is None
    seen += [b["x"].tolist() for b in loader]
    assert seen == expected


def test_a_loader_in_a_torch_dataloader_is_refused_with_the_way_out() -> None:
    from torch.utils.data import DataLoader

    loader = ps.from_arrays({"x": np.arange(8)}).batch(2).to_torch(threads=0)
    with pytest.raises(ps.PenstockError, match="to_dataset"):
        next(iter(DataLoader(loader, batch_size=None)))


def test_a_loop_that_could_not_be_started_leaves_its_own_error() -> None:
    """`with loader:` answered with AttributeError: 'Loop' object has no attribute 'run'."""
    import fsspec

    fsspec.filesystem("memory").pipe("/close/a.jsonl", b'{"text":"a"}\n{"text":"b"}\n')
    loader = ps.read_jsonl("memory://close/a.jsonl").batch(1).to_numpy(workers=2)
    for _ in range(2):
        with pytest.raises(ps.UsageError, match="files that a child process can open"), loader:
            next(iter(loader))
    loader.close()
    assert loader.step == 0 and loader.state_dict()["step"] == 0
