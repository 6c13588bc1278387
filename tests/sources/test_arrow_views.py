"""View types of Arrow become plain ones with the same values, at any depth, sliced or not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.sources.arrow_views import no_views, plain, without_views

_LISTS = (pa.list_view, pa.large_list_view, pa.list_, pa.large_list)
_LEAVES = (pa.int64(), pa.string_view(), pa.binary_view(), pa.string())


def drawn_type(draw: random.Random, depth: int) -> Any:
    which = draw.randrange(7) if depth else 7
    if which < 4:
        return _LISTS[which](drawn_type(draw, depth - 1))
    if which == 4:
        return pa.list_(drawn_type(draw, depth - 1), draw.randint(1, 2))
    if which == 5:
        return pa.struct([("a", drawn_type(draw, depth - 1)), ("b", drawn_type(draw, 0))])
    return pa.map_(pa.string(), drawn_type(draw, depth - 1)) if which == 6 else draw.choice(_LEAVES)


def drawn_value(draw: random.Random, t: Any) -> Any:
    if draw.random() < 0.15:
        return None
    if pa.types.is_struct(t):
        return {field.name: drawn_value(draw, field.type) for field in t}
    if pa.types.is_map(t):
        return [("k", drawn_value(draw, t.item_type)) for _ in range(draw.randrange(3))]
    if pa.types.is_nested(t):
        count = t.list_size if pa.types.is_fixed_size_list(t) else draw.randrange(4)
        return [drawn_value(draw, t.value_type) for _ in range(count)]
    if pa.types.is_integer(t):
        return draw.randrange(99)
    return b"abc" if t == pa.binary_view() else draw.choice(("", "ab", "x" * 20))


def test_values_stay_what_they_are() -> None:
    draw = random.Random(1)
    for _ in range(600):
        t = drawn_type(draw, draw.randint(1, 3))
        array = pa.array([drawn_value(draw, t) for _ in range(draw.randrange(6))], t)
        if draw.random() < 0.5:
            array = array.slice(draw.randint(0, len(array)), draw.randrange(4))
        want = array.to_pylist()
        made = plain(array)
        made.validate(full=True)
        assert made.type == no_views(t) and made.to_pylist() == want, t
        table = without_views(pa.table({"c": pa.chunked_array([array, array[:1]], type=t)}))
        table.validate(full=True)
        assert table.column("c").to_pylist() == want + want[:1], t


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_the_last_row_of_a_list_view_is_read(view: Any, tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([[1.5], [2.5, 3.5]], view(pa.float64()))})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    for pipeline in (ps.from_records(table), ps.read_arrow(tmp_path / "a.arrow")):
        assert [row["v"].tolist() for row in pipeline.rows()] == [[1.5], [2.5, 3.5]]
