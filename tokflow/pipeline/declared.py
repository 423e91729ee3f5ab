"""The datasets that YAML files declare, those of a project by name, and datasets loaded from them,
a mixture with the datasets that it is made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokflow.errors import ConfigError, first_five, nearest
from tokflow.pipeline.dataset import Dataset, dataset_type
from tokflow.pipeline.fields import dagster_name
from tokflow.pipeline.project import Project, find_project
from tokflow.pipeline.stages import STAGES
from tokflow.pipeline.yaml_file import (
    COMPONENT_TYPE,
    OF_SOURCES,
    STANDARD_INPUT,
    attributes_of,
    each_dataset,
    read_documents,
    resolve_templates,
    shown_document,
    with_templates,
)
from tokflow.split.mixture import MixtureConfig, dataset_of
from tokflow.stage import Stage
from tokflow.store.config import expanded
from tokflow.store.store import Store

YAML_NAMES = ("defs.yaml", "defs.yml", "component.yaml")
"""File names of components; Dagster reads the first that a folder has."""

FOLDER_TYPE = "DefsFolderComponent"
"""Last word of the type of a component below which Dagster looks for more components."""

NAMES_DIFFER = "another name for each dataset of a project, hyphens taken for underscores"


@dataclass(frozen=True, slots=True)
class Declaration:
    """A dataset as a YAML file declares it."""

    name: str
    """`name` of the YAML; the folder's name if the file cannot be read."""
    path: Path
    index: int
    """Ordinal of the document in the file."""
    base: Path
    """Folder that relative paths start from."""
    attributes: Mapping[str, Any]
    """Attributes as in the YAML, with unresolved templates."""
    where: str
    """Place that error messages name."""
    error: ConfigError | None = None
    """Reason why it cannot be loaded, if known before its attributes are checked."""
    stages: tuple[Stage, ...] = STAGES
    """The stages that the dataset has, parents first."""


def list_declared() -> dict[str, Declaration]:
    """Return the datasets of the current project by name, sorted; see `find_declarations`."""
    project = find_project()
    found = find_declarations(project) if project else []
    return {of.name: of for of in sorted(found, key=lambda of: of.name)}


def find_declarations(project: Project) -> list[Declaration]:
    """Return the datasets of a project, broken ones too, in the order of their files.

    A dataset is declared by a document of type `tokflow.components.TextDataset` in a `defs.yaml`,
    at any depth below the folder of the project's definitions, and has the name that stands there.
    Where several have one name, or one that Dagster takes for the same, none can be loaded.

    Raises: ConfigError where the project's own settings cannot be read.
    """
    found = list(_find(project.defs, project.root)) if project.defs.is_dir() else []
    found.sort(key=lambda of: (of.path, of.index))
    known = {dagster_name(of.name) for of in found if of.error is None}
    found = [
        # The name of one that cannot be read is a guess.
        replace(of, name=of.where) if of.error and dagster_name(of.name) in known else of
        for of in found
    ]
    first = next((of for of in found if of.attributes.get("executor") is not None), None)
    checked = []
    for of in found:
        error, executor = of.error, of.attributes.get("executor")
        if len(alike := _alike(of, found)) > 1:
            names = list(dict.fromkeys(of.name for of in alike))
            datasets = "datasets" if len(names) > 1 else "dataset"
            where = f"{datasets} {' and '.join(map(repr, names))}"
            places = " and ".join(of.where for of in alike)
            error = _error(where, NAMES_DIFFER, places, "rename all but one of them")
        elif error is None and first and executor not in (None, first.attributes["executor"]):
            error = _error(
                f"{of.where}: executor",
                f"{first.attributes['executor']!r}, as in {first.where}, since a code location "
                "has one executor",
                repr(executor),
                "name the same in both, or leave it out of one",
            )
        checked.append(replace(of, error=error))
    return checked


def is_first(declaration: Declaration, declarations: Sequence[Declaration]) -> bool:
    """Return whether a declaration is the first of its Dagster name; only the first is shown."""
    return _alike(declaration, declarations)[0] == declaration


def _alike(declaration: Declaration, declarations: Sequence[Declaration]) -> list[Declaration]:
    return [of for of in declarations if dagster_name(of.name) == dagster_name(declaration.name)]


def _find(folder: Path, base: Path) -> Iterator[Declaration]:
    """Yield the datasets below a folder; as Dagster does, look below a YAML only if it opens its
    folder."""
    path = next((path for name in YAML_NAMES if (path := folder / name).exists()), None)
    found, types = _declarations(path, base) if path else ([], [FOLDER_TYPE])
    yield from found
    if any(of.endswith(FOLDER_TYPE) for of in types):
        for below in sorted(folder.iterdir()):
            if below.is_dir() and not (below.name.startswith(".") or below.name == "__pycache__"):
                yield from _find(below, base)


