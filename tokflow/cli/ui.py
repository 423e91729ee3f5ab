"""`tokflow ui`: Dagster's web UI and daemon, which pages of other sites cannot use."""

import os
import socket
import tomllib
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path

import yaml

from tokflow.cli import set_by_default
from tokflow.cli.services import CodeLocation, serve
from tokflow.cli.terminal import print_json
from tokflow.errors import ConfigError
from tokflow.pipeline.declarations.project import project_root, state_home

LOOPBACK = ("127.0.0.1", "localhost", "::1")

QUIET = {"telemetry": {"enabled": False}, "nux": {"enabled": False}}
"""Settings where there is no dagster.yaml: without them pages load a script of dagster.io."""


def main(*, host: str, port: int, expose: bool, json: bool) -> int | None:
    """Serve the web UI of the project's code locations until it is interrupted.

    Raises: ConfigError where the web server is not installed, where `host` can be reached from
    elsewhere and nobody said it may, or where the port is taken.
    """
    _check_installed()
    if not expose and host not in LOOPBACK:
        _refuse_unless_loopback(host)
    root = project_root()
    home = Path(os.environ.get("DAGSTER_HOME") or state_home(root))
    location = code_location(root)
    if json:
        print_json(
            {
                "url": url(host, port),
                "folder": str(root),
                "dagster_home": str(home),
                "code_location": location.name if location else "workspace.yaml",
            }
        )
        return None
    port = _free_port(host, port)
    settings = home / "dagster.yaml"
    if not (os.environ.get("DAGSTER_HOME") or settings.is_file()):
        home.mkdir(exist_ok=True)
        settings.write_text(yaml.safe_dump(QUIET))
    environment = {name: os.environ[name] for name in os.environ if name not in set_by_default}
    environment |= {"DAGSTER_DISABLE_TELEMETRY": "1", "DAGSTER_HOME": str(home)}
    with chdir(root):
        return serve(location, host=host, port=port, url=url(host, port), environment=environment)


def _check_installed() -> None:
    if find_spec("dagster_webserver") is None:
        raise ConfigError(
            where="tokflow ui",
            expected="Dagster's web server, which comes with the extra ui",
            found="none installed",
            remedy="run `pip install 'dagster-tokflow[ui]'`; all other commands work without it",
        )


def _refuse_unless_loopback(host: str) -> None:
    from tokflow.components.webserver import is_loopback

    if not is_loopback(host):
        raise ConfigError(
            where="--host",
            expected="an address of this machine alone, as 127.0.0.1, since the web UI has no "
            "login and whoever reaches it can run code as you",
            found=repr(host),
            remedy="leave it out and use an SSH tunnel, or add --expose-without-login",
        )


def _free_port(host: str, port: int) -> int:
    """Return the port, or one that is free where it is 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        raise ConfigError(
            where="--host and --port",
            expected="an address of this machine and a port that nobody listens on",
            found=f"{url(host, port)}: {error.strerror or error}",
            remedy="end what is running there, or take a free port: --port 0",
        ) from error


def url(host: str, port: int) -> str:
    """Return where the web UI is, for who sits at this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"


def code_location(root: Path) -> CodeLocation | None:
    """Return the definitions that `dagster dev` loads in a project; None: those in workspace.yaml.

    They are those that the project's pyproject.toml names, else its datasets.
    """
    pyproject = root / "pyproject.toml"
    tool = tomllib.loads(pyproject.read_text()).get("tool", {}) if pyproject.is_file() else {}
    of_dagster, project = tool.get("dagster", {}), tool.get("dg", {}).get("project", {})
    name = (of_dagster or project).get("code_location_name")
    option = "--module-name"
    if "module_name" in of_dagster:
        module = of_dagster["module_name"]
    elif project.get("autoload_defs"):
        option = "--autoload-defs-module-name"
        module = project.get("defs_module", f"{project['root_module']}.defs")
    elif project:
        module = f"{project['root_module']}.definitions"
        module = project.get("code_location_target_module", module)
    elif (root / "workspace.yaml").is_file():
        return None
    else:
        module = "tokflow.definitions"
    return CodeLocation(name or module, (option, module))
