"""Masks against the published rules of TRL and torchtune, token by token, on templates written by hand.

The rules are in `published_rules.py`. They differ from each other in what they learn around an answer; `turn` chooses.
"""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from penstock import RecordError, UsageError
from penstock.chat import PromptEngine
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from . import published_rules as rules
from .conftest import CHATML, CORPUS, LLAMA3, LLAMA3_TAGGED, SPECIALS

BOS, EOS = "<|begin_of_text|>", "<|endoftext|>"
MARKERS = {
    "chatml": ("<|im_start|>assistant\n", "<|im_start|>user\n"),
    "llama3": (
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|start_header_id|>user<|end_header_id|>\n\n",
    ),
}
PLAIN = {"chatml": CHATML, "llama3": LLAMA3}

# As TRL's ChatML-like templates for training have it: the line break behind the end marker stands inside the tags.
CHATML_TAIL_TAGGED = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + '<|im_end|>\\n' }}{%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
"""
# As its template for Qwen-2.5 has it: the line break before the content as well.
CHATML_WIDE_TAGGED = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- '\\n' + message.content + '<|im_end|>\\n' }}{%- endgeneration %}
    {%- else %}
        {{- '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
"""
# What is learnt begins behind the generation prompt: here before the line break.
CHATML_SHORT_PROMPT = CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant'")
# ChatML as torchtune writes it with a plain tokenizer: bos opens each turn, eos ends it, no spaces at a message's end.
CHATML_TURNS = """
{%- for message in messages %}
    {%- if loop.first or loop.previtem.role == 'assistant' %}{{- bos_token }}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content.rstrip(' ') + '<|im_end|>\\n' }}
    {%- if message.role == 'assistant' %}{{- eos_token }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# And with its Qwen-2 tokenizer: the last answer ends in eos alone.
CHATML_EOS = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- if loop.last and message.role == 'assistant' %}
        {{- eos_token }}
    {%- else %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@pytest.fixture(scope="module")
def words() -> Any:
    """A tokenizer that, like those of ChatML and Llama-3 models, has no token from a line break into the next word."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n+| ?[^\s]+|[^\S\n]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token="<|im_start|>")


def encoder(tokenizer: Any) -> rules.Encode:
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def rendered(tokenizer: Any, chat: Any, template: str, prompt: bool = False) -> str:
    return str(
        tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False, add_generation_prompt=prompt)
    )


def marked(row: Any) -> rules.Marked:
    assert row is not None
    learnt = row["labels"] != -100
    assert (row["labels"][learnt] == row["input_ids"][learnt]).all()
    return row["input_ids"].tolist(), learnt.tolist()


def alpaca_parts(record: dict[str, str]) -> tuple[str, str]:
    """The Alpaca prompt as published, written out here once more."""
    first = "Below is an instruction that describes a task"
    then = "Write a response that appropriately completes the request.\n\n"
    asked = f"### Instruction:\n{record['instruction']}\n\n"
    if record["input"]:
        more = ", paired with an input that provides further context. "
        return f"{first}{more}{then}{asked}### Input:\n{record['input']}\n\n### Response:\n", record["output"]
    return f"{first}. {then}{asked}### Response:\n", record["output"]


RECORDS = [
    {
        "instruction": f"Name {what} number {i}.",
        "input": "" if i % 3 else f"number {i}\nof {what}",
        "output": f"{what}, {i}" + ("." if i % 2 else ".\n\nAnd more:\n  " + what),
    }
    for i, what in enumerate(["a café", "日本", "  two spaces", "🙂🙂", "x = {y}", "tab\there", "yes"] * 5)
]


# TRL 0.19 and before: markers among the ids.


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_trl_response_marker_is_the_last_turn(name: str, words: Any, chats: Any) -> None:
    encode = encoder(words)
    last = PromptEngine(words, chat_template=PLAIN[name], mask="last", turn="tail")
    every = PromptEngine(words, chat_template=PLAIN[name], mask="prompt", turn="tail")
    for chat in chats:
        ids = encode(rendered(words, chat, PLAIN[name]))
        wanted = (ids, rules.behind_last_marker(ids, encode(MARKERS[name][0])))
        assert marked(last({"messages": chat})) == wanted
        if sum(message["role"] == "assistant" for message in chat) == 1:
            assert marked(every({"messages": chat})) == wanted


