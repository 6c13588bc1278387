"""`read_videos`: folders, lists and manifests of videos, decoded by time, under the law; bad files by name."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_elastic, assert_exact_resume
from tests.codecs.media_files import encoded_video, level


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    data = encoded_video(20, 10, "mp4")
    for i in range(24):
        place = folder / ("run" if i % 3 else "walk") / f"{i:02d}.mp4"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
    (folder / "run" / "notes.txt").write_text("no video")
    return folder


def test_frames_labels_and_the_law(root: Path) -> None:
    videos = ps.read_videos(root)
    assert videos.classes == ("run", "walk") and len(videos.rows()) == 24
    row = videos.decode_video(4, (48, 64), clip="consecutive", fps=5.0, crop=None).peek(1)[0]
    assert row["video"].shape == (4, 48, 64, 3) and row["path"] == "run/01.mp4"
    shown = [float(frame[8:-8, 4:28].mean()) for frame in row["video"]]
    assert max(abs(a - level(i)) for a, i in zip(shown, (0, 2, 4, 6), strict=True)) <= 3

    def make(batch: int) -> ps.Pipeline:
        rows = ps.read_videos(root).shuffle(seed=2)
        return rows.decode_video(2, (16, 16), clip="random", fps=5.0, crop="random").batch(batch)

    assert_exact_resume(lambda: make(8), most=3, epochs=1)
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 2), most=2)
    assert pickle.loads(pickle.dumps(make(4))) == make(4) == ps.from_config(make(4).to_config())
    assert make(4).to_numpy().why(0, 1)["from"]["file"].endswith(".mp4")


def test_lists_patterns_manifests_and_bad_files(root: Path, tmp_path: Path) -> None:
    some = ps.read_videos(str(root / "run" / "0{1,2,4}.mp4"), labels=None)
    assert [row["path"].rpartition("/")[2] for row in some.peek()] == ["01.mp4", "02.mp4", "04.mp4"]
    lines = [json.dumps({"path": f"run/{name}.mp4", "caption": name}) for name in ("01", "02")]
    (root / "captions.jsonl").write_text("\n".join(lines) + "\n")
    rows = ps.read_videos(root / "captions.jsonl").decode_video(2, (16, 16)).peek()
    assert [row["caption"] for row in rows] == ["01", "02"] and rows[0]["video"].shape == (2, 16, 16, 3)
    (tmp_path / "bad.mp4").write_bytes(b"no video at all")
    (tmp_path / "good.mp4").write_bytes((root / "run" / "01.mp4").read_bytes())
    videos = ps.read_videos(tmp_path, labels=None).decode_video(2, (16, 16))
    with pytest.raises(ps.BadRecords, match="bad.mp4"):
        videos.peek()
    assert {row["path"] for row in videos.skip_errors().peek()} == {"good.mp4"}
    (tmp_path / "none").mkdir()
    with pytest.raises(ps.UsageError, match="files ending in .mp4"):
        ps.read_videos(tmp_path / "none", labels=None)
    ids = np.array([0])
    assert sorted(ps.read_videos(tmp_path, labels=None).rows().read(ids)) == ["path", "video"]
