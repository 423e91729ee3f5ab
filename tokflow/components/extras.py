"""Additions to the definitions of a project: messages about runs that fail, to a webhook and by
mail, and exports as inputs of assets of one's own."""

import html
import json
import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import dagster as dg

from tokflow.errors import ConfigError, MissingOutputError
from tokflow.exports.reading import open_export

WEBHOOK = "TOKFLOW_ALERT_WEBHOOK"
"""Variable with the URL that gets `{"text": ...}`: an incoming webhook of Slack, Mattermost or
Rocket.Chat, or a service of one's own."""

MAIL_TO = "TOKFLOW_ALERT_MAIL_TO"
"""Variable with the addresses that get a mail, with commas between them."""

SMTP = "TOKFLOW_ALERT_SMTP"
"""Variable with the server and the account that send it, `smtps://user:password@host:465` or, with
STARTTLS, `smtp://user:password@host:587`; what a URL reserves stands in it as %40 and so on."""

WEBHOOK_SECONDS = 30.0

JSON = {"Content-Type": "application/json"}

RUNNING = dg.DefaultSensorStatus.RUNNING


def failure_alerts() -> list[dg.SensorDefinition]:
    """Return sensors that tell of every run that fails, in all code locations of the instance.

    One for each of `TOKFLOW_ALERT_WEBHOOK` and `TOKFLOW_ALERT_MAIL_TO` (with `TOKFLOW_ALERT_SMTP`)
    that is set in the environment where definitions are loaded, which holds the secrets: none
    stands in a file or in Dagster's history.

    Raises: ConfigError for addresses without a server that is a URL.
    """
    sensors = []
    of_all: dict[str, Any] = {"monitor_all_code_locations": True, "default_status": RUNNING}
    if url := os.environ.get(WEBHOOK):

        @dg.run_failure_sensor(
            name="tokflow_alert_webhook",
            description="Sends a message about each run that fails to a webhook.",
            **of_all,
        )
        def alert(context: dg.RunFailureSensorContext) -> None:
            body = json.dumps({"text": alert_text(context)}).encode()
            with urlopen(Request(url, body, JSON), timeout=WEBHOOK_SECONDS):
                pass

        sensors.append(alert)
    if addresses := os.environ.get(MAIL_TO):
        server = urlsplit(os.environ.get(SMTP, ""))
        if server.scheme not in ("smtp", "smtps") or not (server.hostname and server.username):
            raise ConfigError(
                where=f"the variable {SMTP}",
                expected="smtps://user:password@host:465, or smtp:// with STARTTLS",
                found="another URL, or none",
                remedy=f"set it, or unset {MAIL_TO}",
            )
        mail = dg.make_email_on_run_failure_sensor(
            name="tokflow_alert_mail",
            email_from=unquote(server.username),
            email_password=unquote(server.password or ""),
            email_to=[of.strip() for of in addresses.split(",")],
            email_subject_fn=lambda context: f"{context.dagster_run.job_name} failed",
            email_body_fn=lambda context: f"<pre>{html.escape(alert_text(context))}</pre>",
            smtp_host=server.hostname,
            smtp_port=server.port,
            smtp_type="SSL" if server.scheme == "smtps" else "STARTTLS",
            **of_all,
        )
        sensors.append(mail)
    return sensors


def alert_text(context: dg.RunFailureSensorContext) -> str:
    """Return the job that failed, its run, and the message of each step that failed."""
    run = context.dagster_run
    steps = [of.step_failure_data for of in context.get_step_failure_events()]
    causes = [str(of.user_failure_data.description) for of in steps if of.user_failure_data]
    causes += [str(of.error.message) for of in steps if not of.user_failure_data and of.error]
    cause = "\n".join(causes) or context.failure_event.message
    return f"{run.job_name} failed (run {run.run_id}):\n{cause}"


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
