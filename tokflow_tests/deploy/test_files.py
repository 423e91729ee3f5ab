"""Files of deploy/, without any service."""

import re
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from tokflow_tests.deploy.compose import DEPLOY, FILES, SECRETS, VARIABLE, read_compose


def test_the_compose_files_follow_the_specification():
    for files in (FILES[:1], FILES[1:], FILES):
        services = read_compose(SECRETS, *files)
        parsed = PyCompose.from_yaml(yaml.safe_dump(services))
        assert sorted(parsed.service_names()) == sorted(services["services"])
    services["services"]["code"]["comand"] = []
    with pytest.raises(ValueError, match="comand"):
        PyCompose.from_yaml(yaml.safe_dump(services))


def test_every_image_is_of_a_version():
    images = [of["image"] for of in both_files()["services"].values()]
    base = re.findall("^FROM (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)

    of_others = {image for image in images if image != "tokflow"} | {*base}
    assert len(of_others) == 4
    assert all(re.search(r":v?\d+\.\d+(\.\d+)?(-\w+)*$", image) for image in of_others)


def test_no_container_can_write_to_itself_or_gain_rights_and_each_has_a_limit_of_memory():
    for name, of in both_files()["services"].items():
        assert of["read_only"], name
        assert "/tmp" in of["tmpfs"], name
        assert of["cap_drop"] == ["ALL"], name
        assert of["security_opt"] == ["no-new-privileges:true"], name
        assert re.fullmatch(r"\d+[mg]", of["mem_limit"]), name
        assert of.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "proxy" else []), name


def test_every_service_says_whether_it_is_well():
    services = both_files()["services"]
    silent = {name for name, of in services.items() if "healthcheck" not in of}

    assert silent == {"proxy", "restore", "docker", "docker-stop"}


def test_only_the_code_and_the_proxy_reach_what_is_outside():
    compose = both_files()
    outward = {name for name, of in compose["networks"].items() if not of.get("internal")}
    on = {name: {*of["networks"]} & outward for name, of in compose["services"].items()}

    assert {name: of for name, of in on.items() if of} == {"code": {"outside"}, "proxy": {"edge"}}


def test_dockers_socket_is_with_its_proxies_alone_and_the_web_servers_starts_nothing():
    services = both_files()["services"]
    own = {name for name, of in services.items() if "docker.sock" in str(of.get("volumes"))}

    assert own == {"docker", "docker-stop"}
    assert services["docker-stop"]["environment"] == {"CONTAINERS": 1, "ALLOW_STOP": 1}
    for network, user in (("docker", "daemon"), ("docker-stop", "webserver")):
        others = {name for name, of in services.items() if network in of["networks"]}
        assert others == {network, user}


def both_files() -> Any:
    return read_compose(SECRETS, *FILES)


def text_of_both() -> str:
    return "".join((DEPLOY / file).read_text() for file in FILES)


def test_nothing_starts_without_its_secrets_and_none_has_a_default():
    used = list(VARIABLE.finditer(text_of_both()))

    assert {of[1] for of in used if of[2] == ":?"} == set(SECRETS)
    assert all(of[2] == ":?" for of in used if of[1] in SECRETS)


def test_the_example_names_every_variable_and_has_no_secret():
    example = (DEPLOY / "example.env").read_text()
    named = dict(re.findall(r"^#?(\w+)=(.*)$", example, re.MULTILINE))
    used = {match[1] for match in VARIABLE.finditer(text_of_both())}

    assert used - {None} - set(named) == {"TOKFLOW_IMAGE"}
    assert {named[name].strip("'") for name in SECRETS} == {""}


def test_only_the_proxy_has_a_port_and_only_to_this_machine_by_default():
    services = read_compose(SECRETS)["services"]

    assert [name for name, of in services.items() if "ports" in of] == ["proxy"]
    assert all(port.startswith("127.0.0.1:") for port in services["proxy"]["ports"])
    assert [name for name, of in services.items() if "front" in of["networks"]] == [
        "webserver",
        "proxy",
    ]


def test_what_is_mounted_and_waited_for_is_declared():
    compose = both_files()

    for service in compose["services"].values():
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        assert set(service["networks"]) <= set(compose["networks"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            is_file = (DEPLOY / source).is_file() or source == "/var/run/docker.sock"
            assert source in compose["volumes"] or is_file


def test_the_image_has_the_files_that_it_copies_and_no_root():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[2:-1] for line in lines if line.startswith("COPY --chown")]

    assert all((DEPLOY.parent / path).exists() for paths in copied for path in paths)
    assert lines[-1] == "USER tokflow"


def test_the_image_gets_the_extras_that_the_services_need():
    build = read_compose(SECRETS)["services"]["code"]["build"]
    of_dockerfile = re.findall(r'INSTALL="(.*)"', (DEPLOY / "Dockerfile").read_text())
    extras = ["[docker,postgres,report,ui]"] * 2

    assert re.findall(r"\[.*\]", build["args"]["INSTALL"] + "\n" + of_dockerfile[0]) == extras


def test_the_history_is_where_an_environment_variable_says():
    own = settings("deploy/dagster.yaml")

    assert own["storage"] == {"postgres": {"postgres_url": {"env": "TOKFLOW_POSTGRES_URL"}}}
    assert own["telemetry"] == {"enabled": False}


def test_the_settings_are_otherwise_those_of_the_repository():
    own = settings("deploy/dagster.yaml")

    assert {name: of for name, of in own.items() if name != "storage"} == settings("dagster.yaml")


def test_runs_in_containers_differ_by_the_launcher_which_gives_them_what_the_code_has():
    own = settings("deploy/dagster.runs.yaml")
    config = own.pop("run_launcher")["config"]
    given, code = config["container_kwargs"], read_compose(SECRETS)["services"]["code"]
    confined = ("mem_limit", "pids_limit", "read_only", "cap_drop", "security_opt", "init")

    assert own == settings("deploy/dagster.yaml")
    assert {name: given[name] for name in confined} == {name: code[name] for name in confined}
    assert list(given["tmpfs"]) == code["tmpfs"]
    assert given["volumes"] == [f"tokflow_{volume}" for volume in code["volumes"]]
    assert config["networks"] == [f"tokflow_{network}" for network in code["networks"]]


def settings(path: str) -> Any:
    return yaml.safe_load((DEPLOY.parent / path).read_text())
