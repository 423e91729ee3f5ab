"""Documents of a part that are read together."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokflow.tokens.origins import Origins


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionDocuments:
    """The documents that one partition has in a part, or some that several have, in order; arrays
    (num_documents,)."""

    origins: Origins
    """The raw files that the rows are of."""
    row: npt.NDArray[np.int64]
    """Row of each in `origins`: that of the partition's token shard, or of all shards, end to
    end."""
    char_start: npt.NDArray[np.int64]
    """Code points of the document before it: 0, unless the split cut the document."""
    num_tokens: npt.NDArray[np.int64]
    """BOS and EOS included; 0 of an empty document that has neither."""
