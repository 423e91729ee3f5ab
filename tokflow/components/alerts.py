"""Messages about runs that fail: to a webhook, and by mail."""

import html
import json
import os
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import dagster as dg

from tokflow.errors import ConfigError

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
