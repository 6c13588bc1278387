"""Chat templates that try to get out, to run for ever, or to eat memory. None may succeed, and each must say why."""

from __future__ import annotations

import datetime
import resource
from typing import Any

import pytest

from penstock import LimitError, PenstockError, RecordError, UsageError
from penstock.text.prompts import ChatTemplate
from penstock.text.prompts.sandbox import render

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

BOMBS = [
    "{{ 'a' * 10 ** 9 }}",
    "{{ 10 ** 9 * 'a' }}",
    "{{ [1] * 10 ** 9 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ range(10 ** 12) | list }}",
    "{{ range(0, -(10 ** 18), -1) | length }}",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in range(9999) %}{% for b in range(9999) if 0 %}{% endfor %}{% endfor %}{% for a in range(9999) %}"
    "{% for b in range(9999) if 0 %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x | length }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
    "{% set n = namespace(x={}) %}{% for i in range(99) %}{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x | replace('a', 'aaa') %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = [n.x, n.x] | join %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = ''.join([n.x, n.x]) %}{% endfor %}",
    "{% set x %}{% for i in range(9999) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}{{ x | length }}",
    "{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ 'a'.ljust(10 ** 9) }}",
    "{{ 'a'.center(10 ** 9) }}",
    "{{ 'a' | center(10 ** 9) }}",
    "{{ 'a\\nb' | indent(10 ** 9) }}",
    "{{ messages | tojson(indent=10 ** 9) }}",
    "{{ 5 | round(-(10 ** 9)) }}",
    "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ 'a\\tb'.expandtabs(10 ** 9) }}",
    "{% set s = 'a b ' * 1000000 %}{{ s.split() | length }}",
    "{% set s = 'a' * 4000000 %}{{ s | list | length }}",
    "".join(f"{{% set a{i} = 'a' * 4000000 %}}" for i in range(2000)),
    "{% set s = 'a' * 4000000 %}" + "".join(f"{{% set a{i} = s[1:] %}}" for i in range(2000)),
    "{% set s = 'a' * 4000000 %}" + "".join(f"{{% set a{i} = s | upper %}}" for i in range(2000)),
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "-" * 60000 + "1 }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
]


@pytest.mark.parametrize("source", ESCAPES)
def test_escapes_are_refused(source: str) -> None:
    with pytest.raises((RecordError, UsageError, LimitError)) as caught:
        render(source, VALUES, DATE)
    assert caught.value.fix
    assert "root:" not in str(caught.value)
    assert VALUES == {"messages": [{"role": "user", "content": "hi"}], "bos_token": "<s>"}


@pytest.mark.parametrize("source", BOMBS, ids=lambda source: source[:50])
def test_bombs_end_soon_and_small(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PenstockError) as caught:
        render(source, VALUES, DATE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
    assert caught.value.fix


def test_the_guard_is_what_stops_an_endless_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loop, small enough to end, is let through: it is time that is refused, not loops."""
    loop = "{% for a in range(30) %}{% for b in range(30) %}{{ b }}{% endfor %}{% endfor %}"
    assert len(render(loop, VALUES, DATE)) == 30 * 50
    monkeypatch.setattr("penstock.text.prompts.bounds.RENDER_SECONDS", -1.0)
    with pytest.raises(LimitError, match="a template that renders within -1 s"):
        render(loop, VALUES, DATE)


def test_a_large_template_is_refused_before_it_is_parsed() -> None:
    assert ChatTemplate("x" * 65536).render([]) == "x" * 65536
    with pytest.raises(LimitError, match="a template of at most 65536 bytes\n  got:   65537 bytes"):
        ChatTemplate("x" * 65537)


def test_a_date_does_not_depend_on_the_day() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}", {}, DATE) == "26 Jul 2024"
    assert render("{{ strftime_now('%-m/%-d') }}", {}, DATE) == "7/26"


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


def test_generation_tags_are_tolerated() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}!{% endgeneration %}{% endfor %}"
    assert render(source, VALUES, DATE) == "hi!"
