"""The stage that packs the spans of each split into sequences."""

from collections.abc import Mapping, Sequence
from functools import partial

from tokflow.sequences import PackingConfig, Packings, described, one_or_each
from tokflow.sequences.segments import FileSequences, sequences_recipe, write_sequences
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, WholeWriter, Writer
from tokflow.store.manifest import Recipe
from tokflow.store.store import StoredOutput


class SequencesStage(Stage):
    """The sequences of each split, once for each packing that exports ask for."""

    name = "sequences"
    cost = Cost(0.005, 1 / 500e6)

    def variants(self, dataset: DatasetConfig) -> Mapping[str, PackingConfig]:
        """Return the packings; none where no file is packed by itself."""
        return dataset.of(Packings)

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the split."""
        return [Input(stage="split")]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides the sequences: the split and the packing."""
        packing = making.of(Packings)[making.variant]
        return sequences_recipe(making.input("split").fingerprint, packing)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the sequences of any split."""
        return sequences_recipe("", dataset.of(Packings)[variant])

    def writer(self, making: Making) -> Writer:
        """Return what packs a split."""
        split, dataset = making.opened("split"), making.graph.dataset.name
        return WholeWriter(partial(write_sequences, split, dataset=dataset, recipe=making.recipe))

    def open(self, stored: StoredOutput, inputs: Opened) -> FileSequences:
        """Return the sequences over their split."""
        return FileSequences(stored, inputs.opened("split"))

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        packings = dataset.of(Packings)
        packing = packings[variant]
        lengths = {part: packing.of_part(part).stored_length for part in dataset.parts}
        about = (
            "Which tokens stand in which sequence of "
            f"{described(one_or_each(lengths))}, for each part of each file. They are packed by "
            f"{packing.strategy}; no token is copied."
        )
        if variant:
            exports = ", ".join(packings.exports[variant])
            about += f" For {exports}, which have a packing of their own."
        return about


SEQUENCES = SequencesStage()
