"""The config of packing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import pydantic
from pydantic import Field
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tokflow.errors import ConfigError
from tokflow.store.config import Config, check_keys, relocating, within
from tokflow.strata.stage import undivided

Strategy: TypeAlias = Literal["concat", "greedy", "first_fit", "best_fit", "pool", "one_document"]
Overlong: TypeAlias = Literal["split", "truncate", "drop"]
Tail: TypeAlias = Literal["pad", "drop"]
Side: TypeAlias = Literal["left", "right"]

RARE = {"padding_side": "right", "truncation_side": "right", "drop_unsupervised": False}
"""Fields that recipes have only where they differ from this."""

MAX_SEQUENCE_LENGTH = 2**24
"""Sixteen times the longest context that is trained today; a sequence must fit into memory."""

MAX_PAD_ID = 2**31 - 1
"""Formats of sequences store ids as int32."""


@dataclass(frozen=True)
class _ChangesSchema:
    """The schema of a mapping whose keys are fields of PackingConfig."""

    but: str | None = None
    """The field that cannot be among them."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        annotated: Any = Annotated
        properties = {}
        for name, field in PackingConfig.model_fields.items():
            if name != self.but:  # without its default, which is another one in each place
                described = Field(description=PackingConfig.descriptions()[name])
                kind = annotated[(field.annotation, *field.metadata, described)]
                properties[name] = pydantic.TypeAdapter(kind).json_schema()
        return {"type": "object", "properties": properties, "additionalProperties": False}


ChangesOfPart: TypeAlias = Annotated[dict[str, Any], _ChangesSchema("parts")]
"""Fields of PackingConfig that are other ones for a part."""

PackingChanges: TypeAlias = Annotated[dict[str, Any], _ChangesSchema()]
"""Fields of PackingConfig that are other ones for an export; `PackingConfig.changed` checks them.
"""


