"""Messages about runs that fail."""

import smtplib
from collections.abc import Iterator
from email import message_from_string
from typing import Any

import dagster as dg
import pytest

from tokflow.components import failure_alerts
from tokflow.errors import ConfigError
from tokflow_tests.serving import webhook


@pytest.fixture
def context() -> Iterator[dg.RunFailureSensorContext]:
    @dg.op
    def fail() -> None:
        raise dg.Failure("a.jsonl: row 3: expected a text, found <null>", allow_retries=False)

    @dg.job
    def small_build() -> None:
        fail()

    with dg.DagsterInstance.ephemeral() as instance:
        result = small_build.execute_in_process(instance=instance, raise_on_error=False)
        [event] = result.filter_events(lambda of: of.is_run_failure)
        yield dg.build_run_status_sensor_context(
            sensor_name="alert",
            dagster_instance=instance,
            dagster_run=result.dagster_run,
            dagster_event=event,
            partition_key=None,
        ).for_run_failure()


def test_nobody_is_told_where_the_environment_asks_for_nothing(monkeypatch: pytest.MonkeyPatch):
    for name in ("WEBHOOK", "MAIL_TO"):
        monkeypatch.delenv(f"TOKFLOW_ALERT_{name}", raising=False)

    assert failure_alerts() == []


def test_a_webhook_gets_the_job_its_run_and_why_it_failed(
    context: dg.RunFailureSensorContext, monkeypatch: pytest.MonkeyPatch
):
    with webhook() as (url, told):
        monkeypatch.setenv("TOKFLOW_ALERT_WEBHOOK", url)
        [sensor] = failure_alerts()
        sensor(context)

    run = context.dagster_run.run_id
    why = "a.jsonl: row 3: expected a text, found <null>"
    assert told == [{"text": f"small_build failed (run {run}):\n{why}"}]
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING


def test_a_mail_goes_to_each_address_through_the_account_of_the_url(
    context: dg.RunFailureSensorContext, monkeypatch: pytest.MonkeyPatch
):
    sent: list[Any] = []

    class Server:
        def __init__(self, host: str, port: int, **_: Any) -> None:
            sent.append((host, port))

        def __enter__(self) -> "Server":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def login(self, user: str, password: str) -> None:
            sent.append((user, password))

        def sendmail(self, source: str, to: list[str], message: str) -> None:
            sent.append((source, to, message_from_string(message)))

    monkeypatch.setattr(smtplib, "SMTP_SSL", Server)
    monkeypatch.setenv("TOKFLOW_ALERT_MAIL_TO", "a@example.org, b@example.org")
    monkeypatch.setenv("TOKFLOW_ALERT_SMTP", "smtps://me%40example.org:p%3Aw@mail.example.org:465")

    [sensor] = failure_alerts()
    sensor(context)

    server, account, (source, to, message) = sent
    assert server == ("mail.example.org", 465)
    assert account == ("me@example.org", "p:w")
    assert (source, to) == ("me@example.org", ["a@example.org", "b@example.org"])
    assert message["Subject"] == "small_build failed"
    assert "expected a text, found &lt;null&gt;" in str(message.get_payload(decode=True), "utf-8")


@pytest.mark.parametrize("url", ["", "mail.example.org", "https://me:pw@mail.example.org"])
def test_addresses_without_a_mail_server_are_an_error(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKFLOW_ALERT_MAIL_TO", "a@example.org")
    monkeypatch.setenv("TOKFLOW_ALERT_SMTP", url)

    with pytest.raises(ConfigError) as raised:
        failure_alerts()

    assert raised.value.where == "the variable TOKFLOW_ALERT_SMTP"
