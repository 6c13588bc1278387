"""What every verb is built on: a pipeline's definition, and a new pipeline with one step more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.arguments import Call, NeedsOutput, Recorded, explained_methods
from penstock.plan.inspection import Inspection

if TYPE_CHECKING:
    from typing import Self

    from penstock.plan.definition import Definition
    from penstock.sources.base import Source
    from penstock.steps.base import Step


@explained_methods
class Verbs(Inspection, NeedsOutput, Recorded):
    """An immutable definition; each verb returns a new pipeline."""

    __slots__ = ("_made_by", "definition")
    definition: Definition
    _made_by: Call | None

    def __init__(self, origin: Source | Definition) -> None:
        from penstock.plan.definition import Definition

        if not isinstance(origin, Definition) and not hasattr(origin, "read"):
            from penstock.sources.record_source import adapted

            origin = adapted(origin)
        definition = origin if isinstance(origin, Definition) else Definition(origin)
        object.__setattr__(self, "definition", definition)
        object.__setattr__(self, "_made_by", None)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a pipeline is immutable: each verb returns a new one")

    def __reduce__(self) -> tuple[type[Self], tuple[Definition]]:
        return type(self), (self.definition,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Verbs) and self.definition.parts() == other.definition.parts()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """The names of classes, by the column that holds their numbers: of image folders and labels of datasets.

        >>> ps.from_arrays({"label": [0, 1]}).class_names
        {}
        """
        from penstock.plan.definition import class_names

        return class_names(self.definition)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers; empty if the data has none.

        >>> import tempfile, pathlib
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"): _ = (root / name).mkdir(), (root / name / "1.png").write_bytes(b"...")
        >>> ps.read_images(root).shuffle(seed=7).classes
        ('cat', 'dog')
        """
        from penstock.core.errors import UsageError

        found = self.class_names
        if len(found) > 1:
            raise UsageError(
                "one column of classes", got=", ".join(found), fix=f"pipeline.class_names[{next(iter(found))!r}]"
            )
        return next(iter(found.values()), ())

    def _new(self, definition: Definition) -> Self:
        return type(self)(definition)

    def then(self, step: Step) -> Self:
        """Adds a step of your own; see docs/how-to/write-a-step.md.

        >>> from penstock.steps.limit import Take
        >>> ps.from_texts(["a", "b"]).then(Take(1)).peek()
        [{'text': 'a'}]
        """
        return self._new(self.definition.then(step))
