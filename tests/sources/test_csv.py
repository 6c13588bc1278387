"""CSV files: the records of Python's `csv`, by number and in one pass."""

from __future__ import annotations

import csv
import gzip
import io
import pickle
import random
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.sources.csv import CsvFiles
from penstock.testing import assert_elastic, assert_exact_resume

ALPHABET = ["a", "ä", '"', '""', ",", "\n", "\r\n", " ", "x y", ";", "7", "'", "\t", "語"]


def cells(rng: random.Random) -> list[str]:
    return ["".join(rng.choices(ALPHABET, k=rng.randint(0, 6))) for _ in range(3)]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_any_cells_are_read_as_pythons_csv_wrote_them(tmp_path: Path, ending: str, delimiter: str) -> None:
    rng = random.Random(7)
    rows = [[f"r{i}", *cells(rng)[1:]] for i in range(300)]
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=ending)
    writer.writerows([["text", "b", "c"], *rows])
    path = tmp_path / "a.csv"
    path.write_bytes(out.getvalue().encode())
    source = CsvFiles(path, types=dict.fromkeys("bc", "str"), delimiter=delimiter)
    order = np.array(rng.sample(range(300), 300))
    found = source.read(order)
    assert [[found[name][i] for name in ("text", "b", "c")] for i in range(300)] == [rows[i] for i in order]
    assert [t for chunk in source.iterate() for t in chunk.texts] == [row[0] for row in rows]
    at = source.locate(211)
    assert path.read_bytes()[at["offset"] :].startswith(b"r211")
    assert path.read_bytes()[: at["offset"]].count(b"\n") == at["line"] - 1


def test_any_text_is_read_as_python_reads_it(tmp_path: Path) -> None:
    """Quotes in odd places, too: whatever csv.reader makes of a text, where all its quotes are closed."""
    rng = random.Random(3)
    compared = 0
    for number in range(400):
        body = "".join(rng.choices(["a", "b", '"', ",", ",", "\n", "\n"], k=rng.randint(1, 40)))
        expected = [row for row in csv.reader(io.StringIO(f"x,y\n{body}", newline="")) if row and "".join(row).strip()]
        ended = list(csv.reader(io.StringIO(f"x,y\n{body}\nEND,END", newline="")))
        if ended[-1] != ["END", "END"] or len(expected) < 2:  # a quote is not closed
            continue
        path = tmp_path / f"{number}.csv"
        path.write_text(f"x,y\n{body}", newline="")
        source = CsvFiles(path, header=["x", "y"], types={"x": "str", "y": "str"})
        data, bad = source.files.fetch(np.arange(len(source)))
        found = [source.quoting.cells(record.decode()) for record in data]
        assert not bad and [row for row in found if "".join(row).strip()] == expected, repr(body)
        compared += 1
    assert compared > 150


def test_one_pass_resumes_after_every_chunk(tmp_path: Path) -> None:
    lines = ["n,text", *(f'{i},"text ""{i}""\n' + "x" * (i % 90) + '"' for i in range(500))]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress("\n".join(lines[:50]).encode()))
    source = CsvFiles([tmp_path / "a.csv", tmp_path / "b.csv.gz"])
    chunks = list(source.files.chunks(source._parse, size=4000))
    texts = [t for chunk in chunks for t in chunk.texts]
    assert len(texts) == len(source) == 549 and len(chunks) > 5
    assert texts == source.read(np.arange(549))["text"].tolist()
    done = 0
    for chunk in chunks:
        done += len(chunk.texts)
        rest = source.files.chunks(source._parse, chunk.cursor, size=4000)
        assert [t for c in rest for t in c.texts] == texts[done:]


def write(tmp_path: Path, rows: int = 60) -> Path:
    path = tmp_path / "a.csv"
    path.write_text("id,text,x\n" + "".join(f'{i},"line {i}\nmore",{i / 4}\n' for i in range(rows)))
    return path


def test_the_law(tmp_path: Path) -> None:
    path = write(tmp_path)

    def make(batch: int) -> ps.Pipeline:
        return ps.read_csv(path).shuffle(seed=7).batch(batch)

    assert_exact_resume(lambda: make(8))
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2), other_batch=8)
    loader = make(4).to_numpy()
    at = loader.why(3, 1)["from"]
    assert at["file"] == str(path) and at["line"] == 2 + 2 * int(loader.batch_at(3)["id"][1])


def test_children_read_it_too(tmp_path: Path) -> None:
    pipeline = ps.read_csv(write(tmp_path)).shuffle(seed=1).batch(8)
    copy = pickle.loads(pickle.dumps(pipeline))
    expected = [batch["id"].tolist() for batch in pipeline.to_numpy(threads=0)]
    assert [batch["id"].tolist() for batch in copy.to_numpy(workers=2)] == expected