@pytest.mark.parametrize("mask", ["assistant", "prompt"])
@pytest.mark.parametrize("name", sorted(PLAIN))
def test_trl_both_markers_are_every_turn(name: str, mask: Any, words: Any, chats: Any) -> None:
    encode = encoder(words)
    engine = PromptEngine(words, chat_template=PLAIN[name], mask=mask, turn="tail")
    answer, question = map(encode, MARKERS[name])
    for chat in chats:
        ids = encode(rendered(words, chat, PLAIN[name]))
        assert marked(engine({"messages": chat})) == (ids, rules.between_markers(ids, answer, question))


def test_trl_response_marker_on_alpaca(words: Any) -> None:
    encode = encoder(words)
    engine = PromptEngine(words, "alpaca")
    for record in RECORDS:
        ids = encode("".join(alpaca_parts(record)) + EOS)
        learnt = rules.behind_last_marker(ids, encode("### Response:\n"))
        assert any(learnt)
        assert marked(engine(record)) == (ids, learnt)


def test_an_answer_that_quotes_the_marker_is_learnt_whole(words: Any) -> None:
    """A marker looked for among the ids is found in the answer too, and half of the answer is lost; ours is not."""
    encode = encoder(words)
    record = {"instruction": "Show the format.", "input": "", "output": "It is\n### Response:\nand then text"}
    ids, learnt = marked(PromptEngine(words, "alpaca")(record))
    theirs = rules.behind_last_marker(ids, encode("### Response:\n"))
    assert words.decode([i for i, on in zip(ids, learnt, strict=True) if on]) == record["output"] + EOS
    assert words.decode([i for i, on in zip(ids, theirs, strict=True) if on]) == "and then text" + EOS


# TRL 1.x: what is behind the prompt's tokens, or between tags.


