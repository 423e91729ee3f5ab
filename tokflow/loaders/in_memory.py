"""A part in memory that all processes of the machine share."""

from collections.abc import Sequence

import numpy as np

from tokflow.exports.format import Arrays, Portion, fetched_ahead
from tokflow.loaders.shared_memory import SharedArrays, shared_arrays
from tokflow.store.integrity import Stored


def in_memory(
    portions: Sequence[Portion], output: Stored, part: str | None, *, num_documents: int = 0
) -> Sequence[Portion]:
    """Return the portions of a part as one, whose fields are in memory, decoded: once, whichever
    process of the machine comes first. `num_documents`: of a stream that keeps offsets.

    Raises: ConfigError where the system is not Linux, and where memory is short.
    """
    if not portions:
        return portions
    num = sum(portion.num for portion in portions)
    layout = {
        name: (values.dtype, (num_documents + 1 if name == "offsets" else num, *values.shape[1:]))
        for name, values in portions[0].read().items()
    }

    def fill(arrays: SharedArrays) -> None:
        first = document = 0
        for portion in fetched_ahead(portions):
            fields = portion.read()
            offsets = fields.pop("offsets", np.zeros(1, dtype=np.int64))
            for name, values in fields.items():
                arrays[name][first : first + portion.num] = values
            if "offsets" in arrays:
                arrays["offsets"][document : document + len(offsets)] = offsets + first
            first, document = first + portion.num, document + len(offsets) - 1

    name = f"{output.manifest.dataset} {part} {output.manifest.fingerprint}"
    fields: Arrays = shared_arrays(name, layout, fill)
    return [Portion(output.folder, num, lambda: fields, is_mapped=True)]
