"""Changes to a parsed template: the `generation` tag, and guards wherever a template can loop or grow.

Imported only where Jinja is installed.
"""

# ruff: noqa: N802, N815  (the visitor finds its methods by the names of node classes)

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer

from penstock.chat.jinja.bounds import to_text

# Names with a space: no template can spell them as a filter or test.
CONCAT, WEIGH, WORK, TICK = "guard concat", "guard weigh", "guard work", "guard tick"


class Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` renders what is inside, and notes where it is in the text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("noted"), [], [], body).set_lineno(line)

    def noted(self, caller: Any) -> str:
        """What is inside, noted in the thread's `written`."""
        start, inside = written.length, str(caller())
        written.marked.append((start, start + len(inside)))
        if written.awaited is not None:
            written.misplaced = inside
        written.awaited = inside
        return inside


class _Written(threading.local):
    """What the rendering of this thread has written so far, and the generation blocks in it."""

    length = 0
    marked: list[tuple[int, int]]
    awaited: str | None = None  # the last generation block, which must be what is written next
    misplaced: str | None = None  # a generation block that was not: a macro or set block held it

    def begin(self) -> None:
        self.length, self.marked, self.awaited, self.misplaced = 0, [], None, None

    def counted(self, blocks: Iterable[Any]) -> Iterator[str]:
        for block in blocks:
            text = to_text(block)
            if self.awaited is not None:
                self.misplaced = self.misplaced if text == self.awaited else self.awaited
                self.awaited = None
            self.length += len(text)
            yield text
        self.misplaced = self.misplaced or self.awaited


written = _Written()


def _tick() -> nodes.Test:
    return nodes.Test(nodes.Const(True), TICK, [], [], None, None)


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


class _Guards(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body = [nodes.ExprStmt(_tick()), *node.body]
        if node.test is not None:
            node.test = nodes.And(_tick(), node.test)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.Tuple(node.nodes, "load"), CONCAT)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, WORK)
        for operand in node.ops:
            if not isinstance(operand.expr, nodes.Const):
                operand.expr = _filtered(operand.expr, WORK)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.And(_tick(), node), WEIGH) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, WEIGH)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, WEIGH)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, WEIGH) if node.ctx == "load" else node

    def _refuse(self, node: nodes.Node) -> nodes.Node:
        raise SecurityError(f"{type(node).__name__.lower()} is not for chat templates")

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse


def guard(tree: nodes.Template) -> nodes.Template:
    """The tree with its guards, in place."""
    _Guards().visit(tree)
    if tree.environment is not None:
        tree.set_environment(tree.environment)
    for node in tree.find_all(nodes.Node):
        if getattr(node, "lineno", None) is None:
            node.set_lineno(1)
    return tree