@pytest.mark.parametrize("bos", [False, True])
def test_trl_completion_only_on_alpaca(bos: bool, words: Any) -> None:
    backend = Tokenizer.from_str(words.backend_tokenizer.to_str())
    if bos:
        number = backend.token_to_id(BOS)
        backend.post_processor = TemplateProcessing(single=f"{BOS} $0", special_tokens=[(BOS, number)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=EOS)
    engine = PromptEngine(tokenizer, "alpaca")
    for record in RECORDS:
        prompt, output = alpaca_parts(record)
        whole = tokenizer(prompt + output + EOS)["input_ids"]
        assert (whole[0] == tokenizer.bos_token_id) == bos
        assert marked(engine(record)) == (whole, rules.behind_prompt(tokenizer(prompt)["input_ids"], whole))


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_trl_completion_only_on_chats(name: str, words: Any, chats: Any) -> None:
    encode = encoder(words)
    engine = PromptEngine(words, chat_template=PLAIN[name], mask="last", turn="tail")
    for chat in chats:
        prompt = encode(rendered(words, chat[:-1], PLAIN[name], prompt=True))
        whole = encode(rendered(words, chat, PLAIN[name]))
        assert marked(engine({"messages": chat})) == (whole, rules.behind_prompt(prompt, whole))


def test_a_token_across_the_boundary_is_miscounted_by_that_rule_and_split_by_ours(words: Any) -> None:
    prompt, output = "What is the capital: ", "Paris"
    encode = encoder(words)
    whole = encode(prompt + output)
    theirs = rules.behind_prompt(encode(prompt), whole)
    assert words.decode([i for i, on in zip(whole, theirs, strict=True) if on]) != output
    ids, learnt = marked(PromptEngine(words, {"prompt": prompt, "response": "{a}"}, eos=False)({"a": output}))
    assert words.decode([i for i, on in zip(ids, learnt, strict=True) if on]) == output


@pytest.mark.parametrize(
    ("plain", "tagged", "turn"),
    [
        (LLAMA3, LLAMA3_TAGGED, "answer"),
        (LLAMA3, LLAMA3_TAGGED, "tail"),
        (CHATML, CHATML_TAIL_TAGGED, "tail"),
        (CHATML_SHORT_PROMPT, CHATML_WIDE_TAGGED, "tail"),
    ],
    ids=["llama3", "llama3, no blanks to add", "chatml", "chatml as for qwen2.5"],
)
def test_trl_assistant_only(plain: str, tagged: str, turn: Any, words: Any, chats: Any) -> None:
    engine = PromptEngine(words, chat_template=plain, mask="assistant", turn=turn)
    for chat in chats:
        theirs = words.apply_chat_template(
            chat, chat_template=tagged, return_assistant_tokens_mask=True, return_dict=True, tokenize=True
        )
        ids, learnt = marked(engine({"messages": chat}))
        assert (ids, list(map(int, learnt))) == (theirs["input_ids"], theirs["assistant_masks"])


@pytest.mark.parametrize(("keep", "truncation"), [("start", "right"), ("end", "left")])
def test_trl_truncation_and_what_it_drops(keep: Any, truncation: Any, words: Any, chats: Any) -> None:
    whole = PromptEngine(words, chat_template=CHATML, mask="assistant", turn="tail")
    dropped = 0
    for length in (1, 9, 30, 61):
        engine = PromptEngine(
            words, chat_template=CHATML, mask="assistant", turn="tail",
            max_length=length, truncation=truncation, on_error="skip",
        )  # fmt: skip
        for chat in chats:
            wanted = rules.cut(marked(whole({"messages": chat})), length, keep)
            row = engine({"messages": chat})
            dropped += wanted is None
            if wanted is not None and not any(wanted[1][1:]):  # it keeps a lone first label, which no model predicts
                wanted = None
            assert (row is None) == (wanted is None)
            if row is not None:
                assert marked(row) == wanted
    assert (dropped > 0) == (keep == "start")


# torchtune: message by message, header and end included.


@pytest.mark.parametrize("strategy", ["assistant", "last"])
def test_torchtune_llama3(strategy: Any, words: Any, chats: Any) -> None:
    engine = PromptEngine(words, chat_template=LLAMA3, mask=strategy, turn="whole")
    for chat in chats:
        ids, learnt = rules.llama3_messages(encoder(words), chat, strategy)
        # It closes with an end token that is never learnt; the template writes none.
        assert (ids[-1], learnt[-1]) == (words.eos_token_id, False)
        assert marked(engine({"messages": chat})) == (ids[:-1], learnt[:-1])


@pytest.mark.parametrize("strategy", ["assistant", "last"])
def test_torchtune_chatml(strategy: Any, words: Any, chats: Any) -> None:
    engine = PromptEngine(words, chat_template=CHATML_TURNS, mask=strategy, turn="whole")
    for chat in chats:
        assert marked(engine({"messages": chat})) == rules.chatml_messages(encoder(words), chat, strategy)


def test_torchtune_qwen2(words: Any, chats: Any) -> None:
    """An answer ends otherwise when it is the last, so earlier ones cannot be told by prefixes: they are refused."""
    last = PromptEngine(words, chat_template=CHATML_EOS, mask="last", turn="whole")
    every = PromptEngine(words, chat_template=CHATML_EOS, mask="assistant", turn="whole")
    refused = 0
    for chat in chats:
        assert marked(last({"messages": chat})) == rules.qwen2_messages(encoder(words), chat, "last")
        if sum(message["role"] == "assistant" for message in chat) == 1:
            assert marked(every({"messages": chat})) == rules.qwen2_messages(encoder(words), chat, "assistant")
            continue
        refused += 1
        with pytest.raises(RecordError, match="a conversation as the beginning of the full text"):
            every({"messages": chat})
    assert refused


@pytest.mark.parametrize("strategy", ["assistant", "last"])
@pytest.mark.parametrize("template", [CHATML, LLAMA3, CHATML_TURNS], ids=["chatml", "llama3", "chatml in turns"])
def test_torchtune_any_chat_template(template: str, strategy: Any, words: Any, chats: Any) -> None:
    engine = PromptEngine(words, chat_template=template, mask=strategy, turn="whole")
    for chat in chats:
        wanted = rules.rendered_messages(
            encoder(words), lambda part: rendered(words, list(part), template), chat, strategy
        )
        assert marked(engine({"messages": chat})) == wanted


@pytest.mark.parametrize(("strategy", "mask"), [("assistant", "prompt"), ("last", "last"), ("all", "none")])
def test_torchtune_alpaca(strategy: Any, mask: Any, words: Any) -> None:
    engine = PromptEngine(words, "alpaca", mask=mask, bos=True)
    for record in RECORDS:
        prompt, output = alpaca_parts(record)
        assert marked(engine(record)) == rules.alpaca_messages(encoder(words), prompt, output, strategy)


def test_torchtune_all_is_mask_none_but_for_system_messages_and_bos(words: Any, chats: Any) -> None:
    llama3 = PromptEngine(words, chat_template=LLAMA3, mask="none")
    chatml = PromptEngine(words, chat_template=CHATML_TURNS, mask="none")
    for chat in chats:
        system = chat[0]["role"] == "system"
        ids, learnt = marked(chatml({"messages": chat}))
        wanted, theirs = rules.chatml_messages(encoder(words), chat, "all")
        assert (ids == wanted, all(learnt), all(theirs)) == (True, True, not system)
        ids, learnt = marked(llama3({"messages": chat}))
        wanted, theirs = rules.llama3_messages(encoder(words), chat, "all")
        assert (ids == wanted[:-1], all(learnt)) == (True, True)
        unlearnt = [i for i, on in zip(wanted[:-1], theirs, strict=False) if not on]
        head = encoder(words)(rendered(words, chat[:1], LLAMA3)) if system else [words.bos_token_id]
        assert unlearnt == head


# The option itself.


def test_turns_differ_by_the_header_and_the_line_break_alone(words: Any, chats: Any) -> None:
    def learnt_text(chat: Any, **options: Any) -> str:
        ids, learnt = marked(PromptEngine(words, chat_template=CHATML, **options)({"messages": chat}))
        return str(words.decode([i for i, on in zip(ids, learnt, strict=True) if on]))

    for chat in chats:
        answers = [m["content"] + "<|im_end|>" for m in chat if m["role"] == "assistant"]
        assert learnt_text(chat) == learnt_text(chat, turn="answer") == "".join(answers)
        assert learnt_text(chat, turn="tail") == "".join(a + "\n" for a in answers)
        assert learnt_text(chat, turn="whole") == "".join(f"<|im_start|>assistant\n{a}\n" for a in answers)
        assert learnt_text(chat, turn="whole", mask="last") == f"<|im_start|>assistant\n{answers[-1]}\n"


def test_a_whole_turn_needs_no_generation_prompt(words: Any) -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    with pytest.raises(RecordError, match="a chat template with a generation prompt"):
        PromptEngine(words, chat_template=source, turn="tail")(chat)
    ids, learnt = marked(PromptEngine(words, chat_template=source, turn="whole")(chat))
    assert words.decode([i for i, on in zip(ids, learnt, strict=True) if on]) == "<|im_start|>assistant\nb<|im_end|>\n"


def test_nonsense_turns_are_refused(words: Any) -> None:
    with pytest.raises(UsageError, match="`turn` to be one of answer, tail, whole"):
        PromptEngine(words, chat_template=CHATML, turn="header")  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        PromptEngine(words, "alpaca", turn="tail")
    assert "`turn` with a chat template" in str(caught.value)
    assert "turn='tail' with a text template, which has no headers" in str(caught.value)
    assert "template's response" in str(caught.value)
