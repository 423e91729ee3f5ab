"""`tokflow ui`: Dagster's web UI, for this machine alone."""

import ipaddress
import os
import sys

from tokflow.build.project import project_root
from tokflow.cli import set_by_default
from tokflow.cli.terminal import print_json
from tokflow.errors import ConfigError


def main(*, host: str, port: int, expose: bool, json: bool) -> None:
    """Become the web UI: this process is replaced by `dagster dev` in the project's folder.

    Raises: ConfigError where `host` can be reached from elsewhere and nobody said it may.
    """
    if not is_loopback(host) and not expose:
        raise ConfigError(
            where="--host",
            expected="an address of this machine alone, as 127.0.0.1, since the web UI has no "
            "login and whoever reaches it can run code as you",
            found=repr(host),
            remedy="leave it out and use an SSH tunnel, or add --expose-without-login",
        )
    root = project_root()
    command = [sys.executable, "-m", "dagster", "dev", "-h", host, "-p", str(port)]
    if not (root / "workspace.yaml").is_file():
        command += ["-m", "tokflow.definitions"]
    environment = {name: os.environ[name] for name in os.environ if name not in set_by_default}
    environment["DAGSTER_DISABLE_TELEMETRY"] = "1"
    if json:
        print_json({"command": command, "folder": str(root)})
    else:
        os.chdir(root)
        os.execve(sys.executable, command, environment)


def is_loopback(host: str) -> bool:
    """Return whether an address leads to this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
