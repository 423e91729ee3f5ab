"""Section `near_duplicates` of a dataset's YAML."""

from typing import Annotated, ClassVar

from pydantic import Field

from tokflow.errors import ConfigError
from tokflow.store.config import Config, Count

COPIES = ("duplicate", "near_duplicate")
"""What `select` leaves out by `not NAME`, a term of the outermost `and`: which document goes for
the sake of another is decided among those that all other terms keep."""

MAX_SLOTS = 512
"""Numbers of a signature; more would only take time."""


class NearDuplicatesConfig(Config):
    """Texts that are nearly the same; `select: not near_duplicate` keeps one of them."""

    section: ClassVar[str] = "near_duplicates"

    threshold: Annotated[float, Field(ge=0.1, le=1)] | None = None
    """Jaccard similarity from which two texts are near-duplicates: n-grams of tokens that both
    have over those that either has; default: none are looked for.

    0.7 is about one word in sixteen changed. Each pair is proven by its n-grams; a pair is looked
    at if all `rows` of one of the `bands` agree, which happens with probability
    1 - (1 - s**rows)**bands at similarity s: 0.99 at 0.7 with the defaults.
    """
    ngram: Count = 5
    """Tokens of an n-gram; a shorter text has copies only."""
    bands: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 25
    """Bands of a signature: more find more pairs, and take time and 8 bytes a document each."""
    rows: Annotated[int, Field(ge=1, le=100)] = 5
    """Numbers of a signature in each band: more find fewer pairs that are not alike."""

    def check(self) -> None:
        """Refuse signatures that would only take time."""
        if self.num_slots > MAX_SLOTS:
            raise ConfigError(
                where="bands",
                expected=f"at most {MAX_SLOTS} numbers in a signature, bands times rows",
                found=f"{self.num_slots:,}",
                remedy="lower bands or rows",
            )

    @property
    def num_slots(self) -> int:
        """Numbers of a signature."""
        return self.bands * self.rows

    def needed(self) -> float:
        """Return the threshold. Raises: ConfigError where there is none."""
        if self.threshold is None:
            raise ConfigError(
                where="",
                expected="near_duplicates.threshold, which says what near_duplicate is",
                found="none",
                remedy="add `near_duplicates: {threshold: 0.7}` to the dataset",
            )
        return self.threshold
