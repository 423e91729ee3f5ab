"""What a run would build, and why: nothing is written but checksums of raw files, nothing trained.

A missing output is compared with the newest one of the same stage and file in the store: what
differs between the two manifests is the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph, Output, Stage
from tokflow.build.staleness import Cause, why
from tokflow.errors import CorruptOutputError, TokflowError, explained
from tokflow.exports import ExportConfig
from tokflow.raw import LeftOut
from tokflow.store.manifest import read_run
from tokflow.store.outputs import newest_output

DEFAULT_SECONDS: dict[Stage, tuple[float, float]] = {
    "tokenizer": (1.0, 1 / 2e6),
    "tokens": (0.1, 1 / 40e6),
    "split": (0.1, 0.0),
    "sequences": (0.1, 1 / 500e6),
    "export": (0.1, 1 / 100e6),
}
"""Seconds per output and per raw byte where no earlier run tells: for 60 MB of parquet on two
cores, about what `make demo` takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedOutput:
    """One output: there already, or to be made."""

    stage: Stage
    name: str
    """The partition key; of an export, its name; of the tokenizer, `tokenizer`."""
    is_made: bool
    cause: Cause | None = None
    """None: it is there."""
    details: tuple[str, ...] = ()
    """What differs, or what it waits for, in plain words."""
    fingerprint: str | None = None
    """None where it cannot be known before another output is made."""
    folder: Path | None = None
    num_bytes: int = 0
    """Size of the raw files it goes back to."""
    seconds: float = 0.0
    """How long it is likely to take."""

    @property
    def reason(self) -> str:
        """The cause with its details on one line."""
        return f"{self.cause} ({'; '.join(self.details)})" if self.details else str(self.cause)


