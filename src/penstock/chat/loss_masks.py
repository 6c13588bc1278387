"""The mask compiler: finds which tokens are trained on, without markers in the template and without guessing.

An assistant turn k is what `render(messages[:k + 1])` has beyond `render(messages[:k])` with the generation prompt.
That is true only if each is a prefix of the full conversation as rendered; this is checked, turn by turn, and a
template that breaks it is an error. The turn's content and end marker are trained on: the header is part of the
generation prompt, and blank space behind an end marker is never generated. Other trainers include that space, or the
header as well: see `Turn`. Where the generation prompt says nothing, a turn must begin with its
content, which is tried with two other contents.

Spans of characters become spans of tokens only where a boundary falls between two tokens, which is proved in one of
four ways: by the tokenizer's offsets, by encoding the pieces apart, by encoding prefixes, or by decoding. Costs one
encoding of the text with offsets, two without; records with a token across a boundary cost a few more.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.chat.chat_template import Message
from penstock.core.errors import LimitError, RecordError
from penstock.tokenizers import as_tokenizer

Span = tuple[int, int]
Boundary = Literal["split", "error"]
# The trained part of an assistant turn: content and end marker; plus the blank space behind; plus the header.
Turn = Literal["answer", "tail", "whole"]
Render = Callable[[Sequence[Message], bool], str]


def assistant_spans(
    render: Render,
    messages: Sequence[Message],
    last_only: bool = False,
    turn: Turn = "answer",
    *,
    first: int = 0,
    header: str = "",
) -> tuple[str, list[Span]]:
    """The rendered conversation, and the characters of each assistant turn (or the last one) that are trained on.

    Turns before message `first` are not. `header` is what the generation prompt is known to be, if anything: see
    `generation_header`.

    >>> def render(messages, prompt):
    ...     return "".join(f"<{m['role']}>{m['content']}</>\\n" for m in messages) + ("<assistant>" if prompt else "")
    >>> messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]
    >>> text, spans = assistant_spans(render, messages)
    >>> [text[a:b] for a, b in spans]
    ['bc</>']
    >>> [text[a:b] for turn in ("tail", "whole") for a, b in assistant_spans(render, messages, turn=turn)[1]]
    ['bc</>\\n', '<assistant>bc</>\\n']
    """
    full = render(messages, False)
    places = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= first]
    if not places:
        raise RecordError(
            "at least one assistant message to learn from",
            got=f"roles {', '.join(str(m['role']) for m in messages[first:])[:200]}",
            fix="drop the record, or name the answering role 'assistant'",
        )
    return full, [_span(render, messages, at, full, turn, header) for at in (places[-1:] if last_only else places)]


def generation_header(render: Render) -> str:
    """What a template writes for `add_generation_prompt` behind a user's message; empty where that cannot be said.

    >>> generation_header(lambda messages, prompt: "hi" + prompt * " bot:")
    ' bot:'
    """
    asked = [{"role": "user", "content": "x"}]
    try:
        plain, prompted = render(asked, False), render(asked, True)
    except (RecordError, LimitError):  # a template may want other conversations than this
        return ""
    return prompted[len(plain) :] if prompted.startswith(plain) else ""


def _span(render: Render, messages: Sequence[Message], at: int, full: str, turn: Turn, header: str) -> Span:
    head = render(messages[:at], turn != "whole")  # the generation prompt is the header
    upto = full if at == len(messages) - 1 else render(messages[: at + 1], False)
    for name, part in (("the conversation before it", head), ("the conversation up to it", upto)):
        if not full.startswith(part):
            raise RecordError(
                "a chat template that renders the beginning of a conversation as the beginning of the full text",
                got=f"at message {at}, {name} renders differently: {_difference(part, full)}",
                where=f"message {at}",
                fix=_way_out(render, messages, at, full, part is head and turn != "whole"),
            )
    if len(head) > len(upto):
        raise RecordError(
            "an assistant turn behind the generation prompt",
            got=f"message {at} renders as nothing",
            where=f"message {at}",
            fix="drop empty assistant messages, or use a template that shows them",
        )
    start, stop = len(head), len(upto)
    if turn == "whole":
        return start, stop
    if not (header.strip() and head.endswith(header)) and head == render(messages[:at], False):
        _no_header(render, messages, at, head)
    content = messages[at].get("content")
    text = content.strip() if isinstance(content, str) else ""
    body = full[start:stop].rstrip()
    if turn == "answer" and not (text and body.endswith(text)):  # there is an end marker: mask what follows
        stop = start + len(body)
    return start, stop


def _no_header(render: Render, messages: Sequence[Message], at: int, head: str) -> None:
    """Raises unless the turn begins with its content: what two other contents have in common before them is a header,
    and without a generation prompt nobody says where it ends."""
    message = messages[at]
    listed = isinstance(message.get("content"), list)
    one, two = (
        render(
            [*messages[:at], {"role": message["role"], "content": [{"type": "text", "text": t}] if listed else t}],
            False,
        )
        for t in ("1", "2")
    )
    before = one[len(head) : _common_prefix(one, two)]
    if before.strip():
        raise RecordError(
            "a chat template with a generation prompt, so that the header is separate from the content",
            got=f"no generation prompt, and {before[:60]!r} before the content",
            where=f"message {at}",
            fix="let the template write the assistant's header when add_generation_prompt is true, or use turn='whole'",
        )


def _way_out(render: Render, messages: Sequence[Message], at: int, full: str, prompted: bool) -> str:
    """What helps where a prefix is none: it is tried before it is advised."""
    ways = []
    if prompted and full.startswith(render(messages[:at], False)):
        ways.append("use turn='whole', which needs no generation prompt")
    if any(message["role"] == "assistant" for message in messages[at + 1 :]):
        ways.append("use mask='last'")
    return ", or ".join([*ways, "a template for training that keeps earlier turns as they were"])


def _common_prefix(part: str, full: str) -> int:
    """How far two texts are the same."""
    return next((i for i, (a, b) in enumerate(zip(part, full, strict=False)) if a != b), min(len(part), len(full)))


def _difference(part: str, full: str) -> str:
    at = _common_prefix(part, full)
    low = max(0, at - 10)
    return f"{part[low : at + 20]!r} where the full text has {full[low : at + 20]!r}"


class Encoder:
    """A tokenizer as the mask compiler needs it: ids of a text, cut at certain characters.

    Special tokens written in the text become their ids, whatever the library's default is; none are added.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = as_tokenizer(tokenizer, add_special_tokens=False)
        specials: Mapping[str, int] = self.tokenizer.special_tokens
        self.special_ids = {text: int(number) for text, number in specials.items() if text}
        longest_first = sorted(self.special_ids, key=len, reverse=True)
        self.special_pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        # These read a special token's text as ordinary text, so the text is cut around it here.
        self._splits = self.tokenizer.kind in ("tiktoken", "sentencepiece", "bytes") and bool(longest_first)
        backend = getattr(self.tokenizer, "backend", None)
        self._backend = backend if hasattr(backend, "encode") and not self._splits else None

    def encode(self, text: str) -> NDArray[np.int64]:
        """Ids of a text."""
        if not text:
            return np.empty(0, np.int64)
        if not self._splits or self.special_pattern is None:
            return np.asarray(self.tokenizer.encode(text), np.int64)
        ids: list[int] = []
        at = 0
        for match in self.special_pattern.finditer(text):
            ids += [*self.tokenizer.encode(text[at : match.start()]).tolist(), self.special_ids[match.group()]]
            at = match.end()
        return np.array(ids + self.tokenizer.encode(text[at:]).tolist(), np.int64)

    def adds_bos(self, number: int) -> bool:
        """Whether the tokenizer, asked for its special tokens, begins a text with this one."""
        if self._backend is None:
            return bool(getattr(getattr(self.tokenizer, "original", None), "add_bos_token", False))
        return bool(self._backend.encode("a").ids[:1] == [number])

    def specials_in(self, text: str) -> list[str]:
        """The special tokens written out in a text."""
        return self.special_pattern.findall(text) if self.special_pattern is not None else []

    def encode_cut(
        self, text: str, cuts: Sequence[int], boundary: Boundary = "split"
    ) -> tuple[NDArray[np.int64], list[int]]:
        """Ids of a text, and for each cut (ascending places in the text) the number of tokens before it.

        Where a token lies across a cut, the pieces are encoded apart (`"split"`: what a model sees that is given the
        first piece and writes the second), or it is an error. The ids always decode to what the text's own ids do.

        >>> Encoder("bytes").encode_cut("abcd", [1, 3])
        (array([ 97,  98,  99, 100]), [1, 3])
        """
        if not cuts:
            return self.encode(text), []
        exact = self._by_offsets(text, cuts)
        if exact is not None:
            return exact
        full = self.encode(text)
        edges = [0, *cuts, len(text)]
        pieces = [self.encode(text[a:b]) for a, b in pairwise(edges)]
        joined = np.concatenate(pieces)
        at = np.cumsum([len(piece) for piece in pieces])[:-1].tolist()
        if np.array_equal(joined, full):
            return full, at
        prefixes = [self.encode(text[:cut]) for cut in cuts]
        if all(np.array_equal(prefix, full[: len(prefix)]) for prefix in prefixes):
            return full, [len(prefix) for prefix in prefixes]
        places = [self._by_decoding(text, cut, full) for cut in cuts]
        proved = [place for place in places if place is not None]
        if len(proved) == len(cuts):
            return full, proved
        if boundary == "error":
            bad = cuts[places.index(None)]
            raise RecordError(
                "a token boundary where the trained text begins or ends",
                got=f"a token across {text[max(0, bad - 15) : bad]!r} and {text[bad : bad + 15]!r}",
                fix="use boundary='split', or end the prompt differently",
            )
        return self._split(text, edges, pieces)

    def _split(
        self, text: str, edges: Sequence[int], pieces: Sequence[NDArray[np.int64]]
    ) -> tuple[NDArray[np.int64], list[int]]:
        """The pieces' ids, each behind those before it, such that all of them still say the text."""
        decode = self.tokenizer.decode
        ids, at = pieces[0], []
        for (start, stop), piece in zip(pairwise(edges[1:]), pieces[1:], strict=True):
            at.append(len(ids))
            said = decode(self.encode(text[:stop]))
            # A tokenizer that begins every text with a blank would put one between the pieces.
            ways = (np.concatenate([ids, way]) for way in (piece, *self._behind(text[start:stop])))
            found = next((way for way in ways if decode(way) == said), None)
            if found is None:
                raise RecordError(
                    "a response that can be tokenized behind its prompt",
                    got=f"a tokenizer that writes {text[max(0, start - 15) : start]!r} and "
                    f"{text[start : start + 15]!r} apart as another text",
                    fix="end the prompt at the end of a word, without the blank behind it",
                )
            ids = found
        return ids, at

    def _behind(self, text: str) -> Iterator[NDArray[np.int64]]:
        """Ids of a text that has something before it, by encoding it behind a mark and leaving the mark's ids out."""
        for mark in ("\n", ".", "a", "|"):
            ids, known = self.encode(mark + text), self.encode(mark)
            if np.array_equal(ids[: len(known)], known):
                yield ids[len(known) :]

    def _by_decoding(self, text: str, cut: int, ids: NDArray[np.int64]) -> int | None:
        """The number of tokens that decode to the text before the cut, if the others decode to the text behind it."""
        decode = self.tokenizer.decode
        place = bisect_left(range(len(ids)), cut, key=lambda k: len(decode(ids[:k])))
        return place if decode(ids[:place]) == text[:cut] and decode(ids[place:]) == text[cut:] else None

    def offsets(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None:
        """Ids of a text, and the characters at which each begins and ends, if the tokenizer knows them.

        A blank that a token holds and its offsets leave out counts to the token behind it.
        """
        if self._backend is None or not text:
            return None
        encoding = self._backend.encode(text, add_special_tokens=False)
        starts, ends = np.asarray(encoding.offsets, np.int64).reshape(-1, 2).T
        reached = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]]) if len(ends) else ends
        return np.asarray(encoding.ids, np.int64), np.minimum(starts, reached), ends

    def _by_offsets(self, text: str, cuts: Sequence[int]) -> tuple[NDArray[np.int64], list[int]] | None:
        if self._backend is None or not text:
            return None
        encoding = self._backend.encode(text, add_special_tokens=False)
        offsets = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
        places = []
        for cut in cuts:
            place = int(np.searchsorted(offsets[:, 0], cut))
            before = offsets[place - 1, 1] if place else 0
            after = offsets[place, 0] if place < len(offsets) else len(text)
            # Offsets may leave out the blanks a token holds: only tokens that meet at the cut prove anything.
            if not before == cut == after:
                return None
            places.append(place)
        return np.asarray(encoding.ids, np.int64), places


def trained_tokens(length: int, cuts: Sequence[int], spans: Sequence[Span]) -> NDArray[np.bool_]:
    """True for the tokens of each span, as pairs of positions in `cuts`, which hold token numbers."""
    mask = np.zeros(length, bool)
    for first, last in spans:
        mask[cuts[first] : cuts[last]] = True
    return mask


def check_utf8(text: str) -> None:
    """Raises `RecordError` for text with half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            "text that can be written as UTF-8",
            got=f"half a surrogate pair, {text[error.start]!r}, at character {error.start} of the prompt",
            fix="text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace') repairs such text",
        ) from error


def encode_spans(
    encoder: Encoder, text: str, spans: Sequence[Span], boundary: Boundary = "split"
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Ids of a text, and which of them lie in these spans of characters.

    >>> ids, trained = encode_spans(Encoder("bytes"), "ab cd", [(3, 5)])
    >>> ids[trained].tolist() == list(b"cd")
    True
    """
    check_utf8(text)
    cuts = sorted({edge for span in spans for edge in span})
    ids, places = encoder.encode_cut(text, cuts, boundary)
    index = {cut: i for i, cut in enumerate(cuts)}
    return ids, trained_tokens(len(ids), places, [(index[a], index[b]) for a, b in spans])
