"""Exports as inputs of assets of one's own."""

import re
from typing import Any
from urllib.parse import unquote, urlsplit

import dagster as dg

from tokflow.errors import MissingOutputError
from tokflow.exports.reading import open_export


class ExportIOManager(dg.ConfigurableIOManager):
    """Opens the export that an input names, as it was last built.

    `dg.AssetIn(["corpus", "exports", "parquet"], input_manager_key="exports")` gives an asset what
    `tokflow.open_export` returns, or a `pandas.DataFrame` of a part where the input is annotated
    so; `metadata={"part": "validation", "columns": [...], "limit": 1_000}` of the AssetIn are the
    arguments of `Export.to_pandas`.
    """

    part: str = "train"
    """The part that DataFrames are of, where the metadata of an input name none."""

    def load_input(self, context: dg.InputContext) -> Any:
        """Return the export, or a part of it as a DataFrame.

        Raises: MissingOutputError where Dagster knows of no such export.
        """
        event = context.instance.get_latest_materialization_event(context.asset_key)
        made = event.asset_materialization if event else None
        uri = made.metadata.get("dagster/uri") if made else None
        if uri is None:
            raise MissingOutputError(
                where=context.asset_key.to_user_string(),
                expected="an export that was built and recorded in Dagster",
                found="none",
                remedy="materialize it first, or run `tokflow run`",
            )
        url = urlsplit(str(uri.value))
        export = open_export(unquote(url.path) if url.scheme == "file" else str(uri.value))
        annotated = context.dagster_type.typing_type
        names = (getattr(annotated, of, "") for of in ("__module__", "__name__"))
        if re.fullmatch(r"pandas\b.* DataFrame", " ".join(names)):  # which imports no pandas
            options = {**(context.definition_metadata or {})}
            return export.to_pandas(
                str(options.get("part", self.part)), options.get("columns"), options.get("limit")
            )
        return export

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Raise DagsterInvariantViolationError: exports are written by their datasets alone."""
        raise dg.DagsterInvariantViolationError(
            f"{context.asset_key.to_user_string()}: ExportIOManager writes nothing; name it as the "
            "`input_manager_key` of an AssetIn, and another IO manager for what the asset returns"
        )