def _declarations(path: Path, base: Path) -> tuple[list[Declaration], list[str]]:
    """Return the datasets of one file of a project, and the types of all its components."""
    document = Declaration(path.parent.name, path, 0, base, {}, str(path))
    try:
        documents = _parsed(path, path.stat().st_mtime_ns)
    except ConfigError as error:
        is_ours = COMPONENT_TYPE in path.read_text(encoding="utf-8", errors="replace")
        return [replace(document, error=error)] if is_ours else [], []
    types = [str(fields.get("type", COMPONENT_TYPE)) for fields in documents]
    package = COMPONENT_TYPE.rpartition(".")[0]
    return [
        declaration
        for index, fields in enumerate(documents)
        if types[index].startswith(package)
        for declaration in declared_by(document, fields, index=index, is_component=True)
    ], types


@lru_cache(maxsize=1_000)
def _parsed(path: Path, stamp: int) -> list[dict[str, Any]]:
    return read_documents(path)


def declared_by(
    document: Declaration, fields: Mapping[str, Any], *, index: int, is_component: bool
) -> list[Declaration]:
    """Return the datasets that a component declares, or its attributes alone.

    `document`: gives their path, and the name of one without `name`; `index`: its ordinal there.
    """
    document = replace(document, index=index, where=shown_document(document.path, index))
    try:
        attributes = attributes_of(fields, where=document.where) if is_component else fields
        each = list(each_dataset(attributes, where=document.where))
    except ConfigError as error:
        return [replace(document, error=error)]
    found = []
    for where, own in each:
        declaration = replace(document, where=where, attributes=own)
        try:
            name = resolve_templates({"name": own.get("name")}, where=where)["name"]
        except ConfigError as error:
            found.append(replace(declaration, attributes={}, error=error))
        else:
            found.append(replace(declaration, name=name) if isinstance(name, str) else declaration)
    return found


def declared_in(path: Path) -> Iterator[Declaration]:
    """Yield the datasets of a file, in a project or not; the attributes may stand alone."""
    folder = path.resolve().parent
    project = find_project(folder)
    document = Declaration(path.stem, path, 0, project.root if project else folder, {}, "")
    for index, fields in enumerate(read_documents(path)):
        is_bare = "name" in fields or "datasets" in fields  # with attributes of its documents
        is_component = "type" in fields or ("attributes" in fields and not is_bare)
        yield from declared_by(document, fields, index=index, is_component=is_component)


def load_datasets(path: Path, *, store: str | Path | Store | None = None) -> list[Dataset]:
    """Return the datasets that a YAML file declares, as components or by their attributes alone.

    Relative paths in it start at the root of the project that it is in or, if it is in none, at its
    own folder. `store`, a folder or its URL, takes the place of the one in the file.

    Raises: ConfigError with the line of a syntax error, or the key that is wrong and the
    nearest that exists.
    """
    return [load_declared(declaration, store) for declaration in declared_in(path)]


def load_declared(declaration: Declaration, store: Store | Path | str | None = None) -> Dataset:
    """Load a declared dataset; `store` overrides the one in its YAML.

    Raises: ConfigError that says what is wrong in it.
    """
    if declaration.error is not None:
        raise declaration.error
    attributes = declaration.attributes
    resolved = resolve_templates(attributes, where=declaration.where)
    try:
        return _made(replace(declaration, attributes=resolved), store)
    except ConfigError as error:
        raise with_templates(error, attributes, resolved) from None


def make_dataset(
    attributes: Mapping[str, Any],
    *,
    base: Path,
    store: Store | Path | str | None = None,
    where: str,
    stages: tuple[Stage, ...] = STAGES,
) -> Dataset:
    """Make a dataset of plain values, as YAML gives them.

    `where` is the place that error messages name; for `base` and `store` see `Dataset.at`.
    `stages`: those of the dataset, and of a mixture's sources.

    Raises: ConfigError.
    """
    return _made(Declaration("", Path(), 0, base, attributes, where, stages=stages), store)


def _made(declaration: Declaration, store: Store | Path | str | None) -> Dataset:
    """Make a dataset of attributes without templates, with its sources if it is a mixture."""
    where, attributes = declaration.where, declaration.attributes
    sources: tuple[Dataset, ...] = ()
    if attributes.get("mixture") is not None:
        attributes, sources = _with_sources(declaration, store)
    model = dataset_type(declaration.stages)
    dataset = model.read(attributes, where=where).at(declaration.base, store=store, where=where)
    dataset._sources = sources
    for source in sources:
        if source.store != dataset.store:
            raise _error(
                f"{where}: mixture.sources.{source.name}",
                f"a dataset with the store of the mixture, {dataset.store.name}",
                source.store.name,
                "give both the same `store:`",
            )
    return dataset


