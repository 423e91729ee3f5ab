"""Files of deploy/, without any service."""

import re
from pathlib import Path

import pytest
import yaml
from compose_spec import PyCompose

from tokflow_tests.deploy.compose import DEPLOY, SECRETS, VARIABLE, read_compose


def test_the_compose_file_follows_the_specification():
    services = read_compose(SECRETS)

    parsed = PyCompose.from_yaml(yaml.safe_dump(services))

    assert sorted(parsed.service_names()) == sorted(services["services"])
    services["services"]["code"]["comand"] = []
    with pytest.raises(ValueError, match="comand"):
        PyCompose.from_yaml(yaml.safe_dump(services))


def test_nothing_starts_without_its_secrets_and_none_has_a_default():
    used = list(VARIABLE.finditer((DEPLOY / "compose.yaml").read_text()))

    assert {of[1] for of in used if of[2] == ":?"} == set(SECRETS)
    assert all(of[2] == ":?" for of in used if of[1] in SECRETS)


def test_the_example_names_every_variable_and_has_no_secret():
    example = (DEPLOY / "example.env").read_text()
    named = dict(re.findall(r"^#?(\w+)=(.*)$", example, re.MULTILINE))
    used = {match[1] for match in VARIABLE.finditer((DEPLOY / "compose.yaml").read_text())}

    assert used - {None} - set(named) == {"TOKFLOW_IMAGE"}
    assert {named[name].strip("'") for name in SECRETS} == {""}


def test_only_the_proxy_has_a_port_and_only_to_this_machine_by_default():
    services = read_compose(SECRETS)["services"]

    assert [name for name, of in services.items() if "ports" in of] == ["proxy"]
    assert all(port.startswith("127.0.0.1:") for port in services["proxy"]["ports"])
    assert services["proxy"]["networks"] == ["front"]
    assert [name for name, of in services.items() if "front" in of["networks"]] == [
        "webserver",
        "proxy",
    ]


def test_what_is_mounted_and_waited_for_is_declared():
    compose = read_compose(SECRETS)

    for service in compose["services"].values():
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        assert set(service["networks"]) <= set(compose["networks"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).is_file()


def test_the_image_has_the_files_that_it_copies_and_no_root():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[2:-1] for line in lines if line.startswith("COPY --chown")]

    assert all((DEPLOY.parent / path).exists() for paths in copied for path in paths)
    assert lines[-1] == "USER tokflow"


def test_the_image_gets_the_extras_that_the_services_need():
    build = read_compose(SECRETS)["services"]["code"]["build"]
    of_dockerfile = re.findall(r'INSTALL="(.*)"', (DEPLOY / "Dockerfile").read_text())
    extras = ["[postgres,report,ui]"] * 2

    assert re.findall(r"\[.*\]", build["args"]["INSTALL"] + "\n" + of_dockerfile[0]) == extras


def test_the_history_is_where_an_environment_variable_says():
    settings = yaml.safe_load((DEPLOY / "dagster.yaml").read_text())

    assert settings["storage"] == {"postgres": {"postgres_url": {"env": "TOKFLOW_POSTGRES_URL"}}}
    assert settings["telemetry"] == {"enabled": False}


def test_the_settings_are_otherwise_those_of_the_repository():
    own = yaml.safe_load((DEPLOY / "dagster.yaml").read_text())
    of_repository = yaml.safe_load(Path(DEPLOY.parent, "dagster.yaml").read_text())

    assert {name: of for name, of in own.items() if name != "storage"} == of_repository
