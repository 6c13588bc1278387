"""Templates that eat time or memory. Run as a script, each is rendered and measured in a process of its own."""

from __future__ import annotations

import datetime
import json
import os
import resource
import sys
import time
from typing import Any

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
    r"{% set s = 'ab\x0b' * 1390000 %}" + "".join(f"{{% set a{i} = s.split() %}}" for i in range(11)),
    r"{% set s = 'ab\x0b' * 1390000 %}" + "".join(f"{{% set a{i} = s.splitlines() %}}" for i in range(11)),
    r"{% set s = 'ab\x0b' * 199000 %}" + "".join(f"{{% set a{i} = s.split() %}}" for i in range(99)),
    r"{% set s = 'ab\x0b' * 199000 %}" + "".join(f"{{% set a{i} = s.splitlines() %}}" for i in range(99)),
    "{% set s = 'ab,' * 199000 %}" + "".join(f"{{% set a{i} = s.rsplit(',', 10 ** 6) %}}" for i in range(99)),
    "".join(f"{{% set a{i} = '🙂' * 4000000 %}}" for i in range(99)),
    "{% set s = '🙂' * 4000000 %}" + "".join(f"{{% set a{i} = s.partition('x') %}}" for i in range(99)),
    "{% set s = '🙂' * 2000000 %}" + "".join(f"{{% set a{i} = s ~ s %}}" for i in range(99)),
    "{% set s = ('ab ' * 190000).split() %}" + "".join(f"{{% set a{i} = s | sort %}}" for i in range(999)),
    "{% set d = messages[0].d %}" + "".join(f"{{% set a{i} = dict(d) %}}" for i in range(999)),
    "{% set d = messages[0].d %}" + "".join(f"{{% set a{i} = namespace(d) %}}" for i in range(999)),
    "{% set d = messages[0].d %}" + "".join(f"{{% set a{i} = d.items() | list %}}" for i in range(999)),
    "{% set d = messages[0].d %}" + "".join(f"{{% set a{i} = d | dictsort %}}" for i in range(999)),
    "{% set n = namespace(x=range(9999) | list) %}{% for i in range(200) %}{% set n.x = [n.x] %}{% endfor %}"
    "{{ n.x | tojson(indent=16) }}",
    "{% set s = 'a' * 4000000 %}{% for i in range(9999) %}{% for j in range(9999) %}{{ s.count('b') }}{% endfor %}"
    "{% endfor %}",
    "{% set s = 'a' * 4000000 %}{% set t = 'a' * 3999999 ~ 'b' %}{% for i in range(9999) %}{% for j in range(9999) %}"
    "{% if s == t %}x{% endif %}{% endfor %}{% endfor %}",
    "{% set s = ('ab ' * 99000).split() %}{% for i in range(9999) %}{{ (s | sort | unique | list)[0] }}{% endfor %}",
]


def measured(source: str) -> dict[str, Any]:
    """Renders in this process, which must be a fresh one: the peak of its memory is never forgotten."""
    from penstock.chat.jinja.sandbox import make_environment, render
    from penstock.core.errors import PenstockError

    make_environment(datetime.date(2024, 7, 26))

    values = {"messages": [{"role": "user", "content": "hi", "d": {f"k{i}": 1 for i in range(60_000)}}]}
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    out = {"error": "none", "fix": ""}
    try:
        render(source, values, datetime.date(2024, 7, 26))
    except PenstockError as error:
        out = {"error": type(error).__name__, "fix": error.fix, "text": error.expected}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return out | {"megabytes": grown >> 10, "seconds": time.process_time() - began}


if __name__ == "__main__":
    from penstock.chat.jinja import sandbox  # noqa: F401 - once, for all children

    for number in range(len(BOMBS)):
        if not (child := os.fork()):
            sys.stdout.write(json.dumps(measured(BOMBS[number])) + "\n")
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"bomb {number} ended its process")
