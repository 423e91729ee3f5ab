"""`tokflow mix`: candidates of a mixture, YAMLs of the same sources with weights drawn around their
shares.

For methods that train small models on many mixtures and fit what they predict, as RegMix and Olmix
do. Weights come from a Dirichlet distribution with the parameters `alpha` times the share of each
source in the tokens, so the mean is the shares. A draw that breaks a bound, or that the mixture
cannot be built by, is drawn again as a whole: a clipped one would heap candidates up at the bounds,
and the others would not be draws of one distribution any more.

Source: sail-sg/regmix, mixture_config/synthesize_mixture.py: its `strength` is `alpha` here.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from tokflow.cli.options import Configs, Json, ProjectFolder, StoreName, select
from tokflow.cli.terminal import print_json, print_rows, shown_path
from tokflow.errors import ConfigError, nearest
from tokflow.formatting import counted
from tokflow.pipeline.dataset import DEFAULT_STORE, Dataset
from tokflow.pipeline.declared import Declaration, declared_in, list_declared, source_of
from tokflow.pipeline.mixture import MixtureGraph, graph_of, total_tokens
from tokflow.pipeline.project import find_project
from tokflow.pipeline.yaml_file import COMPONENT_TYPE
from tokflow.split.mixture import MixtureConfig, MixtureSource, dataset_of, plan_parts
from tokflow.store.config import expanded
from tokflow.store.urls import is_url

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The mixture, whose sources are built and weighed.")
]
Candidates = Annotated[int, typer.Option(min=1, max=100_000, help="YAMLs to write.")]
Alpha = Annotated[
    float,
    typer.Option(
        help="Concentration: the parameters of the Dirichlet distribution are this times the "
        "sources' shares of the tokens. Less is nearer to one source alone."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Another gives other candidates.")]
BoundTexts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SOURCE=LOW:HIGH",
        help="Least and largest share of a source, as web.hq=0.1:0.6; can be repeated. Weights "
        "outside are drawn again.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="By default NAME-candidates."),
]


MOST_DRAWS = 100_000

LEAST_WEIGHT = 1e-6
"""Weights have six digits, and are above 0, so that every candidate has the same validation."""

Bounds = Mapping[str, tuple[float, float]]
"""The least and the largest share by source."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The parameters by which candidates are drawn."""

    candidates: int
    alpha: float
    """Concentration: less is nearer to mixtures of one source, more nearer to the shares."""
    seed: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Candidate:
    """One weighting of a mixture."""

    name: str
    weights: Mapping[str, float]
    """Shares by source, which add up to 1 but for their digits."""
    tokens: Mapping[str, int]
    """Tokens that the first mixed part has of each source."""


def main(
    name: Name,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    candidates: Candidates = 64,
    alpha: Alpha = 1.0,
    seed: Seed = 0,
    bounds: BoundTexts = None,
    output: Folder = None,
    json: Json = False,
) -> None:
    """Write the YAMLs; print the shares, what the weights are, and the next command."""
    [dataset] = select([name], configs, store)
    files = [of for path in configs or () for of in declared_in(path)]
    declaration = next(of for of in files or list_declared().values() if of.name == name)
    graph = graph_of(dataset)
    if not isinstance(graph, MixtureGraph):
        found, remedy = "a dataset with raw files", "name one that has `mixture:`"
        raise ConfigError(where=name, expected="a mixture", found=found, remedy=remedy)
    how = Draw(candidates, alpha, seed, dict(map(_bound, bounds or ())))
    available = tokens_of_sources(graph)
    drawn, num_refused = draw(dataset, available, how)
    folder = output or Path(f"{name}-candidates")
    _write(yamls_of(declaration, drawn, folder))
    shares = natural_shares(dataset.of(MixtureConfig), available)
    if json:
        each = [
            {"name": of.name, "path": str(folder / f"{of.name}.yaml"), **asdict(of)} for of in drawn
        ]
        print_json({"dataset": name, "shares": shares, "candidates": each, "refused": num_refused})
        return
    rows = []
    for source, share in shares.items():
        weights = [of.weights[source] for of in drawn]
        row = {"source": source, "natural_fraction": share, "smallest_fraction": min(weights)}
        row |= {"mean_fraction": sum(weights) / len(weights), "largest_fraction": max(weights)}
        rows.append(row)
    print_rows(rows)
    sizes = sorted(sum(of.tokens.values()) for of in drawn)
    if sizes[0] < sizes[-1]:
        print(
            f"\nnote: they have {sizes[0]:,} to {sizes[-1]:,} tokens; with mixture.tokens all have "
            "the same"
        )
    written = f"{counted(len(drawn), 'YAML file')} in {shown_path(folder)}"
    print(f"\nwrote {written}; {counted(num_refused, 'draw')} refused\n\nnext:")
    print(f"  tokflow run --config {shown_path(folder / drawn[0].name)}.yaml")


