"""Chat templates that try to get out, to run for ever, or to eat memory. None may succeed, and each must say why."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import LimitError, RecordError, UsageError
from penstock.chat import ChatTemplate
from penstock.chat.jinja.meter import clock
from penstock.chat.jinja.sandbox import render, render_marked
from penstock.core.limits import LIMITS

from .template_bombs import BOMBS

DATE = datetime.date(2024, 7, 26)
VALUES: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "bos_token": "<s>"}

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ messages[0]['__class__'] }}{{ messages[0].__init__.__globals__ }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('/etc/passwd').read() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ range.__call__.__self__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'].system('id') }}",
    "{{ self.__init__.__globals__ }}",
    "{{ 'x' | attr('__class__') }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ ['__class__'] | map('attr', 'x') | list }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ '{x.__class__}'.format_map({'x': messages}) }}",
    "{{ ''.join.__self__.__class__ }}",
    "{{ messages.append({'role': 'user'}) }}",
    "{{ messages[0].update({'role': 'x'}) }}{{ messages[0].pop('role') }}",
    "{% set messages[0].role = 'x' %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends 'x' %}",
    "{% for m in messages %}{{ loop._iterator.gi_frame }}{% endfor %}",
    "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "{% macro f() %}{{ caller._func }}{% endmacro %}{% call f() %}{% endcall %}",
    "{{ dict.__subclasses__() }}",
    "{{ dict.fromkeys(range(9)) }}",
    "{{ 'x'.encode().__class__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ (messages | map('upper')).gi_frame }}",
    "{{ messages | map('upper') }}",
    "{{ ('%s' % messages).__class__ }}",
    "{{ messages | guard weigh }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_escapes_are_refused(source: str) -> None:
    with pytest.raises((RecordError, UsageError, LimitError)) as caught:
        render(source, VALUES, DATE)
    assert caught.value.fix
    assert "root:" not in str(caught.value)
    assert VALUES == {"messages": [{"role": "user", "content": "hi"}], "bos_token": "<s>"}


def test_bombs_end_soon_and_small() -> None:
    """Each in a process of its own, since a process never forgets the peak of its memory."""
    script = Path(__file__).with_name("template_bombs.py")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=400, check=True)
    outcomes = [json.loads(line) for line in ran.stdout.splitlines()]
    for source, outcome in zip(BOMBS, outcomes, strict=True):
        assert outcome["error"] in ("LimitError", "RecordError", "UsageError"), (source[:50], outcome)
        assert outcome["fix"], source[:50]
        assert outcome["megabytes"] < 250, (source[:50], outcome)
        assert outcome["seconds"] < 8, source[:50]  # with room for a busy machine: they end by count, not by the clock


def test_a_busy_machine_drops_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread holds the interpreter for longer than the limit: only the template's own work counts."""
    monkeypatch.setattr("penstock.chat.jinja.meter.RENDER_SECONDS", 0.2)
    source = "{% for a in range(100) %}{% for b in range(100) %}{{ b }}{% endfor %}{% endfor %}"
    expected, seconds = render(source, VALUES, DATE), 0.0
    stop = threading.Event()

    def hog() -> None:
        while not stop.is_set():
            _ = 3**1_500_000  # one operation, which nothing interrupts

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        while seconds < 0.4:  # until a rendering really was held up
            began = time.monotonic()
            assert render(source, VALUES, DATE) == expected
            seconds = max(seconds, time.monotonic() - began)
    finally:
        stop.set()
        thread.join()


def test_the_same_template_takes_the_same_steps() -> None:
    source = "{% for m in messages %}{{ m.role ~ m.content | trim }}{% endfor %}"
    counts = set()
    for _ in range(3):
        render(source, VALUES, DATE)
        counts.add(clock.steps)
    assert len(counts) == 1
    loop = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    with pytest.raises(LimitError, match=f"in at most {LIMITS.template_steps} steps"):
        render(loop, VALUES, DATE)


