"""Datasets loaded from what declares them: a YAML file, a project or plain values; those that are
mixtures with the datasets that they are made of."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokflow.errors import ConfigError, first_five
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declarations.declared import Declaration, find_declarations
from tokflow.pipeline.declarations.project import find_project
from tokflow.pipeline.declarations.templates import resolve_templates, showing_templates
from tokflow.pipeline.declarations.yaml_file import OF_SOURCES, datasets_in
from tokflow.split.mixture import MixtureConfig, MixtureSource
from tokflow.store.config import expanded
from tokflow.store.store import Store


def load_datasets(
    path: Path, *, base: Path | None = None, store: str | Path | Store | None = None
) -> list[Dataset]:
    """Return the datasets that a YAML file declares, as components or by their attributes alone.

    Relative paths in it start at `base`, by default `base_of(path)`. `store`, a folder or its URL,
    takes the place of the one in the file.

    Raises: ConfigError with the line of a syntax error, or the key that is wrong and the
    nearest that exists.
    """
    base = base or base_of(path)
    return [
        load_attributes(attributes, base=base, store=store, where=where, file=path)
        for where, attributes in datasets_in(path)
    ]


def base_of(path: Path) -> Path:
    """Return where relative paths of a YAML file start: at the root of the project that it is in
    or, if it is in none, at its own folder."""
    folder = path.resolve().parent
    project = find_project(folder)
    return project.root if project else folder


def load_attributes(
    attributes: Mapping[str, Any],
    *,
    base: Path,
    store: Store | Path | str | None = None,
    where: str,
    file: Path | None = None,
    scope: Mapping[str, Any] | None = None,
) -> Dataset:
    """Return the dataset that attributes declare, with templates in them; see `make_dataset`.

    `scope`: what templates may name besides what they always may.

    Raises: ConfigError.
    """
    resolved = resolve_templates(attributes, base=base, where=where, scope=scope)
    with showing_templates(attributes, resolved):
        return make_dataset(resolved, base=base, store=store, where=where, file=file)


def make_dataset(
    attributes: Mapping[str, Any],
    *,
    base: Path,
    store: Store | Path | str | None = None,
    where: str,
    file: Path | None = None,
) -> Dataset:
    """Return the dataset that plain values declare, as YAML gives them.

    `where` is what messages call the place they came from; for the others see `Dataset.at`. `file`:
    the YAML that they stand in, whose other datasets a mixture may be made of.

    Raises: ConfigError.
    """
    if attributes.get("mixture") is None:
        return Dataset.read(attributes, where=where).at(base, store=store, where=where)
    values, sources = _with_sources(attributes, base=base, store=store, where=where, file=file)
    dataset = Dataset.read(values, where=where).at(base, store=store, where=where)
    dataset._sources = sources
    _check_store(dataset, where)
    return dataset


def load_declared(
    declaration: Declaration,
    store: Store | Path | str | None = None,
    *,
    scope: Mapping[str, Any] | None = None,
) -> Dataset:
    """Return the dataset that a YAML file of a project declares; `store` and `scope` as those of
    `load_attributes`.

    Raises: ConfigError that says what is wrong in it.
    """
    if declaration.error is not None:
        raise declaration.error
    fields, base = declaration.attributes, declaration.base
    return load_attributes(fields, base=base, store=store, where=declaration.where, scope=scope)


def as_declared_now(datasets: Sequence[Dataset]) -> Iterator[tuple[Dataset, ConfigError | None]]:
    """Yield each dataset as its YAML is now, which may have been edited since it was loaded.

    One that is in no project, or declared no more, is as it was; so is one that cannot be loaded
    now, with the error.
    """
    projects = {dataset.base: find_project(dataset.base) for dataset in datasets}
    declared = {
        (base, of.name): of
        for base, project in projects.items()
        for of in (find_declarations(project) if project and project.root == base else ())
    }
    for dataset in datasets:
        declaration = declared.get((dataset.base, dataset.name))
        try:
            yield (load_declared(declaration) if declaration else dataset), None
        except ConfigError as error:
            yield dataset, error


def _with_sources(
    attributes: Mapping[str, Any],
    *,
    base: Path,
    store: Store | Path | str | None,
    where: str,
    file: Path | None,
) -> tuple[dict[str, Any], tuple[Dataset, ...]]:
    """Return the attributes of a mixture with all that it has from its sources, and the datasets
    that these are, in the order of its YAML.

    `attributes`: the mixture's. `store`: takes the place of the sources' own. `file`: the YAML that
    declares the mixture, if one does.

    Raises: ConfigError, also where a section stands in the mixture that its sources have, and for
    a source that is a mixture, or has no part to be mixed.
    """
    if own := [name for name in OF_SOURCES if name in attributes]:
        raise ConfigError(
            where=f"{where}: {own[0]}",
            expected="none, for a mixture has it from its sources",
            found=f"`{own[0]}:` beside `mixture:`",
            remedy="remove it",
        )
    config = MixtureConfig.read(attributes["mixture"], where=f"{where}: mixture")
    found = []
    for name, source in config.sources.items():
        place = f"{where}: mixture.sources.{name}"
        if name == attributes.get("name"):
            raise _error(place, "another dataset", "the mixture itself", "name its sources")
        dataset = _load(name, source, base=base, store=store, file=file, where=place)
        if config.part not in dataset.split.parts:
            expected = f"a part {config.part!r}, which is mixed"
            remedy = "name another by `mixture.part`, or add it to its split"
            raise _error(place, expected, ", ".join(dataset.split.parts), remedy)
        found.append(dataset)
    return {**_sections(config, found), **attributes, "mixture": config}, tuple(found)


def _sections(config: MixtureConfig, sources: Sequence[Dataset]) -> dict[str, Any]:
    """Return the sections that a mixture has from its sources: the tokenizer of the first, which is
    that of all, and the parts and columns that any of them has.

    Its documents are shuffled unless `shuffle` says otherwise, for they come source by source.
    """
    parts = {name: None for of in sources for name in (config.part, *of.split.parts)}
    columns = (name for of in sources for name in of.documents.columns)
    in_order = sorted(sources, key=lambda source: f"{source.name}/")  # as exports have them
    kept = (name for of in in_order for name in of.documents.keep_columns)
    return {
        "shuffle": {"documents": "dataset"},
        "raw": {"files": [of.name for of in sources]},
        "documents": {"text": _distinct(columns), "keep_columns": _distinct(kept)},
        "tokenizer": sources[0].tokenizer.model_dump(),
        "split": {"parts": {name: {"files": "*"} for name in parts}},
    }


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _check_store(dataset: Dataset, where: str) -> None:
    """Make sure that the outputs of all sources are where the mixture's are, so that any of them is
    found from it.

    Raises: ConfigError.
    """
    for source in dataset.sources:
        if source.store != dataset.store:
            raise _error(
                f"{where}: mixture.sources.{source.name}",
                f"a dataset with the store of the mixture, {dataset.store.name}",
                source.store.name,
                "give both the same `store:`",
            )


def _load(
    name: str,
    source: MixtureSource,
    *,
    base: Path,
    store: Store | Path | str | None,
    file: Path | None,
    where: str,
) -> Dataset:
    """Load a source: from the file that it names or, by its name, from the mixture's own file or
    project."""
    path = file if source.config is None else base / expanded(source.config)
    inside = [] if path is None else list(datasets_in(path))
    for of_source, attributes in inside:
        if path is not None and attributes.get("name") == name:
            _refuse_mixture(attributes, where)
            place = base_of(path)
            return load_attributes(attributes, base=place, store=store, where=of_source, file=path)
    project = find_project(base) if source.config is None else None
    declared = {of.name: of for of in (find_declarations(project) if project else ())}
    if name in declared:
        _refuse_mixture(declared[name].attributes, where)
        return load_declared(declared[name], store)
    others = list(dict.fromkeys([*(str(of.get("name")) for _, of in inside), *declared]))
    raise _error(
        where,
        f"a dataset that is declared: {first_five(others)}" if others else "one that is declared",
        f"none called {name!r} in {path or (project.defs if project else base)}",
        "correct the name, or say where it is declared: `config: path/to/dataset.yaml`",
    )


def _refuse_mixture(attributes: Mapping[str, Any], where: str) -> None:
    if attributes.get("mixture") is not None:
        remedy = "name the sources of that one, with their weights"
        raise _error(where, "a dataset with raw files", "a mixture", remedy)


def _error(where: str, expected: str, found: str, remedy: str) -> ConfigError:
    return ConfigError(where=where, expected=expected, found=found, remedy=remedy)