def _bound(text: str) -> tuple[str, tuple[float, float]]:
    """Return the source and the shares of `web.hq=0.1:0.6`."""
    source, _, shares = text.partition("=")
    low, _, high = shares.partition(":")
    try:
        return source, (float(low), float(high))
    except ValueError:
        raise ConfigError(
            where="--bounds",
            expected="a source with its least and largest share, as web.hq=0.1:0.6",
            found=repr(text),
            remedy="write both shares",
        ) from None


def _write(texts: Mapping[Path, str]) -> None:
    """Write files, none of them in the place of other content."""
    for path, text in texts.items():
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise ConfigError(
                where=path,
                expected="a path where nothing is yet, since nothing is overwritten",
                found="a file with other content",
                remedy="name another folder by --output, or remove it",
            )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def tokens_of_sources(graph: MixtureGraph) -> dict[str, dict[str, int]]:
    """Return the tokens that the sources of a mixture by weights have, by source and part.

    Raises: MissingOutputError where a split of a source is not made; ConfigError of sources that
    are not weighed, or of one alone.
    """
    config = graph.dataset.of(MixtureConfig)
    if config.amount != "weight" or len(config.sources) < 2:
        raise ConfigError(
            where=f"{graph.dataset.name}: mixture.sources",
            expected="two sources by weight, or more",
            found=f"{len(config.sources)} by {config.amount}",
            remedy="give each a `weight:`; what it is does not matter to the candidates",
        )
    return total_tokens(graph.source_sizes, graph.dataset.parts)


