"""`tokflow mix`: candidates of a mixture, each a YAML with weights of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tokflow.cli.options import Configs, Json, ProjectFolder, StoreName
from tokflow.cli.selection import select
from tokflow.cli.terminal import print_json, print_rows, shown_path
from tokflow.errors import ConfigError
from tokflow.pipeline.candidates import (
    Candidate,
    Draw,
    draw,
    natural_shares,
    tokens_of_sources,
    yamls_of,
)
from tokflow.pipeline.declared import declared_in, list_declared
from tokflow.pipeline.mixture import MixtureGraph, graph_of
from tokflow.shown import counted
from tokflow.split.mixture import MixtureConfig

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
Bounds = Annotated[
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


def main(
    name: Name,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    candidates: Candidates = 64,
    alpha: Alpha = 1.0,
    seed: Seed = 0,
    bounds: Bounds = None,
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
    print_rows([_row(source, share, drawn) for source, share in shares.items()])
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


def _row(source: str, share: float, drawn: Sequence[Candidate]) -> dict[str, Any]:
    weights = [of.weights[source] for of in drawn]
    return {
        "source": source,
        "natural_fraction": share,
        "smallest_fraction": min(weights),
        "mean_fraction": sum(weights) / len(weights),
        "largest_fraction": max(weights),
    }
