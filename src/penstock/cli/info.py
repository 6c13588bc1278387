"""`penstock info`: describes a store, a token file or text files, without reading tokens."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_tokens, command

if TYPE_CHECKING:
    from penstock.sources.formats import Format

_SHOWN_SHARDS = 8


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "info", "describe a store, token file, text, records, images, audio or tar shards", run,
        examples=["corpus", "megatron/web_document", "train.bin --split-id 50256", "data/a.jsonl --json"],
    )  # fmt: skip
    parser.add_argument(
        "path", metavar="PATH", help="token store, Megatron prefix, .bin, .npy, or files of text, records or media"
    )
    add_tokens(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the description."""
    from penstock.cli import media
    from penstock.cli.inputs import open_tokens
    from penstock.sources.formats import format_of

    options = dict(args.storage_option or []) or None
    found = format_of(args.path, options, most=True)
    if found.name == "store":
        from penstock.store.verify import info

        facts = info(args.path, options)
    elif found.kind == "tokens":
        facts = open_tokens(args.path, args.dtype, args.split_id).describe()
    elif found.name in media.KINDS:
        facts = media.facts(args.path, found)
    else:
        facts = _records(args.path, found)
    facts = {"path": args.path} | facts
    return console.result(args, facts, _show, code=1 if "damage" in facts else 0)


def _records(path: str, found: Format) -> dict[str, Any]:
    from penstock.sources.formats import Options

    source = found.open(path, Options(every_field=True))
    records = len(source)  # for lines this is one scan, and `describe` knows more after it
    return {**source.describe(), "records": records}


def _show(facts: dict[str, Any]) -> None:
    shards = facts.pop("shards", [])
    rows: list[tuple[str, Any]] = []
    for name, value in facts.items():
        if name == "bytes":
            rows.append((name, f"{value:,} ({console.size(value)})"))
        elif name == "metadata":
            rows += [(f"metadata.{k}", _short(v)) for k, v in value.items()]
        elif isinstance(value, dict):
            rows += [(f"{name}.{k}", _or_none(k, v)) for k, v in value.items()]
        else:
            rows.append((name, _or_none(name, value)))
    console.table(rows)
    for shard in shards[:_SHOWN_SHARDS]:
        counted = f"{console.count(shard['documents'], 'document')}, {console.count(shard['tokens'], 'token')}"
        facts_of = f"{counted}, {console.size(shard['bytes'])}"
        console.out(f"  {shard['name']}: {facts_of}")
    if shards and facts["files"] > _SHOWN_SHARDS:
        console.out(f"  and {console.count(facts['files'] - _SHOWN_SHARDS, 'more shard')}")


def _or_none(name: str, value: Any) -> Any:
    """A token id that a tokenizer or store does not have is none; it is not unknown."""
    return "none" if value is None and name.endswith("_id") else value


def _short(value: Any) -> Any:
    if isinstance(value, list) and len(value) > 4:
        return [*value[:4], f"and {len(value) - 4:,} more"]
    return value