def as_declared_now(datasets: Sequence[Dataset]) -> Iterator[tuple[Dataset, ConfigError | None]]:
    """Reload each dataset from its YAML, which can have been edited since.

    One that is in no project, or declared no more, is as it was; so is one that cannot be loaded
    now, with the error.
    """
    projects = {base: find_project(base) for base in {of.base for of in datasets}}
    declared = {
        (base, of.name): of
        for base, project in projects.items()
        for of in (find_declarations(project) if project and project.root == base else ())
    }
    for dataset in datasets:
        declaration = declared.get((dataset.base, dataset.name))
        try:
            if declaration is not None:
                dataset = load_declared(replace(declaration, stages=dataset.known_stages))
            yield dataset, None
        except ConfigError as error:
            yield dataset, error


def _with_sources(
    declaration: Declaration, store: Store | Path | str | None
) -> tuple[dict[str, Any], tuple[Dataset, ...]]:
    """Return the attributes of a mixture completed from its sources, with the tokenizer of the
    first and the parts and columns of all, and the source datasets in the order of the YAML.
    `store` overrides that of the sources.

    Raises: ConfigError, also for a section that the sources have, and for a source that is a
    mixture or has no part to be mixed.
    """
    where, attributes = declaration.where, declaration.attributes
    if own := [name for name in OF_SOURCES if name in attributes]:
        expected = "none, for a mixture has it from its sources"
        said = f"`{own[0]}:` beside `mixture:`"
        raise _error(f"{where}: {own[0]}", expected, said, "remove it")
    config = MixtureConfig.read(attributes["mixture"], where=f"{where}: mixture")
    found: dict[str, Dataset] = {}
    for name, source in config.sources.items():
        place, of = f"{where}: mixture.sources.{name}", dataset_of(name)
        if of == attributes.get("name"):
            raise _error(place, "another dataset", "the mixture itself", "name its sources")
        dataset = load_declared(source_of(of, source.config, declaration, where=place), store)
        if found.setdefault(of, dataset) != dataset:
            expected = f"the dataset {of} that other sources are strata of"
            raise _error(place, expected, "another of this name", "give them one `config:`")
        strata = [f"{of}.{each}" for each in dataset.strata.expressions]
        if name not in (of, *strata):
            expected = (
                f"a stratum of {of}: {', '.join(strata)}" if strata else f"{of}, without strata"
            )
            raise _error(place, expected, name, nearest(name, strata) or "add it to its `strata`")
        for part in config.parts:
            if part not in dataset.split.parts:
                expected = f"a part {part!r}, which is mixed"
                remedy = "name another by `mixture.part`, or add it to its split"
                raise _error(place, expected, ", ".join(dataset.split.parts), remedy)
    sources = (*found.values(),)
    parts = {name: None for of in sources for name in (*config.parts, *of.split.parts)}
    columns = (name for of in sources for name in of.documents.columns)
    in_order = sorted(config.sources, key=lambda source: f"{source}/")  # as exports have them
    kept = (name for of in in_order for name in found[dataset_of(of)].documents.keep_columns)
    raw = {"files": [*config.sources]}
    sections: dict[str, Any] = {
        "documents": {"text": [*dict.fromkeys(columns)], "keep_columns": [*dict.fromkeys(kept)]},
        "tokenizer": sources[0].tokenizer.model_dump(),
        "split": {"parts": {name: {"files": "*"} for name in parts}},
        "shuffle": {"documents": "dataset"},  # else they come source by source
    }
    return {"raw": raw, **sections, **attributes, "mixture": config}, sources


def source_of(name: str, config: str | None, mixture: Declaration, *, where: str) -> Declaration:
    """Find the dataset of a source in its own file, `config`, or by name in the mixture's file or
    project. Raises: ConfigError."""
    path, base, has_file = mixture.path, mixture.base, config is not None
    if config is not None:
        path = base / expanded(config)
    project = None if has_file else find_project(base)
    is_read = has_file or path == STANDARD_INPUT or path.is_file()
    declared = {of.where: of for of in (declared_in(path) if is_read else ())}
    declared |= {of.where: of for of in (find_declarations(project) if project else ())}
    found = next((of for of in declared.values() if of.name == name), None)
    if found is None:
        names = first_five(list(dict.fromkeys(of.name for of in declared.values())))
        raise _error(
            where,
            f"a dataset that is declared: {names}" if names else "one that is declared",
            f"none called {name!r} in {path if is_read else project.defs if project else base}",
            "correct the name, or say where it is declared: `config: path/to/dataset.yaml`",
        )
    if found.attributes.get("mixture") is not None:
        remedy = "name the sources of that one, with their weights"
        raise _error(where, "a dataset with raw files", "a mixture", remedy)
    return replace(found, stages=mixture.stages)


def _error(where: str, expected: str, found: str, remedy: str) -> ConfigError:
    return ConfigError(where=where, expected=expected, found=found, remedy=remedy)
