"""Runs a chat template that may be hostile: Jinja's immutable sandbox, with a bound on work and on every size.

Jinja's own sandbox keeps a template away from Python's insides; it does not stop `{% for %}` in `{% for %}`, or text
that doubles in a loop. Here a template may call only what is listed below, every value it can build is measured before
it is built, and each loop turn, call, filter, test, comparison and operator is counted. So each step is short and
their number is bounded. Nothing is traced and no thread is started: rendering costs about as much as plain Jinja, and
works in any thread.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any

from penstock.chat.jinja import bounds, meter
from penstock.core.errors import PenstockError, RecordError, UsageError
from penstock.core.limits import LIMITS
from penstock.core.optional import need

Blocks = list[tuple[int, int]] | None


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STR_METHODS = words(
    "capitalize count endswith find index isalnum isalpha isdecimal isdigit islower isnumeric isspace istitle "
    "isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip "
    "split splitlines startswith strip title upper"
)
SAFE_TEXT_METHODS = words("capitalize lower lstrip rstrip strip title upper")  # of what `safe` returns
DICT_METHODS = words("get items keys values")
LIST_METHODS = words("count index")
LOOP_NAMES = words("changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0")
FILTERS = words(
    "abs capitalize count d default dictsort first float int items last length lower map max min reject "
    "rejectattr reverse select selectattr sort title trim unique upper"
)


@functools.cache
def _environment_class() -> Any:
    """The environment, made on first use: Jinja is an optional package."""
    sandbox = need("jinja2.sandbox", extra="hf", purpose="for chat templates")
    runtime = need("jinja2.runtime", extra="hf")
    jinja2 = need("jinja2", extra="hf")

    class Environment(sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc, name-defined]
        intercepted_binops = frozenset(sandbox.SandboxedEnvironment.default_binop_table)

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if isinstance(obj, str):
                return attr in STR_METHODS
            if isinstance(obj, dict):
                return attr in DICT_METHODS
            if isinstance(obj, list | tuple):
                return attr in LIST_METHODS
            if isinstance(obj, runtime.LoopContext):
                return attr in LOOP_NAMES
            return isinstance(obj, jinja2.utils.Namespace) and not attr.startswith("_")

        def getattr(self, obj: Any, attribute: str) -> Any:
            meter.clock.tick()
            if isinstance(obj, dict) and attribute in obj and attribute not in DICT_METHODS:
                return obj[attribute]  # a key that is also the name of a method, such as `copy`
            return super().getattr(obj, attribute)

        def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
            # Jinja returns an undefined value, which prints as nothing; a template that tries this is refused instead.
            raise sandbox.SecurityError(f"attribute {attribute!r} of {type(obj).__name__!r} is not for templates")

        def wrap_str_format(self, value: Any) -> Any:
            """`str.format` as Jinja's sandbox runs it, attributes checked as in the template, its width bounded."""
            safe = super().wrap_str_format(value)
            return None if safe is None else bounds.Format(value.__self__, safe)

        def is_safe_callable(self, obj: Any) -> bool:
            if isinstance(obj, runtime.Macro | runtime.LoopContext | runtime.Undefined):
                return True
            if isinstance(obj, BuiltinMethodType):
                return self.is_safe_attribute(obj.__self__, obj.__name__, obj)
            if isinstance(obj, bounds.Format):
                return True
            if isinstance(obj, MethodType):
                return self._is_safe_method(obj.__self__, obj.__name__)
            return any(obj is allowed for allowed in self.globals.values())

        def _is_safe_method(self, owner: Any, name: str) -> bool:
            if bounds.is_safe(owner):
                return name in SAFE_TEXT_METHODS
            if isinstance(owner, runtime.LoopContext):
                return name in ("cycle", "changed")
            return any(owner is extension for extension in self.extensions.values())  # of the generation tag

        def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
            meter.worked_on(getattr(obj, "__self__", None))
            if isinstance(obj, runtime.Macro):
                meter.clock.tick(8)  # it costs that much more
            if isinstance(obj, BuiltinMethodType) and isinstance(obj.__self__, str):
                kwargs = {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
                if obj.__name__ == "replace":
                    return bounds.replace(obj.__self__, *args, **kwargs)
                if obj.__name__ == "join":
                    return bounds.join_strings(obj.__self__, args[0])
                if obj.__name__ in ("split", "rsplit"):
                    return meter.spent(bounds.split(obj, *args, **kwargs))
                if obj.__name__ == "splitlines":
                    return meter.spent(bounds.splitlines(obj.__self__, *args, **kwargs))
            return meter.spent(super().call(context, obj, *args, **kwargs))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            return bounds.binop(operator, left, right, self.binop_table[operator])

    return Environment


@functools.cache
def _undefined_class() -> Any:
    """The class of undefined values: they print as nothing, as in Jinja, but an undefined special token is an error."""
    runtime = need("jinja2.runtime", extra="hf")
    utils = need("jinja2.utils", extra="hf")

    class Missing(runtime.Undefined):  # type: ignore[misc, name-defined]
        __slots__ = ()

        def __str__(self) -> str:
            self._refuse()
            return ""

        def _fail_with_undefined_error(self, *args: Any, **kwargs: Any) -> Any:
            self._refuse()
            return super()._fail_with_undefined_error(*args, **kwargs)

        def _refuse(self) -> None:
            name = self._undefined_name
            if self._undefined_obj is utils.missing and isinstance(name, str) and name.endswith("_token"):
                raise UsageError(
                    f"a value for `{name}`, which the chat template writes",
                    got="a tokenizer that does not name one",
                    fix=f"pass variables={{'{name}': ...}} with its text ('' for none), or a tokenizer that has it",
                )

        __add__ = __radd__ = _fail_with_undefined_error

    return Missing


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            meter.worked_on(value)
        return meter.spent(function(*args, **kwargs))

    return run


def make_environment(date: datetime.date | None) -> Any:
    """An environment in which a template finds what chat templates use, and nothing else."""
    jinja2 = need("jinja2", extra="hf", purpose="for chat templates")
    syntax = need("penstock.chat.jinja.syntax", extra="hf")
    env = _environment_class()(
        trim_blocks=True, lstrip_blocks=True, optimized=False, undefined=_undefined_class(),
        extensions=["jinja2.ext.loopcontrols", syntax.Generation],
    )  # fmt: skip
    kept = {name: _guarded(function) for name, function in env.filters.items() if name in FILTERS}
    own: dict[str, Callable[..., Any]] = {
        "join": jinja2.pass_environment(bounds.join),
        "list": bounds.listed,
        "replace": bounds.replace,
        "indent": bounds.indent,
        "tojson": bounds.tojson,
        "string": bounds.soft_text,
        "safe": bounds.marked_safe,
        "format": bounds.percent,
    }
    env.filters = {**kept, **{name: _guarded(function) for name, function in own.items()}}
    env.filters[syntax.CONCAT] = bounds.join_text
    env.filters[syntax.WEIGH] = meter.spent_alone
    env.filters[syntax.WORK] = meter.worked_on
    env.tests = {name: _guarded(function) for name, function in env.tests.items()}
    env.tests[syntax.TICK] = jinja2.pass_context(lambda _context, _value: meter.clock.tick())
    env.concat = bounds.join_text
    # With the context as an argument nothing is folded, and so nothing is computed, while compiling.
    env.finalize = jinja2.pass_context(lambda _context, value: bounds.to_text(value))
    env.globals = {
        "range": bounds.short_range,
        "namespace": lambda *args, **kwargs: jinja2.utils.Namespace(meter.spent(dict(*args, **kwargs))),
        "dict": dict,
        "raise_exception": bounds.raise_exception,
        "strftime_now": lambda pattern: bounds.date_text(date, pattern),
    }
    return env


@functools.lru_cache(maxsize=64)
def compile_template(source: str, date: datetime.date | None) -> Any:
    """The template compiled, or `UsageError`; `LimitError` when it is larger than a template may be."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > LIMITS.template_bytes:
        raise meter.too_much(f"a template of at most {LIMITS.template_bytes} bytes", f"{size} bytes")
    env = make_environment(date)
    syntax = need("penstock.chat.jinja.syntax", extra="hf")
    meter.clock.start(10 * meter.RENDER_SECONDS)
    try:
        code = env.compile(syntax.guard(env.parse(source)), name="<chat template>")
        return env.template_class.from_code(env, code, dict(env.globals))
    except PenstockError:
        raise
    except (Exception, RecursionError) as error:
        raise UsageError(
            "a Jinja chat template that compiles",
            got=f"{type(error).__name__}: {str(error)[:300]}",
            fix="correct the template; include, import and extends are not there, nor are filters beyond the usual",
        ) from error


def render(source: str, values: Mapping[str, Any], date: datetime.date | None = None) -> str:
    """The template's text for these values, which must be plain JSON data.

    >>> render("{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }};{% endfor %}",
    ...        {"messages": [{"role": "user", "content": " hi "}]})
    'user: hi;'
    """
    return render_marked(source, values, date)[0]


def render_marked(source: str, values: Mapping[str, Any], date: datetime.date | None = None) -> tuple[str, Blocks]:
    """The template's text, and where its `{% generation %}` blocks are; None if a macro or set block holds one, since
    then its place is not known.

    >>> render_marked("a{% generation %}bc{% endgeneration %}", {})
    ('abc', [(1, 3)])
    """
    template = compile_template(source, date)
    written = need("penstock.chat.jinja.syntax", extra="hf").written
    meter.clock.start(meter.RENDER_SECONDS)
    meter.check_record(values)
    written.begin()
    try:
        text = bounds.join_text(written.counted(template.root_render_func(template.new_context(dict(values)))))
    except PenstockError:
        raise
    except (RecursionError, MemoryError) as error:
        raise meter.too_much("a template without endless recursion", type(error).__name__) from error
    except Exception as error:
        raise RecordError(
            "a record the chat template can render",
            got=f"{type(error).__name__}: {str(error)[:300]}",
            fix="check the record's messages against what the template reads",
        ) from error
    return text, None if written.misplaced is not None else written.marked
