"""Loss masks of templates that mark with `{% generation %}` what a model is trained on, as transformers reads them.

The template's own ids are kept: a token that lies partly in a block is trained on, as in transformers and TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.chat.chat_template import Message
from penstock.chat.loss_masks import Boundary, Encoder, Span, check_utf8, encode_spans
from penstock.core.errors import RecordError, UsageError

Marked = Callable[[Sequence[Message]], tuple[str, list[Span] | None]]


def generation_spans(
    marked: Marked, messages: Sequence[Message], last_only: bool = False, first: int = 0
) -> tuple[str, list[Span]]:
    """The rendered conversation and its generation blocks: all, the last answer's, or those from message `first` on.

    >>> def marked(messages):
    ...     return "".join(messages), [(i, i + 1) for i in range(1, len(messages), 2)]
    >>> generation_spans(marked, ["u", "A", "u", "B"], first=2)
    ('uAuB', [(3, 4)])
    """
    text, spans = _placed(marked, messages)
    if last_only:
        first = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    earlier, before = _placed(marked, messages[:first]) if first else ("", [])
    if [text[a:b] for a, b in spans[: len(before)]] != [earlier[a:b] for a, b in before]:
        raise RecordError(
            "a chat template that renders earlier answers the same, whatever comes after them",
            got="other generation blocks for the beginning of the conversation alone",
            where=f"before message {first}",
            fix="use mask='assistant', which trains on all generation blocks",
        )
    kept = [span for span in spans[len(before) :] if span[1] > span[0]]
    if not kept:
        raise RecordError(
            "a generation block of the chat template with something to learn",
            got=f"none for roles {', '.join(str(m['role']) for m in messages[first:])[:200]}",
            fix="drop the record, or use a template that puts the answers between {% generation %} tags",
        )
    return text, kept


def _placed(marked: Marked, messages: Sequence[Message]) -> tuple[str, list[Span]]:
    text, spans = marked(messages)
    if spans is None:
        raise UsageError(
            "a {% generation %} block that writes straight into the text",
            got="one that is written through a macro or a set block, so that its place is not known",
            fix="move the generation tags around what the template itself writes, or remove them and use turn='tail'",
        )
    return text, spans


def encode_marked(
    encoder: Encoder, text: str, spans: Sequence[Span], boundary: Boundary = "split"
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Ids of a text as they are, and which of them lie, at least partly, in the spans.

    Without offsets of tokens, which only some tokenizers know, ids and mask are those of `encode_spans`.
    """
    check_utf8(text)
    found = encoder.offsets(text)
    if found is None:
        return encode_spans(encoder, text, spans, boundary)
    ids, starts, ends = found
    trained = np.zeros(len(ids), bool)
    for first, last in spans:
        inside = (ends > first) & (starts < last)
        across = inside & ((starts < first) | (ends > last))
        if boundary == "error" and across.any():
            at = int(starts[across][0])
            raise RecordError(
                "a token boundary where the trained text begins or ends",
                got=f"a token across the edge of a generation block, at {text[at : at + 30]!r}",
                fix="use boundary='split', or end the prompt differently",
            )
        trained |= inside
    return ids, trained
