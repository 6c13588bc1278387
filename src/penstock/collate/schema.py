"""`OutputSchema`: which fields a prepared row or batch has, and of which dtype.

Costs nothing where the dtypes already agree; a narrowing cast reads the array once more, to refuse values that would
wrap around or become infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.collate.pad import as_row
from penstock.core.arguments import explained_class
from penstock.core.errors import RecordError, UsageError

DEFAULT_FIELDS: Mapping[str, str] = {"input_ids": "int64", "attention_mask": "int64", "labels": "int64"}


@explained_class
@dataclass(frozen=True)
class OutputSchema:
    """Names and dtypes of the output fields; `input_ids`, `attention_mask` and `labels` as int64 by default.

    A dtype is one of NumPy, its name, or one of torch (`torch.int32`).

    Fields the schema does not name are kept as they are (`extra="keep"`), left out (`"drop"`) or refused (`"error"`).
    Fields in `optional` may be absent; all others must be there. Integers are exact or refused. Floats are rounded to
    what their dtype has, as floats are (2**24 + 1 is 2**24 in float32), and refused where that would be infinite.

    >>> schema = OutputSchema({"input_ids": "int32", "labels": "int64"}, extra="drop")
    >>> row = schema.check_row({"input_ids": [1, 2], "labels": [-100, 2], "note": "x"})
    >>> {name: str(value.dtype) for name, value in row.items()}
    {'input_ids': 'int32', 'labels': 'int64'}
    """

    fields: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULT_FIELDS))
    extra: Literal["keep", "drop", "error"] = "keep"
    optional: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.extra not in ("keep", "drop", "error"):
            raise UsageError(
                "`extra` to be 'keep', 'drop' or 'error'", got=repr(self.extra), fix="use one of the three"
            )
        dtypes: dict[str, np.dtype[Any]] = {}
        for name, dtype in self.fields.items():
            try:
                dtypes[name] = np.dtype(str(dtype).removeprefix("torch.") if "torch." in str(dtype) else dtype)
            except TypeError as error:
                raise UsageError(f"a NumPy dtype for field {name!r}", got=repr(dtype), fix=_instead(dtype)) from error
            if dtypes[name].kind not in "biuf":
                raise UsageError(
                    f"a numeric dtype for field {name!r}", got=str(dtypes[name]), fix=_instead(dtypes[name])
                )
        if not dtypes:
            raise UsageError("at least one field", got="none", fix="name the fields, or pass no schema")
        unknown = sorted(frozenset(self.optional) - dtypes.keys())
        if unknown:
            raise UsageError(
                f"`optional` to name fields of the schema: {', '.join(dtypes)}",
                got=", ".join(unknown),
                fix="add them to `fields` with a dtype",
            )
        object.__setattr__(self, "fields", dtypes)
        object.__setattr__(self, "optional", frozenset(self.optional))

    def __hash__(self) -> int:
        return hash((tuple(self.fields.items()), self.extra, self.optional))

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The dtype of a field, or None for one the schema does not name."""
        return self.fields.get(name)

    def cast(self, name: str, array: NDArray[Any], where: str = "") -> NDArray[Any]:
        """`array` in the dtype of field `name`, refusing values that dtype cannot hold.

        >>> OutputSchema({"input_ids": "uint16"}).cast("input_ids", np.array([1, 70000]))
        Traceback (most recent call last):
        ...
        penstock.core.errors.RecordError: expected values of 'input_ids' that fit uint16
          got:   values from 1 to 70000
          fix:   choose a wider dtype in the OutputSchema
        """
        want = self.fields.get(name)
        if want is None or array.dtype == want:
            return array
        if array.dtype.kind not in "biuf" and array.size:
            raise RecordError(
                f"numbers in field {name!r}",
                got=f"{array.dtype} of shape {array.shape}",
                where=where,
                fix="pass integers or floats, or remove the field from the OutputSchema",
            )
        with np.errstate(all="ignore"):  # the checks report it, with the field's name
            cast = array.astype(want)
        if not np.can_cast(array.dtype, want, "safe") and array.size and not _fits(array, cast):
            raise RecordError(
                f"values of {name!r} that fit {want}",
                got=f"values from {array.min()} to {array.max()}",
                where=where,
                fix="choose a wider dtype in the OutputSchema",
            )
        return cast

    def check_names(self, names: Mapping[str, Any], where: str = "") -> None:
        """Raises when a required field is missing, or one is there that `extra="error"` refuses."""
        missing = [name for name in self.fields if name not in names and name not in self.optional]
        if missing:
            raise RecordError(
                f"the fields {', '.join(self.fields)}",
                got=f"no {', '.join(missing)}; there are {', '.join(map(str, names)) or 'no fields'}",
                where=where,
                fix="add the missing fields to the record, or take them out of the OutputSchema",
            )
        if self.extra == "error":
            more = [str(name) for name in names if name not in self.fields]
            if more:
                raise RecordError(
                    f"only the fields {', '.join(self.fields)}",
                    got=f"also {', '.join(more)}",
                    where=where,
                    fix="name them in the OutputSchema, or use extra='keep' or extra='drop'",
                )

    def check_row(self, row: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """One row with every named field as an array of its dtype; others kept, dropped or refused."""
        self.check_names(row, where)
        out: dict[str, Any] = {}
        for name, value in row.items():
            if name in self.fields:
                out[name] = self.cast(name, as_row(value), where)
            elif self.extra == "keep":
                out[name] = value
        return out

    def check_batch(self, batch: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """A collated batch in the schema's dtypes."""
        self.check_names(batch, where)
        out: dict[str, Any] = {}
        for name, value in batch.items():
            if name in self.fields:
                if not isinstance(value, np.ndarray):
                    raise RecordError(
                        f"field {name!r} to be numbers of one shape in every row",
                        got=f"a {type(value).__name__}",
                        where=where,
                        fix="pass rows of equal length, or remove the field from the OutputSchema",
                    )
                out[name] = self.cast(name, value, where)
            elif self.extra == "keep":
                out[name] = value
        return out


def _fits(array: NDArray[Any], cast: NDArray[Any]) -> bool:
    """Whether a cast kept the values: integers all of them, floats but for rounding."""
    if cast.dtype.kind == "f":
        return bool(np.isfinite(cast[np.isfinite(array)]).all())
    if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array == np.floor(array)).all()):
        return False
    low, high = (0, 1) if cast.dtype.kind == "b" else (np.iinfo(cast.dtype).min, np.iinfo(cast.dtype).max)
    return low <= int(array.min()) and int(array.max()) <= high


def _instead(dtype: Any) -> str:
    """What to use for a dtype that cannot be used."""
    if "bfloat16" in str(dtype) or "float8" in str(dtype):
        return "use 'float32' or 'float16', and cast on the device: NumPy has no such type of its own"
    if getattr(dtype, "kind", "") in ("U", "S", "O"):
        return "leave text fields out of the schema: they pass through as they are"
    return "use a name such as 'int64' or 'float32'"
