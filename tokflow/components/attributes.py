"""Attributes of the component as they stand in a YAML, with templates."""

from typing import Any

import pydantic

from tokflow.pipeline.declarations.schema import attributes_schema


class Attributes(pydantic.RootModel[dict[str, Any]]):
    """The attributes as they stand in the YAML, with templates; the schema is that of a dataset, or
    of several with their defaults."""

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the schema of one dataset or several, in the form that Dagster asks for."""
        return attributes_schema()