def test_types(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("int,float,gap,code,flag,text,big\n1,1.5,1,007,true,a,1\n-2,2,,8,False,1,99999999999999999999\n")
    columns = ps.read_csv(path).rows().read(np.array([0, 1]))
    kinds = [str(columns[name].dtype) for name in ("int", "float", "gap", "code", "flag", "text", "big")]
    assert kinds == ["int64", "float64", "float64", "object", "bool", "object", "object"]
    assert np.isnan(columns["gap"][1]) and columns["code"].tolist() == ["007", "8"]
    assert ps.read_csv(path, columns=["code"], types={"code": "int"}).peek(1) == [{"code": 7}]


def test_bad_records_are_named_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{i},t{i}" for i in range(2000)]
    rows[1500], rows[1600], rows[1700], rows[1999] = "many,t", "1,2,3", "7,\udcff", '8,"never closed'
    path.write_bytes(("n,text\n" + "\n".join(rows)).encode("utf-8", "surrogateescape"))
    with pytest.raises(ps.BadRecords) as caught:
        ps.read_csv(path).rows().read(np.array([0, 1500, 1600, 1700, 1999]))
    texts = [f"{e.expected}, got {e.got}, {e.where.rpartition('/')[2]}" for e in caught.value.errors]
    assert texts[0].startswith("column 'n' of type int, got 'many', a.csv, line 1502, byte ")
    assert texts[1].startswith("2 cells: n, text, got 3 cells, a.csv, line 1602")
    assert texts[2].startswith("text in UTF-8, got byte 0xff") and "quotes that are closed" in texts[3]
    kept = ps.read_csv(path, on_error="skip").batch(2000).to_numpy().batch_at(0)["n"]
    assert set(kept.tolist()) == set(range(2000)) - {1500, 1600, 1700, 1999}
    errors = [e for chunk in CsvFiles(path).iterate() for e in chunk.errors]
    assert [e.where.split(",")[1] for e in errors] == [" line 1602", " line 1702", " line 2001"]


def test_a_quote_that_is_not_closed_spoils_its_own_line_only(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('n,text\n1,"open\n2,two\n3,three\n')
    source = CsvFiles(path, types={"n": "int"})
    assert len(source) == 3 and source.read(np.array([1, 2]))["text"].tolist() == ["two", "three"]
    with pytest.raises(ps.BadRecords, match="line 2"):
        source.read(np.array([0]))
    small = CsvFiles(path, types={"n": "int"}, limits=ps.Limits(line_bytes=12))
    assert small.read(np.array([1, 2]))["text"].tolist() == ["two", "three"]
    assert ps.read_csv(path, quote=None).peek(1) == [{"n": 1, "text": '"open'}]


def test_headers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf\n\na,b\n1,2\n")
    (tmp_path / "b.csv").write_text("a,b\n3,4\n")
    assert ps.read_csv(tmp_path).peek() == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert len(ps.read_csv(tmp_path / "b.csv", header=False).rows()) == 2
    assert ps.read_csv(tmp_path / "b.csv", header=["x", "y"]).peek(1) == [{"x": "a", "y": "b"}]
    (tmp_path / "c.tsv").write_text('say "hi"\tn\nx\t1\n')
    assert ps.read_csv(tmp_path / "c.tsv").peek() == [{'say "hi"': "x", "n": 1}]
    for text, message in {"b,a\n1,2\n": "the columns of", "a,a\n1,2\n": "different names",
                          "": "at least one record", "a,b\n": "only a header"}.items():  # fmt: skip
        (tmp_path / "d.csv").write_text(text)
        with pytest.raises(ps.DataError, match=message):
            ps.read_csv([tmp_path / "b.csv", tmp_path / "d.csv"] if text.startswith("b") else tmp_path / "d.csv")


@pytest.mark.parametrize(("options", "text"), [
    ({"columns": ["nix"]}, "a column 'nix'"), ({"types": {"text": "date"}}, "types as one of"),
    ({"delimiter": ",,"}, "one ASCII character"), ({"delimiter": '"'}, "different characters"),
    ({"types": {"nix": "int"}}, "a column 'nix'"), ({"sep": ","}, "delimiter"),
])  # fmt: skip
def test_wrong_arguments(tmp_path: Path, options: dict, text: str) -> None:
    with pytest.raises(ps.PenstockError, match=text):
        ps.read_csv(write(tmp_path), **options)


def test_texts_are_tokenized(tmp_path: Path) -> None:
    made = ps.prepare(ps.read_csv(write(tmp_path, 5)), "bytes", tmp_path / "store")
    ids = ps.open_store(made.path).peek(5)[4]["input_ids"].tolist()
    assert bytes(ids[:-1]) == b"line 4\nmore"


def test_behind_a_url() -> None:
    import fsspec

    with fsspec.open("memory://csv/a.csv", "wb") as file:
        file.write(b"n,text\n" + b"".join(b'%d,"a\nb %d"\n' % (i, i) for i in range(100)))
    source = ps.read_csv("memory://csv/a.csv").rows()
    assert source.read(np.array([99, 3]))["text"].tolist() == ["a\nb 99", "a\nb 3"]


def test_columns_without_a_name_are_numbered_as_pandas_numbers_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",text, ,n\n0,one,x,1\n1,two,y,2\n")  # as DataFrame.to_csv writes an index
    rows = ps.read_csv(tmp_path / "a.csv")
    assert rows.peek(2)[1] == {"Unnamed: 0": 1, "text": "two", "Unnamed: 2": "y", "n": 2}
    assert ps.prepare(rows, "bytes", tmp_path / "store", show_progress=False).documents == 2


@pytest.mark.parametrize("cell", ["b", '"b"', '"b\n"', ""])
def test_a_carriage_return_that_was_doubled_is_in_no_cell(cell: str, tmp_path: Path) -> None:
    """As `open(path, "w")` without newline="" writes what csv wrote, on Windows."""
    (tmp_path / "a.csv").write_bytes(f"n,text\r\r\n1,{cell}\r\r\n2,c\r\r\n".encode())
    table = ps.read_csv(tmp_path / "a.csv")
    assert [row["text"] for row in table.rows()] == [cell.strip('"'), "c"]
    tokens = table.tokenize("bytes", eos=False, keep=[], cache_dir=tmp_path / "cache", show_progress=False)
    assert [bytes(row["input_ids"].tolist()).decode() for row in tokens.rows()] == [cell.strip('"'), "c"]
