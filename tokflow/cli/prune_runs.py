"""`tokflow prune-runs`: old runs of Dagster's history, counted or removed."""

from datetime import UTC, datetime, timedelta

from tokflow.cli.options import Days, Json, ProjectFolder, Yes
from tokflow.cli.terminal import print_json
from tokflow.components import open_instance
from tokflow.components.instance import find_old_runs, remove_runs
from tokflow.shown import counted


def main(
    days: Days = 90,
    project: ProjectFolder = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Count the runs that ended that many days ago; remove them with `yes`."""
    before = datetime.now(UTC) - timedelta(days=days)
    with open_instance() as instance:
        old = find_old_runs(instance, before=before)
        if yes:
            remove_runs(instance, old.removable)
    if json:
        print_json({"is_dry_run": not yes, "removed": old.removable, "kept": old.needed})
        return
    verb = "removed" if yes else "would be removed by --yes"
    runs = f"{counted(len(old.removable), 'run')} of before {before:%Y-%m-%d %H:%M} UTC {verb}"
    print(f"{runs}, {len(old.needed):,} kept that say what is built")