class PackingConfig(Config):
    """Packing of tokens into sequences of one length; none is dropped unless a field says so."""

    section: ClassVar[str] = "packing"

    strategy: Strategy = "concat"
    """concat: documents end to end, cut into sequences (EasyDeL calls that greedy). greedy
    (next-fit), first_fit, best_fit (best-fit decreasing) and pool (best-fit decreasing within
    `pool_size` documents): documents side by side, none cut that fits into one sequence.
    one_document: each begins a sequence."""
    sequence_length: Annotated[
        int, Field(ge=1, le=MAX_SEQUENCE_LENGTH), "a usual length is 1024 or 2048"
    ] = 1024
    """Tokens stored per sequence; a loader makes inputs and labels of it by shifting."""
    label_token: bool = False
    """Store one token more per sequence, so that each of `sequence_length` inputs has its label. A
    sequence that continues another begins with the last token of that one."""
    overlap: Annotated[int, Field(ge=0)] = 0
    """Tokens that a sequence repeats from the one it continues: of the same document or, with
    concat, of the sequence before it. Counted as num_repeated_tokens."""
    overlong: Overlong = "split"
    """Treatment of a document longer than a sequence: split goes on in further sequences, truncate
    keeps one sequence of it, drop leaves it out."""
    truncation_side: Side = "right"
    """Side on which `overlong: truncate` takes tokens away: right keeps the first of a document,
    without its EOS; left the last."""
    tail: Tail = "pad"
    """Treatment of a part's last sequence if it is not full. It is made of the leftover tokens of
    all files, so there is one in the whole dataset; with one_document there is none."""
    min_sample_length: Annotated[int, Field(ge=1)] = 1
    """A sequence with fewer tokens, padding not counted, is left out and counted as dropped; one
    with exactly so many is kept (PickledTrainerDataset's script keeps those with more)."""
    drop_unsupervised: bool = False
    """Leave out sequences without a supervised token, and count them: of a chat that is split, the
    ones that hold only what the user says. Without it they are counted, and kept."""
    pool_size: Annotated[int, Field(ge=1), "a usual size is 10000"] = 10_000
    """pool: documents that are packed together. Sequences hold documents that are at most about
    so many apart; more of them fill sequences better."""
    pad_id: Annotated[
        int | None,
        Field(ge=0, le=MAX_PAD_ID),
        "an id that the model knows or ignores, stored as int32",
    ] = None
    """Token id that fills a sequence; default: the EOS id, or 0 where there is none."""
    padding_side: Side = "right"
    """Side of the padding in a sequence that is not full: behind its tokens, or before them."""
    parts: dict[str, ChangesOfPart] = Field(default_factory=dict)
    """Parts of the split that are packed otherwise, each with the fields that are other ones:
    `{validation: {sequence_length: 512}}`. `validation` is all of its strata, `validation.hq` one,
    whose own fields come first."""

    def check(self) -> None:
        """Refuse fields that do not go together."""
        for name in self.parts:
            self.of_part(name)
        if self.overlap >= self.sequence_length:
            below = f"0 to {self.sequence_length - 1:,}, less than sequence_length"
            raise self._error("overlap", below, "lower it, or raise sequence_length")
        if self.overlap and self.overlong != "split" and self.strategy != "concat":
            remedy = f"{self.strategy} continues no sequence with overlong: {self.overlong}"
            raise self._error("overlap", "0", f"{remedy}; leave it out")
        if self.min_sample_length > self.stored_length:
            most = f"1 to {self.stored_length:,}, the tokens of a sequence"
            raise self._error("min_sample_length", most, "no sequence is longer")

    @property
    def stored_length(self) -> int:
        """Tokens stored per sequence, the label of the last input among them."""
        return self.sequence_length + self.label_token

    @property
    def stored_overlap(self) -> int:
        """Tokens at the beginning of a sequence that the one it continues has at its end."""
        return self.overlap + self.label_token

    def of_part(self, name: str) -> "PackingConfig":
        """Return the packing of one part, which has no parts.

        Raises: ConfigError.
        """
        if not self.parts:
            return self
        own = self._own()
        changes = {**self.parts.get(undivided(name), {}), **self.parts.get(name, {})}
        with relocating(f"parts.{name}", within):
            check_keys(changes, own, where="")
            return PackingConfig.read({**own, **changes}, where="")

    def changed(self, changes: Mapping[str, Any]) -> "PackingConfig":
        """Return the packing with other fields: those hold for every part, whatever was declared
        for it before, and the `parts` among them for one part.

        Raises: ConfigError.
        """
        if not changes:
            return self
        parts: object = changes.get("parts", {})
        if isinstance(parts, Mapping):
            known = {
                name: {
                    field: value
                    for field, value in of.items()
                    if field not in changes and field not in (parts.get(undivided(name)) or ())
                }
                for name, of in self.parts.items()
            }
            both = {
                name: {**known.get(name, {}), **of} if isinstance(of, Mapping) else of
                for name, of in parts.items()
            }
            parts = {**known, **both}
        return PackingConfig.read({**self._own(), **changes, "parts": parts}, where="")

    def for_parts(self, names: Sequence[str]) -> "PackingConfig":
        """Return the packing of a dataset with these parts: that of the first, and what is other in
        the others, so that it is written alike however it was declared.

        Raises: ConfigError for another part.
        """
        known = dict.fromkeys([*names, *map(undivided, names)])
        check_keys(self.parts, known, where="parts")
        if not self.parts:
            return self
        packings = {name: self.of_part(name) for name in names}
        first, *_ = packings.values()
        parts = {name: _others(first._own(), of._own()) for name, of in packings.items()}
        return first.model_copy(update={"parts": {name: of for name, of in parts.items() if of}})

    def is_of_one_document(self, parts: Iterable[str]) -> bool:
        """Return whether a sequence of any of these parts is of one document."""
        return any(self.of_part(name).strategy == "one_document" for name in parts)

    def fields_of_file(self) -> dict[str, Any]:
        """Return the fields that decide one file's sequences; leftover tokens are for exports."""
        return self.fields_of_export(of_file=True)

    def fields_of_export(self, *, of_file: bool = False) -> dict[str, Any]:
        """Return the fields that decide the sequences of an export, or of one file, and of each
        part those that are other ones."""
        own = self._deciding(of_file)
        # What decides nothing of a part is as usual there: the others' may not go with its fields.
        known = {name: of for name, of in PackingConfig()._own().items() if name in own}
        usual = {name: of for name, of in RARE.items() if name not in own}
        parts = {}
        for name in self.parts:
            of_part = {**known, **self.of_part(name)._deciding(of_file)}
            if others := _others(usual, _others(own, of_part)):
                parts[name] = others
        own = _others(RARE, own)
        return {**own, "parts": parts} if parts else own

    def _deciding(self, of_file: bool) -> dict[str, Any]:
        left_out = {"tail", "pad_id", "padding_side"} if of_file else set()
        if of_file and self.strategy == "concat":
            left_out.add("min_sample_length")  # the finished sequences are all full
        if self.strategy != "pool":
            left_out.add("pool_size")
        if self.overlong != "truncate":
            left_out.add("truncation_side")
        if self.strategy == "one_document":
            left_out.add("tail")
        return {name: of for name, of in self._own().items() if name not in left_out}

    def _own(self) -> dict[str, Any]:
        """Return all fields but `parts`."""
        return self.model_dump(exclude={"parts"})

    def _error(self, name: str, expected: str, remedy: str) -> ConfigError:
        found = repr(getattr(self, name))
        return ConfigError(where=name, expected=expected, found=found, remedy=remedy)


T = TypeVar("T")


class Packings(dict[str, PackingConfig]):
    """The packings of a dataset by their names: its own, called "", and those of exports."""

    exports: dict[str, list[str]]
    """The names of the exports that have each packing, by its name."""


def one_or_each(of_parts: Mapping[str, T]) -> T | dict[str, T]:
    """Return the value that all parts have or, where they differ, that of each: how details of a
    manifest tell of parts."""
    first, *others = of_parts.values()
    return first if all(value == first for value in others) else dict(of_parts)


def described(value: object) -> str:
    """Return for people what `one_or_each` returned: `512`, or `1,536 of train and 512 of test`."""
    if isinstance(value, Mapping):
        return " and ".join(f"{described(of)} of {part}" for part, of in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _others(fields: Mapping[str, Any], of_part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a part that others do not have, or have otherwise."""
    is_same = {name: name in fields and fields[name] == value for name, value in of_part.items()}
    return {name: value for name, value in of_part.items() if not is_same[name]}
