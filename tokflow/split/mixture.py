"""The config of a mixture, and its plan: how many tokens of each source and file it takes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from tokflow.errors import ConfigError
from tokflow.store.config import Config, Count, Listed

Amount = Literal["weight", "tokens", "epochs"]
"""The forms in which a source may say how much of it is taken."""

FEW_DOCUMENTS = 16
"""A file of whose documents fewer would be taken gives all of them or none."""


class MixtureSource(Config):
    """One source of a mixture: how much of it is taken, and how often at most."""

    section: ClassVar[str] = "mixture.sources"

    weight: Annotated[float | None, Field(gt=0)] = None
    """Share of the tokens relative to the other weights, which need not add up to 1."""
    tokens: Count | None = None
    """Tokens to take."""
    epochs: Annotated[float | None, Field(gt=0)] = None
    """Passes over its text: 2 takes every document twice, 0.5 half of the tokens."""
    max_epochs: Annotated[float | None, Field(gt=0)] = None
    """The passes that are allowed at most: 1 with `weight` and with `tokens`, unless it is set."""
    config: str | None = None
    """Path of the YAML that declares it; default: the dataset of this name in the same project."""

    @property
    def amounts(self) -> list[Amount]:
        """The forms that are given; one, once it is checked."""
        return [form for form in get_args(Amount) if getattr(self, form) is not None]

    @property
    def most_epochs(self) -> Fraction:
        """The passes that are allowed at most."""
        return exact(self.max_epochs or self.epochs or 1)

    def check(self) -> None:
        """Refuse two forms, or none, and more epochs than the most."""
        if len(self.amounts) != 1:
            raise ConfigError(
                where="",
                expected=f"one of {', '.join(get_args(Amount))}",
                found=" and ".join(self.amounts) or "none",
                remedy="keep one" if self.amounts else "add one, such as `weight: 1`",
            )
        if self.max_epochs is not None and (self.epochs or 0) > self.max_epochs:
            raise ConfigError(
                where="epochs",
                expected=f"at most {self.max_epochs:g}, as max_epochs says",
                found=f"{self.epochs:g}",
                remedy="leave max_epochs out, or lower epochs",
            )


class MixtureConfig(Config):
    """Other datasets of the same tokenizer, and how much of each one this is made of."""

    section: ClassVar[str] = "mixture"

    sources: Annotated[dict[str, MixtureSource], Field(min_length=1)]
    """Name of a dataset, or of a stratum such as `web.hq`, to how much of it is taken, for all by
    `weight`, by `tokens` or by `epochs`."""
    tokens: Count | dict[str, Count] | None = None
    """Tokens of the part that is mixed, shared out by the weights; default: as many as the sources
    give by these weights, none more often than its max_epochs, 1 unless it is set. Of several
    parts those of the first, or of each by its name."""
    part: str | Listed[str] = "train"
    """The part that is mixed, or several, `[train, validation]`: these are shared out as the first
    is, and give, without `tokens`, no text twice. Of every other part each source gives all that it
    has, once."""
    seed: int = 0
    """Another seed takes other documents where not all of a source are taken."""

    @property
    def amount(self) -> Amount:
        """The one form of all sources."""
        return next(iter(self.sources.values())).amounts[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that are mixed."""
        return (self.part,) if isinstance(self.part, str) else self.part

    @property
    def datasets(self) -> list[str]:
        """The datasets of the sources, each once."""
        return list(dict.fromkeys(map(dataset_of, self.sources)))

    def tokens_of(self, part: str) -> int | None:
        """Return the tokens that a part is to have, where they are given."""
        tokens = self.tokens
        return tokens.get(part) if isinstance(tokens, dict) else {self.parts[0]: tokens}.get(part)

    def of_part(self, part: str, first: Mapping[str, int]) -> "MixtureConfig":
        """Return the mixture of a part behind the first, of which the sources give `first`: by
        weights, or in the same shares; without `tokens`, no text twice."""
        tokens = self.tokens_of(part)
        sources = {
            name: MixtureSource(
                weight=of.weight or max(first[name], 1e-9),  # a weight is above 0
                max_epochs=float(of.most_epochs) if tokens else None,
            )
            for name, of in self.sources.items()
        }
        return MixtureConfig(sources=sources, tokens=tokens, part=part, seed=self.seed)

    def check(self) -> None:
        """Refuse documents in two sources, sources of several forms, and a total beside amounts."""
        for name in self.sources:
            if (dataset := dataset_of(name)) != name and dataset in self.sources:
                raise ConfigError(
                    where="sources",
                    expected="each document in one source",
                    found=f"{name} and {dataset}, which has it",
                    remedy="name strata alone, or the dataset",
                )
        self._check_parts()
        forms = {name: of.amounts[0] for name, of in self.sources.items()}
        if len(set(forms.values())) > 1:
            raise ConfigError(
                where="sources",
                expected="the same form for all sources: weight, tokens or epochs",
                found=", ".join(f"{name} by {form}" for name, form in forms.items()),
                remedy="give all of them by one",
            )
        num = self.tokens_of(self.parts[0])
        if num is not None and self.amount != "weight":
            raise ConfigError(
                where="tokens",
                expected="none, for the sources say how much of each is taken",
                found=f"{num:,}, and sources by {self.amount}",
                remedy="leave it out, or give the sources weights",
            )

    def _check_parts(self) -> None:
        by_part = self.tokens if isinstance(self.tokens, dict) else {}
        others = [of for of in by_part if of not in self.parts]
        if others or len(set(self.parts)) < max(1, len(self.parts)):
            raise ConfigError(
                where="tokens" if others else "part",
                expected=f"parts that are mixed: {', '.join(self.parts)}"
                if others
                else "one part, or several, each once",
                found=", ".join(others or self.parts) or "none",
                remedy="name each part in mixture.part, once",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSize:
    """The size of a part in one partition of a source."""

    num_tokens: int
    num_documents: int
    """The spans of cut documents among them."""


def dataset_of(source: str) -> str:
    """Return the dataset of a source: `web` of `web` and of its stratum `web.hq`."""
    return source.partition(".")[0]


def part_in(source: str, part: str) -> str:
    """Return the name that the text of a source has in its dataset: `train.hq` of train of
    `web.hq`, train of `web`, which is all strata of it."""
    _, dot, stratum = source.partition(".")
    return part + dot + stratum


def plan_parts(
    config: MixtureConfig, available: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the tokens that each part takes of each source, given those that it has, both by
    source and part: of parts that are not mixed all.

    Raises: ConfigError as `plan_sources`.
    """
    planned = {name: dict(has) for name, has in available.items()}
    first = dict[str, int]()
    for part in config.parts:
        of_part = config.of_part(part, first) if first else config
        taken = plan_sources(of_part, {name: has[part] for name, has in available.items()})
        first = first or taken
        for name, num in taken.items():
            planned[name][part] = num
    return planned


def plan_sources(config: MixtureConfig, available: Mapping[str, int]) -> dict[str, int]:
    """Return the tokens that the first mixed part takes of each source, given those that it has.

    By weights, the shares are those of the largest remainder: of 10 tokens and weights 1, 1 and 1
    the first source gives 4, the others 3.

    Raises: ConfigError that names a source of which there is nothing, or which would be repeated
    more often than its max_epochs.
    """
    for name, num in available.items():
        if num == 0:
            raise _error(
                name, f"tokens in {config.parts[0]}", "none", "correct its split, or leave it out"
            )
    sources = config.sources
    match config.amount:
        case "tokens":
            planned = {name: of.tokens or 0 for name, of in sources.items()}
        case "epochs":
            epochs = {name: exact(of.epochs or 0) for name, of in sources.items()}
            planned = {name: round(epochs[name] * num) for name, num in available.items()}
        case "weight":
            total = config.tokens_of(config.parts[0]) or most_tokens(config, available)
            planned = shares(total, _weights(config))
    for name, num in planned.items():
        _check_epochs(config, name, num, available)
    return planned


def most_tokens(config: MixtureConfig, available: Mapping[str, int]) -> int:
    """Return the most tokens that the weights allow before a source is repeated more often than its
    max_epochs."""
    weights = _weights(config)
    total = sum(weights.values())
    return int(
        min(
            of.most_epochs * available[name] * total / weights[name]
            for name, of in config.sources.items()
        )
    )


def plan_partitions(
    num_tokens: int, sizes: Mapping[str, PartSize], *, seed: int, name: str
) -> dict[str, int]:
    """Return the tokens to take of each partition of a source, `num_tokens` together.

    Every partition gives its whole passes. What is left of a pass is taken of all in proportion;
    but partitions of which it would be fewer than FEW_DOCUMENTS are taken whole or not at all, in
    the order of the seed, the last of these in part. So what is taken is spread over the source,
    and one document of a partition, at most, is cut.
    """
    total = sum(of.num_tokens for of in sizes.values())
    passes, rest = divmod(num_tokens, total)
    taken = {key: passes * of.num_tokens for key, of in sizes.items()}
    few = [key for key, of in sizes.items() if of.num_documents * rest < FEW_DOCUMENTS * total]
    weights = {key: Fraction(of.num_tokens) for key, of in sizes.items() if key not in set(few)}
    of_few = Fraction(sum(sizes[key].num_tokens for key in few))
    in_proportion = shares(rest, {**weights, "": of_few})  # no key is empty
    left = in_proportion.pop("")
    for key, more in in_proportion.items():
        taken[key] += more

    def drawn(key: str) -> bytes:
        return hashlib.blake2b(f"{seed}:{name}/{key}".encode(), digest_size=8).digest()

    for key in sorted(few, key=drawn):
        more = min(left, sizes[key].num_tokens)
        taken[key] += more
        left -= more
    return taken


def shares(total: int, weights: Mapping[str, Fraction]) -> dict[str, int]:
    """Return whole shares of `total` that add up to it, by the method of the largest remainder;
    of equal remainders the first is the larger."""
    of_all = sum(weights.values())
    if not of_all:
        return dict.fromkeys(weights, 0)
    wanted = {name: total * weight / of_all for name, weight in weights.items()}
    found = {name: int(share) for name, share in wanted.items()}
    by_remainder = sorted(found, key=lambda name: found[name] - wanted[name])
    for name in by_remainder[: total - sum(found.values())]:
        found[name] += 1
    return found


def exact(number: float) -> Fraction:
    """Return the number as it is written: 0.1 is a tenth."""
    return Fraction(str(number))


def _weights(config: MixtureConfig) -> dict[str, Fraction]:
    return {name: exact(of.weight or 0) for name, of in config.sources.items()}


def _check_epochs(
    config: MixtureConfig, name: str, num_tokens: int, available: Mapping[str, int]
) -> None:
    most, num = config.sources[name].most_epochs, available[name]
    allowed = -(-most.numerator * num // most.denominator)  # rounded up, as shares may be
    if num_tokens <= allowed:
        return
    needed = f"{num_tokens:,}, which are {num_tokens / num:,.2f} epochs of the {num:,} that it has"
    lower = f"lower its tokens to {allowed:,}"
    if config.amount == "weight":
        lower = f"lower mixture.tokens to {most_tokens(config, available):,}, or its weight"
    at_least = -(-num_tokens // num)
    raise _error(
        name,
        f"at most {allowed:,} tokens, which are max_epochs {float(most):g}",
        needed,
        f"set its max_epochs to {at_least:,}, or {lower}",
    )


def _error(name: str, expected: str, found: str, remedy: str) -> ConfigError:
    where = f"mixture.sources.{name}"
    return ConfigError(where=where, expected=expected, found=found, remedy=remedy)
