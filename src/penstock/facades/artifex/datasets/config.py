"""The base class of configurations, and the free-form one of text datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from penstock.core.arguments import explained_class


@explained_class
@dataclass(frozen=True)
class BaseModalityConfig:
    """The frozen configuration of a dataset."""

    def plain(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values, for fingerprints."""
        return {name: value.value if isinstance(value, Enum) else value for name, value in asdict(self).items()}


@explained_class
@dataclass(frozen=True)
class ModalityConfiguration(BaseModalityConfig):
    """A named modality whose parameters are in `metadata`; text datasets read `metadata["text_params"]`.

    >>> config = ModalityConfiguration("text", "text", metadata={"text_params": {"max_length": 8}})
    >>> config.metadata["text_params"]["max_length"]
    8
    """

    name: str = "text"
    modality_type: str = "text"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "modality_type": self.modality_type, "metadata": _plain(self.metadata)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def plain_config(config: Any) -> Any:
    """Converts any configuration to plain JSON values."""
    return config.plain() if isinstance(config, BaseModalityConfig) else _plain(config)
