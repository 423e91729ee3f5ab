"""The schema of a dataset's YAML, made from the config dataclasses and their docstrings.

`tokflow.build.dataset` alone decides what is allowed, and names the nearest key; the
schema tells people and editors.
"""

import dataclasses
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pydantic

from tokflow.build.dataset import Dataset, make_dataset
from tokflow.build.field_docs import field_docs
from tokflow.exports import FORMATS, ExportConfig
from tokflow.raw import RawConfig

_FROM_DOCSTRINGS = pydantic.ConfigDict(use_attribute_docstrings=True, extra="forbid")


class Attributes(pydantic.BaseModel):
    """The attributes of a TextDataset, as they stand in its YAML."""

    model_config = _FROM_DOCSTRINGS

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _check(cls, values: object, handler: object) -> "Attributes":
        """Let `tokflow.build.dataset` check the values, which stay as they are."""
        if isinstance(values, cls):
            return values
        fields = typing.cast(dict[str, Any], values)
        make_dataset(fields, base=Path(), where="attributes", reads_files=False)
        return cls.model_construct(**fields)


@cache
def attributes_model() -> type[Attributes]:
    """Return the model whose JSON schema describes every field of a dataset, nested ones too."""
    known = [field.name for field in dataclasses.fields(Dataset) if field.name != "base"]
    formats: Any = typing.Union[(Literal[tuple(FORMATS)], *map(_export_model, FORMATS))]
    model: type[Attributes] = _model_of(
        Dataset,
        known,
        base=Attributes,
        types={
            "raw": _model_of(RawConfig, ["files"], types={"files": str | list[str]}),
            "exports": list[formats],
        },
    )
    return model


def _model_of(
    config: type,
    known: list[str],
    *,
    types: Mapping[str, Any],
    name: str | None = None,
    more: Mapping[str, Any] | None = None,
    base: type[pydantic.BaseModel] | None = None,
) -> Any:
    """Return a model with the fields of a config dataclass, some of them with other types."""
    hints = typing.get_type_hints(config) | dict(types)
    descriptions = field_docs(config)
    fields = {
        field.name: (
            hints[field.name],
            pydantic.Field(default=_default(field), description=descriptions.get(field.name)),
        )
        for field in dataclasses.fields(config)
        if field.name in known
    }
    create: Any = pydantic.create_model  # its overloads want the fields one by one
    return create(
        name or config.__name__,
        __base__=base,
        __config__=None if base else _FROM_DOCSTRINGS,
        __doc__=config.__doc__,
        **(more or {}),
        **fields,
    )


def _export_model(name: str) -> Any:
    """Return the model of one format: its options beside `format` and `name`."""
    format_ = FORMATS[name]
    return _model_of(
        format_.options,
        [field.name for field in dataclasses.fields(format_.options)],
        types={},
        name=f"{name.capitalize()}Export",
        more={
            "format": (Literal[name], pydantic.Field(description=format_.description)),
            "name": (
                str,
                pydantic.Field(default=name, description=field_docs(ExportConfig)["name"]),
            ),
        },
    )


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return ... if field.default is dataclasses.MISSING else field.default