def test_a_record_is_measured_before_the_template_sees_it() -> None:
    large = {"messages": [{"role": "user", "content": "a" * 5_000_000}]}
    with pytest.raises(LimitError, match="a record of at most 4194304 characters") as caught:
        render("x", large, DATE)
    assert "drop it" in caught.value.fix
    assert render("{{ messages[0].content | length }}", {"messages": [{"content": "a" * 4_000_000}]}, DATE) == "4000000"


def test_the_guard_is_what_stops_an_endless_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loop, small enough to end, is let through: it is time that is refused, not loops."""
    loop = "{% for a in range(30) %}{% for b in range(30) %}{{ b }}{% endfor %}{% endfor %}"
    assert len(render(loop, VALUES, DATE)) == 30 * 50
    monkeypatch.setattr("penstock.chat.jinja.meter.RENDER_SECONDS", -1.0)
    with pytest.raises(LimitError, match="a template that renders within -1 s"):
        render(loop, VALUES, DATE)


def test_a_large_template_is_refused_before_it_is_parsed() -> None:
    assert ChatTemplate("x" * 65536).render([]) == "x" * 65536
    with pytest.raises(LimitError, match="a template of at most 65536 bytes\n  got:   65537 bytes"):
        ChatTemplate("x" * 65537)


def test_a_date_does_not_depend_on_the_day() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}", {}, DATE) == "26 Jul 2024"
    assert render("{{ strftime_now('%-m/%-d') }}", {}, DATE) == "7/26"


def test_formats_work_as_in_jinja_and_stay_small() -> None:
    sources = [
        "{{ '{} and {b:>5}'.format(1, b='x') }}", "{{ '%s is %.2f' | format('pi', 3.14159) }}", "{{ '%05d' % 7 }}",
        "{{ '%s %s' % ('a', 'b') }}", "{{ '{0[0][role]}'.format(messages) }}", "{{ '%(a)s' % {'a': 1} }}",
        "{{ '{x}'.format_map({'x': 2}) }}",
    ]  # fmt: skip
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    for source in sources:
        assert render(source, VALUES, DATE) == ImmutableSandboxedEnvironment().from_string(source).render(VALUES)
    for source in (
        "{{ '{:>99999999}'.format(1) }}", "{{ '%99999999d' % 1 }}", "{{ '%*d' % (99999999, 1) }}",
        "{{ '{:{}}'.format(1, 99999999) }}", "{{ '%99999999d' | format(1) }}", "{{ '{0.__class__}'.format(1) }}",
        "{{ '{0.append}'.format(messages) }}", "{{ '{}'.format(range) }}", "{{ '%s' % range }}",
        "{{ '{:.9999999f}'.format(1.5) }}", "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    ):  # fmt: skip
        with pytest.raises((RecordError, LimitError)):
            render(source, VALUES, DATE)


def test_a_template_may_refuse_a_record() -> None:
    with pytest.raises(RecordError, match="got:   roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", VALUES, DATE)


def test_what_chat_templates_use_works_as_in_plain_jinja() -> None:
    """The same text as an unguarded sandbox gives, for the features templates of real models use."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = """
    {%- set ns = namespace(found=false, text='') %}
    {%- macro show(m, pre='[') %}{{ pre }}{{ m.role | upper }}:{{ m['content'] | trim }}]{% endmacro %}
    {%- for m in messages if m.role != 'tool' %}
        {%- if loop.first and m.role == 'system' %}{% set ns.found = true %}{% continue %}{% endif %}
        {%- if m.content is string and not m.missing is defined %}{{ show(m) }}
        {%- else %}{{ m.content | map(attribute='text') | select('string') | join(', ') }}{% endif %}
        {%- set ns.text = ns.text ~ loop.index0 ~ '/' ~ loop.length ~ (';' if not loop.last else '.') %}
        {%- if m.calls %}{% for c in m.calls %}{{ c | items | list | length }}{{ c.name }}
        {{- c.args | default({}, true) }}{% endfor %}{% endif %}
    {%- endfor %}
    {{- ns.text }}{{ ns.found }}{{ messages[::-1][0].role }}{{ messages[1:] | length }}{{ 'a,b'.split(',')[-1] }}
    {{- messages[0].content.startswith('b') }}{{ (3 + 4 * 2) // 2 % 4 }}{{ 'x' in 'xyz' }}{{ range(3) | list }}
    {{- [1, 2] + [3] }}{{ {'k': none, 'v': [1.5, true]} }}{{ nothing }}{{ 'b\nc' | indent(2) }}{{ dict(a=1).a }}
    {{- messages | selectattr('role', 'equalto', 'user') | list | length }}{{ 'aXbX'.replace('X', '-') }}
    {%- for m in messages %}{% set c = m.content if m.content is string else '' %}
        {{- c.replace('i', 'o', 1) }}{{ c.split('h')[-1].rstrip('\\n') }}{{ c.splitlines() | length }}
        {{- '-'.join(['p', c.strip()]) }}{{ c.rsplit(maxsplit=1) | length }}{{ c.partition('e')[0] }}
    {%- endfor %}
    {%- filter upper %}shout{% endfilter %}{% set block %}in {{ 'side' }}{% endset %}{{ block }}
    """
    messages = [
        {"role": "system", "content": "be  "},
        {"role": "user", "content": " hi "},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "yo", "calls": [{"name": "f", "args": {"x": 1}}, {"name": "g", "args": None}]},
        {"role": "user", "content": [{"text": "a"}, {"text": "b"}]},
    ]
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    expected = plain.from_string(source).render(messages=messages)
    assert "USER:hi" in expected
    assert render(source, {"messages": messages}, DATE) == expected


def test_what_is_marked_safe_escapes_what_is_added_to_it_as_in_jinja() -> None:
    """Templates of real models do so by mistake, and a model was trained on what that wrote."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    values = {"tool": {"name": "f", "about": 'a <b> & "c"'}, "messages": [{"content": "<hi>"}]}
    for source in (
        "{{ 'use '|safe + tool.about + '.\n' }}", "{{ '<b>' + 'a<'|safe }}", "{{ 'a<'|safe ~ '<b>' }}{{ 'a<'|safe }}",
        "{{ ('a<'|safe).strip() + '<' }}{{ 'a'|safe|trim|upper|string + '<' }}", "{{ '%s<'|safe % '<' }}",
        "{{ '%s<'|safe|format('<') }}{{ ('a{}'|safe).format('<') }}", "{{ ('a<'|safe) * 2 + '<' }}",
        "{{ 'a'|safe|replace('a', '<') + '<' }}{{ ['<', 'a'|safe]|join + '<' }}", "{{ ('ab'|safe)[:1] + '<' }}",
        "{{ 'a\nb'|safe|indent(2) + '<' }}{{ 'a<'|safe|length }}{{ 'a'|safe == 'a' }}",
        "{% macro m() %}<{% endmacro %}{{ 'a'|safe + m() + messages[0].content }}",
    ):  # fmt: skip
        assert render(source, values, DATE) == ImmutableSandboxedEnvironment().from_string(source).render(values), (
            source
        )
    for source in ("{{ ('a b'|safe).split() }}", "{{ ('a'|safe).__html__() }}", "{{ ('a'|safe).unescape() }}"):
        with pytest.raises(RecordError):
            render(source, values, DATE)
    bomb = "{% set ns = namespace(t='&'|safe) %}{% for i in range(60) %}"
    bomb += "{% set ns.t = ns.t + ns.t|string|list|join %}{% endfor %}"
    with pytest.raises((RecordError, LimitError)):
        render(bomb + "{{ ns.t }}", values, DATE)


def test_generation_tags_are_noted() -> None:
    source = "{% for m in messages %}[{% generation %}{{ m.content }}!{% endgeneration %}]{% endfor %}"
    assert render_marked(source, VALUES, DATE) == ("[hi!]", [(1, 4)])


def test_a_date_that_nobody_named_is_refused() -> None:
    with pytest.raises(UsageError, match="a date for the chat template"):
        render("{{ strftime_now('%d %b %Y') }}", {})
