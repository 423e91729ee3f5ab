"""The datasets that the YAML files of a project declare, by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from tokflow.errors import ConfigError, first_five
from tokflow.pipeline.dagster_fields import dagster_name
from tokflow.pipeline.declarations.project import Project, find_project
from tokflow.pipeline.declarations.templates import resolve_templates
from tokflow.pipeline.declarations.yaml_file import (
    COMPONENT_TYPE,
    attributes_of,
    each_dataset,
    place_of,
    read_documents,
)

YAML_NAMES = ("defs.yaml", "defs.yml", "component.yaml")
"""Of these Dagster reads the first that a folder has."""

FOLDER_TYPE = "DefsFolderComponent"
"""Last word of the type of a component that lets Dagster look into the folders below it, too."""


_NAMES_DIFFER = "another name for each dataset of a project, hyphens taken for underscores"


@dataclass(frozen=True, slots=True)
class Declaration:
    """One dataset that a YAML file declares."""

    name: str
    """Its `name`; of a file that cannot be read, the name of its folder."""
    path: Path
    index: int
    """Ordinal of the document in the file."""
    base: Path
    """Folder that relative paths start from."""
    attributes: Mapping[str, Any]
    """What the YAML says, templates and all."""
    where: str
    """What messages call it."""
    error: ConfigError | None = None
    """What keeps it from being loaded, as far as that is known without its other attributes."""

    def is_alike(self, other: Self) -> bool:
        """Return whether Dagster takes the names of both for one."""
        return dagster_name(self.name) == dagster_name(other.name)


def list_declared() -> dict[str, Declaration]:
    """Return the datasets of the project one stands in by name, sorted; see `find_declarations`."""
    project = find_project()
    declared: dict[str, Declaration] = {}
    for of in find_declarations(project) if project else ():
        declared.setdefault(of.name, of)
    return dict(sorted(declared.items()))


def find_declarations(project: Project) -> list[Declaration]:
    """Return the datasets of a project in the order of their files, those that are broken, too.

    A dataset is declared by a document of type `tokflow.components.TextDataset` in a `defs.yaml`,
    at any depth below the folder of the project's definitions, and has the name that stands there.
    Where several have one name, or one that Dagster takes for the same, none can be loaded.

    Raises: ConfigError where the project's own settings cannot be read.
    """
    found = list(_find(project.defs, project.root)) if project.defs.is_dir() else []
    result = [of for of in found if of.error is None]
    for of in found:
        if of.error is not None and any(of.is_alike(other) for other in result):
            of = replace(of, name=of.where)  # the name was a guess
        if of.error is not None:
            result.append(of)
    clashing = {of.where: same for of in result if len(same := _alike(of, result)) > 1}
    result = [
        replace(of, error=_clash(clashing[of.where])) if of.where in clashing else of
        for of in result
    ]
    result = sorted(result, key=lambda of: (of.path, of.index))
    executors = [of for of in result if of.attributes.get("executor") is not None]
    return [
        replace(of, error=of.error or _other_executor(of, executors[0]))
        if of in executors and of.attributes["executor"] != executors[0].attributes["executor"]
        else of
        for of in result
    ]


def is_first(declaration: Declaration, declarations: Sequence[Declaration]) -> bool:
    """Return whether no other that Dagster takes for the same comes before: it is shown for all."""
    return _alike(declaration, declarations)[0] == declaration


def _alike(declaration: Declaration, declarations: Sequence[Declaration]) -> list[Declaration]:
    return [of for of in declarations if of.is_alike(declaration)]


def check_new(name: str, path: Path, project: Project) -> None:
    """Refuse a dataset to be declared in `path`, a YAML of a project's definitions, where it would
    disable or hide others, or where Dagster does not look.

    Raises: ConfigError.
    """
    folder = path.parent
    for of in find_declarations(project):
        if dagster_name(of.name) == dagster_name(name):
            raise ConfigError(
                where=f"dataset {name!r}",
                expected=_NAMES_DIFFER,
                found=f"{of.name!r} in {of.where}",
                remedy="give it another name",
            )
    if not path.is_relative_to(project.defs):
        return
    expected, found = "a folder that Dagster looks into", ""
    if hidden := sorted(of for name in YAML_NAMES for of in folder.rglob(name)):
        expected = "a folder with no YAML of Dagster's in or below it"
        found = first_five(list(map(str, hidden)))
    elif any(map(_is_passed_over, folder.relative_to(project.defs).parts)):
        found = "one that it passes over, as any hidden one"
    elif closed := _closed_by(folder, project):
        found = f"one below {closed}, which stands for the whole folder"
    if found:
        raise ConfigError(
            where=path, expected=expected, found=found, remedy="choose another folder"
        )


def _closed_by(folder: Path, project: Project) -> Path | None:
    """Return the file above a folder that keeps Dagster from looking into it."""
    above = [of for of in folder.parents if of.is_relative_to(project.defs)]
    files = filter(None, map(_yaml_of, above))
    return next((of for of in files if not _opens(of, project.root)), None)


def none_declared(where: str, declared: Mapping[str, Declaration]) -> ConfigError:
    """Return the error of a dataset that is not, of those that are."""
    project = find_project()
    return ConfigError(
        where=where,
        expected=f"one of {', '.join(declared)}" if declared else "a dataset",
        found=f"none of that name in {project.defs}"
        if project and declared
        else f"none declared in {project.defs}"
        if project
        else f"no project in {Path.cwd()} or above",
        remedy="correct the name, declare it in a defs.yaml there, or name a file by --config"
        if project
        else "go to a folder of a project, whose pyproject.toml has [tool.dg.project], name it by "
        "--project, or name a file by --config",
    )


def _find(folder: Path, base: Path) -> Iterator[Declaration]:
    """Yield those below a folder: where it has a YAML file, Dagster looks no deeper unless that
    says so."""
    path = _yaml_of(folder)
    if path is not None:
        yield from _declarations(path, base)[0]
    if path is None or _opens(path, base):
        for below in sorted(folder.iterdir()):
            if below.is_dir() and not _is_passed_over(below.name):
                yield from _find(below, base)


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _yaml_of(folder: Path) -> Path | None:
    """Return the file of a folder that Dagster reads."""
    return next((path for name in YAML_NAMES if (path := folder / name).exists()), None)


def _opens(path: Path, base: Path) -> bool:
    """Return whether a file lets Dagster look into the folders below it, too."""
    return any(of.endswith(FOLDER_TYPE) for of in _declarations(path, base)[1])


def _declarations(path: Path, base: Path) -> tuple[list[Declaration], list[str]]:
    """Return the datasets of one file, and the types of all its components."""
    name = path.parent.name
    try:
        documents = _parsed(path, path.stat().st_mtime_ns)
    except ConfigError as error:
        is_ours = COMPONENT_TYPE in path.read_text(encoding="utf-8", errors="replace")
        return [Declaration(name, path, 0, base, {}, str(path), error)] if is_ours else [], []
    types = [str(fields.get("type", COMPONENT_TYPE)) for fields in documents]
    package = COMPONENT_TYPE.rpartition(".")[0]
    return [
        declaration
        for index, fields in enumerate(documents)
        if types[index].startswith(package)
        for declaration in _of_document(
            Declaration(name, path, index, base, {}, place_of(path, index)), fields
        )
    ], types


@lru_cache(maxsize=1_000)
def _parsed(path: Path, stamp: int) -> list[dict[str, Any]]:
    return read_documents(path)


def declared_by(document: Declaration, attributes: Mapping[str, Any]) -> list[Declaration]:
    """Return the datasets, one or several, that the attributes of a component declare.

    `document`: says where they stand, and what one is called that has no name.
    """
    try:
        each = list(each_dataset(attributes, where=document.where))
    except ConfigError as error:
        return [replace(document, error=error)]
    return [_named(replace(document, where=where, attributes=own)) for where, own in each]


def _of_document(document: Declaration, fields: Mapping[str, Any]) -> list[Declaration]:
    try:
        return declared_by(document, attributes_of(fields, where=document.where))
    except ConfigError as error:
        return [replace(document, error=error)]


def _named(declaration: Declaration) -> Declaration:
    """Return the declaration with the name that its attributes have."""
    given = {"name": declaration.attributes.get("name")}
    try:
        name = resolve_templates(given, base=declaration.base, where=declaration.where)["name"]
    except ConfigError as error:
        return replace(declaration, attributes={}, error=error)
    return replace(declaration, name=name if isinstance(name, str) else declaration.name)


def _clash(declarations: Sequence[Declaration]) -> ConfigError:
    """Return the error of datasets that have one name, or one that Dagster takes for the same."""
    names = list(dict.fromkeys(of.name for of in declarations))
    return ConfigError(
        where=f"datasets {' and '.join(map(repr, names))}"
        if len(names) > 1
        else f"dataset {names[0]!r}",
        expected=_NAMES_DIFFER,
        found=" and ".join(of.where for of in declarations),
        remedy="rename all but one of them",
    )


def _other_executor(declaration: Declaration, first: Declaration) -> ConfigError:
    return ConfigError(
        where=f"{declaration.where}: executor",
        expected=f"{first.attributes['executor']!r}, as in {first.where}, since a code location "
        "has one executor",
        found=repr(declaration.attributes["executor"]),
        remedy="name the same in both, or leave it out of one",
    )
