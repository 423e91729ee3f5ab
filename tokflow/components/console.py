"""The log of the build job on a terminal: each line says when, which job and what, and no more."""

import logging
from typing import Any

import dagster as dg

from tokflow.shown import printable, redacted

CONSOLE_CONFIG = {"loggers": {"console": {"config": {"log_level": "INFO"}}}}
"""Run config that replaces Dagster's own logger, which prints every step of Dagster's."""


@dg.logger(
    config_schema={"log_level": dg.Field(str, default_value="INFO")},
    description="Lines for a person. Everything is in the run's log.",
)
def console_logger(context: dg.InitLoggerContext) -> logging.Logger:
    """Return the logger of a run, which writes to stderr."""
    handler = logging.StreamHandler()
    job = context.job_def.name if context.job_def else "dagster"
    handler.setFormatter(_Short(f"%(asctime)s {job}: %(message)s", "%H:%M:%S"))
    logger = logging.getLoggerClass()("tokflow", context.logger_config["log_level"])
    logger.addHandler(handler)
    return logger


class _Short(logging.Formatter):
    """Formats a record as its message alone, without run id and step and, for a failure that
    explains itself, without the traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line."""
        said: dict[str, Any] = getattr(record, "dagster_meta", {})
        event = said.get("dagster_event")
        if event is None:
            record.message = said.get("orig_message", record.message)
        elif event.is_step_failure and (failure := event.step_failure_data.user_failure_data):
            record.message = failure.description
        elif event.is_job_event:
            record.message = event.message
        return printable(redacted(super().formatMessage(record)), keep="\n\t")