@dataclass(frozen=True, slots=True)
class Bad:
    """A raw file, or the tokenizer, that keeps outputs from being made."""

    name: str
    error: Exception

    @property
    def explained(self) -> TokflowError:
        """What to tell the user."""
        return explained(self.error, where=self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run would do now."""

    dataset: Dataset
    planned: tuple[PlannedOutput, ...]
    """Every output, in the order of the stages."""
    bad: tuple[Bad, ...] = ()
    num_files: int
    """Raw files that the plan is about."""
    left_out: tuple[LeftOut, ...]
    """What the patterns of the raw files match and is not read."""
    num_remote: int = 0
    """Those of them that are elsewhere: taken as they were fetched last."""
    num_elsewhere: int = 0
    """Other raw files that are not built, without which there is no export."""

    @property
    def missing(self) -> tuple[PlannedOutput, ...]:
        """The outputs that a run would make."""
        return tuple(planned for planned in self.planned if not planned.is_made)

    @property
    def is_up_to_date(self) -> bool:
        """Whether a run would find nothing to do."""
        return not self.missing and not self.bad

    @property
    def num_bytes(self) -> int:
        """Raw bytes that would be tokenized."""
        return sum(planned.num_bytes for planned in self.missing if planned.stage == "tokens")

    @property
    def seconds(self) -> float:
        """How long a run is likely to take."""
        return sum(planned.seconds for planned in self.missing)


def make_plan(
    dataset: Dataset,
    *,
    partitions: Sequence[str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Plan:
    """Return what `build_dataset` with the same arguments would make.

    Local raw files that are not known yet are hashed, `progress` counts their bytes; no server is
    asked about others. A raw file that cannot be read is reported in `bad`.

    Raises: ConfigError.
    """
    graph = BuildGraph(dataset, offline=True)
    keys = graph.selected_keys(partitions)
    graph.read_raw_files(
        [key for key, source in graph.sources.items() if source.is_local], progress=progress
    )
    return _Planner(graph, keys, is_partial=partitions is not None).plan()


class _Planner:
    """Goes through the stages as a run does, but only looks."""

    def __init__(self, graph: BuildGraph, keys: list[str], *, is_partial: bool) -> None:
        self.graph = graph
        self.dataset = graph.dataset
        self.keys = keys
        self.is_partial = is_partial
        self.bad: list[Bad] = []
        self.planned: list[PlannedOutput] = []
        self.sizes: dict[str, int] = {}
        self.unfetched: set[str] = set()
        self.changed: set[tuple[Stage, str]] = set()
        self.speeds = _Speeds(self.dataset.folder, self.sizes)

    def plan(self) -> Plan:
        """Return what is to be made."""
        for key in self.graph.sources:
            self._look_at(key)
        bad_keys = {bad.name for bad in self.bad}
        if self._add_tokenizer():
            for stage in ("tokens", "split", "sequences"):
                for key in self.keys:
                    if key not in bad_keys:
                        self._add_file_output(stage, key)
            num_elsewhere = self._num_unbuilt_elsewhere()
            if not self.is_partial or not num_elsewhere:
                for config in self.dataset.exports:
                    self._add_export(config)
        sources = self.graph.sources
        return Plan(
            dataset=self.dataset,
            planned=tuple(self.planned),
            bad=tuple(self.bad),
            num_files=len(self.keys),
            left_out=self.graph.listing.left_out,
            num_remote=sum(not sources[key].is_local for key in self.keys),
            num_elsewhere=self._num_unbuilt_elsewhere(),
        )

    def _look_at(self, key: str) -> None:
        try:
            self.sizes[key] = self.graph.raw_file(key).num_bytes
        except (TokflowError, OSError) as error:
            if self.graph.sources[key].is_local:
                self.bad.append(Bad(key, error))
            else:
                self.unfetched.add(key)

    def _add_tokenizer(self) -> bool:
        """Plan the tokenizer; say whether anything can be planned after it."""
        try:
            output = self.graph.tokenizer_output
        except (TokflowError, OSError) as error:
            if self.unfetched:
                self._add_waiting("tokenizer", "tokenizer", "waits for raw files to be fetched")
                return True
            self.bad.append(Bad("tokenizer", error))
            return False
        trained_on = self.graph.tokenizer_source().raw_files
        return self._add(output, sum(self.sizes.get(key, 0) for key in trained_on))

    def _add_file_output(self, stage: Stage, key: str) -> None:
        if key in self.unfetched:
            self._add_waiting(stage, key, "waits for the raw file to be fetched")
            return
        outputs: dict[Stage, Callable[[str], Output]] = {
            "tokens": self.graph.tokens,
            "split": self.graph.split,
            "sequences": self.graph.sequences,
        }
        try:
            output = outputs[stage](key)
        except (TokflowError, OSError):
            self._add_waiting(stage, key, f"waits for {self._awaited()}")
            return
        self._add(output, self.sizes[key])

    def _add_export(self, config: ExportConfig) -> None:
        try:
            output = self.graph.export(config)
        except (TokflowError, OSError):
            self._add_waiting("export", config.name, f"waits for {self._awaited()}")
            return
        self._add(output, sum(self.sizes.values()))

    def _add(self, output: Output, num_bytes: int) -> bool:
        """Plan an output; say whether a run could have it."""
        damage: CorruptOutputError | None = None
        try:
            is_made = output.find() is not None
        except CorruptOutputError as error:
            is_made, damage = False, error
        except TokflowError as error:
            self.bad.append(Bad(output.title, error))
            return False
        if is_made:
            self.planned.append(
                PlannedOutput(
                    stage=output.stage,
                    name=output.name,
                    is_made=True,
                    fingerprint=output.fingerprint,
                    folder=output.folder,
                    num_bytes=num_bytes,
                )
            )
            return True
        self.changed.add((output.stage, output.name))
        cause, details = self._why(output, damage)
        self.planned.append(
            PlannedOutput(
                stage=output.stage,
                name=output.name,
                is_made=False,
                cause=cause,
                details=details,
                fingerprint=output.fingerprint,
                folder=output.folder,
                num_bytes=num_bytes,
                seconds=self.speeds.seconds(output.stage, output.name, num_bytes),
            )
        )
        return True

    def _why(
        self, output: Output, damage: CorruptOutputError | None
    ) -> tuple[Cause, tuple[str, ...]]:
        if damage is not None:
            return "damaged", (str(damage).partition("; ")[0],)
        newest = newest_output(output.folder.parent)
        if newest is None:
            return "missing", ()
        if newest.folder == output.folder:
            return "config changed", ("what it holds is an error now",)
        return why(newest.manifest, output.recipe)

    def _add_waiting(self, stage: Stage, name: str, detail: str) -> None:
        self.changed.add((stage, name))
        num_bytes = sum(self.sizes.values()) if stage == "export" else self.sizes.get(name, 0)
        self.planned.append(
            PlannedOutput(
                stage=stage,
                name=name,
                is_made=False,
                cause="missing",
                details=(detail,),
                num_bytes=num_bytes,
                seconds=self.speeds.seconds(stage, name, num_bytes),
            )
        )

    def _awaited(self) -> str:
        """Return what must be made before a fingerprint can be known."""
        if ("tokenizer", "tokenizer") in self.changed:
            return "the tokenizer"
        if self.unfetched:
            return "raw files to be fetched"
        if bad := next((bad.name for bad in self.bad), None):
            return f"{bad}, which cannot be read"
        return "the tokens of all files: known, and perhaps there, once they are made"

    def _num_unbuilt_elsewhere(self) -> int:
        num = 0
        for key in self.graph.sources:
            if key in self.keys:
                continue
            try:
                num += not self.graph.sequences(key).is_made
            except (TokflowError, OSError):
                num += 1
        return num


class _Speeds:
    """How long the newest outputs of the dataset took, read when first asked for."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        self._folder = folder
        self._sizes = sizes
        self._per_byte: dict[tuple[Stage, str], float | None] = {}

    def seconds(self, stage: Stage, name: str, num_bytes: int) -> float:
        """Return how long an output that goes back to so many raw bytes is likely to take."""
        key = (stage, name if stage == "export" else "")
        if key not in self._per_byte:
            self._per_byte[key] = self._measured(stage, name)
        per_byte = self._per_byte[key]
        if per_byte is not None:
            return per_byte * num_bytes
        fixed, default = DEFAULT_SECONDS[stage]
        return fixed + default * num_bytes

    def _measured(self, stage: Stage, name: str) -> float | None:
        """Return seconds per raw byte of up to 50 outputs; None where there is none."""
        if stage in ("tokenizer", "export"):
            folder = self._folder / ("tokenizer" if stage == "tokenizer" else f"exports/{name}")
            made = {folder: sum(self._sizes.values())}
        else:
            made = {self._folder / stage / key: size for key, size in self._sizes.items()}
        seconds = num_bytes = 0.0
        for folder in list(made)[:50]:
            newest = newest_output(folder)
            took = None if newest is None else read_run(newest.folder).get("seconds")
            if took is not None and made[folder]:
                seconds += took
                num_bytes += made[folder]
        return seconds / num_bytes if num_bytes else None