def natural_shares(
    config: MixtureConfig, available: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
    """Return the share of each source in the tokens that all have of the part that is mixed."""
    of_part = {name: has[config.parts[0]] for name, has in available.items()}
    return {name: num / sum(of_part.values()) for name, num in of_part.items()}


def draw(
    dataset: Dataset, available: Mapping[str, Mapping[str, int]], how: Draw
) -> tuple[list[Candidate], int]:
    """Return candidates of a mixture whose sources have these tokens, and how many draws were
    refused; no two have the same weights.

    The same seed gives the same candidates, with every version of numpy: RandomState is frozen.

    Raises: ConfigError for bounds that no weights have, and where MOST_DRAWS give too few
    candidates.
    """
    config = dataset.of(MixtureConfig)
    shares = natural_shares(config, available)
    _check(how, [*shares])
    low, high = np.array([how.bounds.get(name, (0.0, 1.0)) for name in shares]).T
    parameters = how.alpha * np.array([*shares.values()])
    random = np.random.RandomState(how.seed)  # Generator's draws may change
    found: dict[tuple[float, ...], Candidate] = {}
    refused = Counter[str]()
    while len(found) < how.candidates and refused.total() < MOST_DRAWS:
        drawn = random.dirichlet(parameters)
        rounded = tuple(np.maximum(drawn, LEAST_WEIGHT).round(6).tolist())
        weights = dict(zip(shares, rounded, strict=True))
        if not ((low <= drawn) & (drawn <= high)).all():  # none is, of nan
            refused["the bounds"] += 1
        elif rounded in found:
            refused["weights drawn before"] += 1
        elif (planned := _planned(config, weights, available)) is None:
            refused["mixture.tokens and max_epochs"] += 1
        else:
            number = f"{len(found):0{len(str(how.candidates - 1))}}"
            found[rounded] = Candidate(f"{dataset.name}-{number}", weights, planned)
    if len(found) < how.candidates:
        why = ", ".join(f"{num:,} for {of}" for of, num in refused.most_common())
        raise ConfigError(
            where=f"{dataset.name}: --candidates",
            expected=f"{how.candidates:,} weightings, {MOST_DRAWS:,} draws refused at most",
            found=f"{len(found):,}; refused were {why}",
            remedy="widen the bounds, raise max_epochs or --alpha, or lower mixture.tokens",
        )
    return [*found.values()], refused.total()


def _check(how: Draw, names: list[str]) -> None:
    """Refuse what nothing can be drawn by."""
    problem = None
    if how.alpha <= 0:
        problem = "--alpha", "a number above 0", f"{how.alpha:g}"
    for name, (low, high) in how.bounds.items():
        if name not in names:
            problem = "--bounds", f"one of the sources {', '.join(names)}", name
        elif not 0 <= low <= high <= 1:
            problem = "--bounds", "shares, the smaller first: 0.1:0.6", f"{low:g}:{high:g}"
    least = sum(how.bounds.get(name, (0.0, 1.0))[0] for name in names)
    most = sum(how.bounds.get(name, (0.0, 1.0))[1] for name in names)
    if problem is None and not least <= 1 <= most:
        problem = "--bounds", "shares that can add up to 1", f"{least:g} to {most:g} together"
    if problem is not None:
        where, expected, found = problem
        remedy = nearest(found, names) or "correct it"
        raise ConfigError(where=where, expected=expected, found=found, remedy=remedy)


def _planned(
    config: MixtureConfig, weights: Mapping[str, float], available: Mapping[str, Mapping[str, int]]
) -> dict[str, int] | None:
    """Return the tokens of each source by some weights; None where these cannot be."""
    sources = {
        name: MixtureSource(weight=weights[name], max_epochs=of.max_epochs)
        for name, of in config.sources.items()
    }
    try:
        planned = plan_parts(config.model_copy(update={"sources": sources}), available)
    except ConfigError:
        return None
    return {name: of[config.parts[0]] for name, of in planned.items()}


def yamls_of(
    declaration: Declaration, candidates: Sequence[Candidate], folder: Path
) -> dict[Path, str]:
    """Return the text of a YAML in a folder for each candidate, which is declared as the mixture is
    but for its name and weights.

    Relative paths start where those of the folder do, so that store and sources are the same.

    Raises: ConfigError where a source is declared in no file.
    """
    project = find_project(folder)
    base = project.root if project else folder.resolve()

    def from_base(path: Path) -> str:
        return Path(os.path.relpath(path.resolve(), base)).as_posix()

    attributes, store = dict(declaration.attributes), declaration.attributes.get("store")
    if not isinstance(store, str) or not (is_url(store) or expanded(store).is_absolute()):
        attributes["store"] = from_base(declaration.base / expanded(store or DEFAULT_STORE))
    mixture = attributes["mixture"]
    given = {name: dict(fields) for name, fields in mixture["sources"].items()}
    for name, fields in given.items():
        found = source_of(dataset_of(name), fields.get("config"), declaration, where=name)
        if not found.path.is_file():
            remedy = "write the YAML into a file"
            expected = "a source that a file declares"
            raise ConfigError(where=name, expected=expected, found=str(found.path), remedy=remedy)
        fields["config"] = from_base(found.path)
    written = {}
    for of in candidates:
        sources = {name: {**given[name], "weight": weight} for name, weight in of.weights.items()}
        own = {**attributes, "name": of.name, "mixture": {**mixture, "sources": sources}}
        fields = {"type": COMPONENT_TYPE, "attributes": own}
        text: str = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
        written[folder / f"{of.name}.yaml"] = text
    return written
