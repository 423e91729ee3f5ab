"""Writer of commented dataset YAML for `tokflow init` and `dg scaffold defs`, with patterns for the
files, folders and globs that a user names."""

import fnmatch
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from tokflow.errors import ConfigError, first_five, shortened
from tokflow.pipeline.dagster_fields import dagster_name
from tokflow.pipeline.dataset import DEFAULT_STORE
from tokflow.pipeline.declared import NAMES_DIFFER, YAML_NAMES, find_declarations, why_passed_over
from tokflow.pipeline.project import Project
from tokflow.pipeline.suggestion import Suggestion
from tokflow.pipeline.yaml_file import COMPONENT_TYPE, as_template, is_template
from tokflow.raw import RawConfig, escaped, list_raw
from tokflow.raw.globs import (
    COMPRESSED_SUFFIXES,
    FILE,
    SUFFIXES,
    find_below,
    format_of_name,
    has_wildcard,
    unescaped,
)
from tokflow.raw.source_splits import is_saved
from tokflow.shown import printable, redact
from tokflow.store.config import expanded
from tokflow.store.urls import hub_url, is_url

HEAD = """\
One dataset = one file like this; change what differs. Unknown keys are errors. Relative paths
start at {start}. `tokflow plan` says what a run would build, and why."""

NAME = "its folder in the store; in a project also for `tokflow run` and Dagster"

RAW = """\
Each raw file is one partition: change one, and only what came from it is built again.
Files are read as they are; parquet, jsonl, csv, txt and arrow, plain or compressed."""

ROWS = """\
A document is one row; its text is in this column (or field, for jsonl) and is never altered."""

TXT = """\
A document is a whole txt file (`file`), one `line` of it, or the text between `separator`s; it
is never altered."""

TRAINED = """\
Trained here, on all raw files (`files: part-0.parquet` would train it on one, so that a change
of another makes no token again). For an existing one: {kind: tiktoken, name: gpt2},
{kind: huggingface, name: openai-community/gpt2} or {kind: file, name: path/tokenizer.json}."""

EXISTING = """\
Its bytes are kept in the store, so that later runs make the same tokens. Others:
{kind: tiktoken, name: gpt2}, {kind: huggingface, name: openai-community/gpt2},
{kind: file, name: path/tokenizer.json}, {kind: trained, vocab_size: 8_192}."""

LIMIT = "limit: {documents: 1_000} # the first of each file; `scope: dataset`: of all together"
KEPT = "# raw columns that every index keeps"
SHUFFLE = "shuffle: {seed: 1337, documents: dataset} # documents in an order of the seed"

CHARACTERS = """\
Parts by character offset through all raw files (`scope: file` counts in each). A part without
`characters` takes the rest. `boundary: document` would put a document whole into the part that
its first character falls in; there are too few documents here for that."""

HASHES = """\
Shares of the documents by a hash of their text: a text stays in its part when files come and
go, and equal texts are in one part. Other forms: {fraction: 0.9}, {start: 0, documents: 1_000},
{start: 0, characters: 1_000_000}, {files: "val-*.parquet"}."""

SOURCE_SPLITS = """\
The splits that the source itself has; one that no part takes is not fetched. Other forms:
{hash_fraction: 0.99}, {fraction: 0.9}, {start: 0, characters: 1_000_000}."""

PACKING = """\
Tokens to rows for the model: documents end to end, each ended by EOS, in rows of 1,024.
Other strategies: best_fit, pool, first_fit, greedy, one_document."""

EXPORTS = """\
Any number of formats, each with its own manifest of counts, checksums and lineage."""

BIN = "nanoGPT's: token ids and nothing else"
PARQUET = "input_ids, attention_mask, segment_ids and position_ids"

EXECUTOR = """\
Steps of assets run in the process of their run: a process for each takes seconds to start.
It holds for the whole code location, which has one executor."""

STORE = """\
Where everything that is built goes; a run builds again what is deleted."""


def dataset_yaml(
    name: str,
    files: Sequence[str],
    suggested: Suggestion,
    *,
    in_project: bool,
    tokenizer: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a YAML file that declares a dataset of raw files, given as patterns.

    `in_project` says where relative paths of such a file start. `tokenizer`: the section; None for
    one that is trained on the raw files.
    """
    about_tokenizer = EXISTING if tokenizer else _about_training(suggested)
    tokenizer = tokenizer or _trained(suggested)
    attributes = [
        f"name: {_plain(name)} # {NAME}\n",
        _section(RAW, "raw", {"files": files[0] if len(files) == 1 else list(files)}),
        _section(_about_documents(suggested), "documents", suggested.documents)
        + "".join(f"  # {line}\n" for line in _more_of_documents(suggested)),
        _section(about_tokenizer, "tokenizer", tokenizer),
        _section(_about_split(suggested.split), "split", suggested.split) + f"# {SHUFFLE}\n",
        _section(PACKING, "packing", {"strategy": "concat", "sequence_length": 1024}),
        f"{_comment(EXPORTS)}exports:\n  - bin # {BIN}\n  - parquet # {PARQUET}\n",
        f"{_comment(STORE)}store: {DEFAULT_STORE}\n",
    ]
    if in_project:
        attributes.append(f"{_comment(EXECUTOR)}executor: in_process\n")
    lines = "\n".join(attributes).splitlines(keepends=True)
    head = HEAD.format(start="the project's folder" if in_project else "this file's folder")
    indented = "".join(line if line == "\n" else f"  {line}" for line in lines)
    return f"{_comment(head)}type: {COMPONENT_TYPE}\nattributes:\n{indented}"


def _about_documents(suggested: Suggestion) -> str:
    lines = [TXT if "document_per" in suggested.documents else ROWS]
    if suggested.others:
        lines.append(f"Others with text: {_named(suggested.others)}.")
    if suggested.pair:
        lines.append("In place of `text:`, both of a pair, with the loss on the completion alone:")
        lines.append(f"{suggested.pair}.")
    if suggested.chats:
        lines.append(f"`messages:` in place of `text:` reads chats: {_named(suggested.chats)}.")
    if suggested.first_reject is not None:
        lines.append("Records that are no document are set aside, listed and counted, such as")
        lines.append(printable(suggested.first_reject))
    return "\n".join(lines)


def _about_split(split: Mapping[str, Any]) -> str:
    if "scope" in split:
        return CHARACTERS
    is_of_source = any("source_split" in part for part in split["parts"].values())
    return SOURCE_SPLITS if is_of_source else HASHES


def _named(columns: Sequence[str]) -> str:
    return printable(", ".join(shortened(columns)))


def _trained(suggested: Suggestion) -> dict[str, Any]:
    at_most = {"max_characters": suggested.max_characters} if suggested.max_characters else {}
    return {"kind": "trained", "vocab_size": suggested.vocab_size, **at_most}


def _more_of_documents(suggested: Suggestion) -> list[str]:
    """Return optional fields as comments, with values that fit the dataset."""
    if not suggested.others:
        return [LIMIT]
    kept = ", ".join(json.dumps(of, ensure_ascii=False) for of in suggested.others[:3])
    return [f"keep_columns: [{printable(kept)}] {KEPT}", LIMIT]


def _about_training(suggested: Suggestion) -> str:
    text = TRAINED
    if suggested.max_characters is not None:
        text += "\nOf each raw file `max_characters` are enough to train on."
    return text


def _section(comment: str, name: str, fields: Mapping[str, Any]) -> str:
    """Write a section of plain values, lists and mappings as YAML."""
    lines = [f"{name}:"]
    for key, value in fields.items():
        if isinstance(value, list):
            lines += [f"  {key}:", *(f"    - {_plain(of)}" for of in value)]
        elif isinstance(value, Mapping):
            lines += [f"  {key}:", *(f"    {part}: {_inline(of)}" for part, of in value.items())]
        else:
            lines.append(f"  {key}: {_plain(value)}")
    return _comment(comment) + "".join(f"{line}\n" for line in lines)


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())


def _inline(fields: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{key}: {_plain(value)}' for key, value in fields.items())}}}"


def _plain(value: str | float) -> str:
    """Write a number or text as YAML, quoted if it would be read as something else, and as a
    template if it looks like one."""
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    style = None
    if isinstance(value, str) and (is_template(value) or not value.isprintable()):
        value, style = as_template(value) if is_template(value) else value, '"'
    text: str = yaml.safe_dump(value, allow_unicode=True, width=sys.maxsize, default_style=style)
    return text.removesuffix("...\n").strip()


def check_new(name: str, path: Path, project: Project) -> None:
    """Raise if a new dataset in `path` would disable or hide other datasets of the project, or
    Dagster would not find it.

    Raises: ConfigError.
    """
    for of in find_declarations(project):
        if dagster_name(of.name) == dagster_name(name):
            raise ConfigError(
                where=f"dataset {name!r}",
                expected=NAMES_DIFFER,
                found=f"{of.name!r} in {of.where}",
                remedy="give it another name",
            )
    if not path.is_relative_to(project.defs):
        return
    hidden = sorted(str(of) for name in YAML_NAMES for of in path.parent.rglob(name))
    if found := first_five(hidden) or why_passed_over(path.parent, project):
        below = "a folder with no YAML of Dagster's in or below it"
        expected = below if hidden else "a folder that Dagster looks into"
        remedy = "choose another folder"
        raise ConfigError(where=path, expected=expected, found=found, remedy=remedy)


def patterns_of(named: Sequence[str], *, here: Path, store: Path) -> tuple[str, ...]:
    """Return absolute patterns for the named raw files, or the URL of a single hub dataset.

    A folder stands for the files below it of one format: the one with the most bytes; one that
    `save_to_disk` wrote stands for itself. Several files, as a shell makes them of a glob, are a
    glob again where one matches just these (`part-*.jsonl`), so that files which come later belong
    to the dataset. No pattern matches what will be in `store`: a folder that holds it stands for
    its other folders, each with a pattern.

    Raises: ConfigError for a URL, a folder without a file of a known format and a glob that would
    match outputs.
    """
    patterns: list[str] = []
    if len(named) == 1 and hub_url(named[0]) is not None:
        return (named[0],)
    for name in named:
        if is_url(name):
            raise ConfigError(
                where=redact(name),
                expected="raw files of this machine, or a dataset of the hub alone, to look at",
                found="a URL",
                remedy="download one of the files, name that, and put the URL into `raw.files` "
                "of what is written",
            )
        path = Path(os.path.normpath(here / expanded(name)))
        if not path.exists():
            escaped_here = Path(escaped(str(here)), expanded(name))
            patterns.append(os.path.normpath(escaped_here))
        elif path.is_dir() and format_of_name(path.name) is None and not is_saved(path):
            patterns += _in_folder(path, store)
        else:
            patterns.append(escaped(str(path)))
    glob = _glob_of([Path(os.path.normpath(here / name)) for name in named], store)
    found = (glob,) if glob is not None else tuple(dict.fromkeys(patterns))
    for pattern in found:
        _check_outside(pattern, store)
    return found


def shortened_to(base: Path, patterns: Sequence[str]) -> list[str]:
    """Return the patterns relative to `base` where possible."""
    return [pattern.removeprefix(f"{escaped(str(base))}/") for pattern in patterns]


def name_of(patterns: Sequence[str]) -> str:
    """Return a dataset name for the patterns: of the single file, or of the folder."""
    if len(patterns) == 1 and not has_wildcard(patterns[0]):
        name = unescaped(Path(patterns[0]).name)
        return as_name(name.removesuffix(_suffix(name)))
    folders = [
        [*takewhile(lambda part: not has_wildcard(part), Path(pattern).parent.parts)]
        for pattern in patterns
    ]
    return as_name(unescaped(Path(os.path.commonpath([Path(*parts) for parts in folders])).name))


def as_name(text: str) -> str:
    """Return the nearest valid dataset name."""
    text = re.sub(r"[^A-Za-z0-9-]+", "_", text)
    return re.sub(r"[-_]{2,}", "_", text)[:100].strip("-_") or "dataset"


def _check_outside(pattern: str, store: Path) -> None:
    if _is_in(pattern, store):
        raise ConfigError(
            where=pattern,
            expected=f"raw files outside of {store}, where all outputs go",
            found="a path or glob that matches files in it",
            remedy="name the folders of the raw files instead, or move them",
        )


def _is_in(pattern: str, store: Path) -> bool:
    """Return whether a pattern can match files in the store."""
    above, is_deep, _ = pattern.partition("/**")
    parts = Path(above if is_deep else pattern).parts
    is_alike = all(map(fnmatch.fnmatchcase, store.parts, parts))
    # The highest file of a store is <store>/<dataset>/checks.jsonl.
    is_below = bool(is_deep) or len(parts) > len(store.parts) + 1
    return Path(unescaped(pattern)).is_relative_to(store) or (is_alike and is_below)


def _in_folder(folder: Path, store: Path) -> list[str]:
    """Return patterns for the files below a folder of its largest format, outside of `store`."""
    found = find_below(str(folder), ["**"])
    paths = [Path(path) for path, kind in found.items() if kind == FILE]
    paths = [path for path in paths if not path.is_relative_to(store)]
    known = [path for path in paths if format_of_name(path.name) is not None]
    if not known:
        raise ConfigError(
            where=folder,
            expected=f"files with a suffix of {', '.join(SUFFIXES)}, plain or compressed",
            found=first_five(sorted(path.name for path in paths)) or "no file",
            remedy="name another folder, or files with such a suffix",
        )
    num_bytes: dict[str | None, int] = {}
    for path in known:
        format_ = format_of_name(path.name)
        num_bytes[format_] = num_bytes.get(format_, 0) + path.stat().st_size
    largest = max(num_bytes, key=lambda format_: num_bytes[format_])
    kept = [path for path in known if format_of_name(path.name) == largest]
    return _globs(folder, kept, store)


def _globs(folder: Path, paths: Sequence[Path], store: Path) -> list[str]:
    """Return patterns that match the files below the folder, and none in `store`."""
    direct = [path for path in paths if path.parent == folder]
    is_split = len(direct) < len(paths) and store.is_relative_to(folder)
    below = "" if len(direct) == len(paths) or is_split else "**/"
    suffixes = sorted({_suffix(path.name) for path in (direct if is_split else paths)})
    globs = [f"{escaped(str(folder))}/{below}*{escaped(suffix)}" for suffix in suffixes]
    if is_split:
        deeper = [path for path in paths if path.parent != folder]
        for inner in sorted({folder / path.relative_to(folder).parts[0] for path in deeper}):
            globs += _globs(inner, [path for path in deeper if inner in path.parents], store)
    return globs


def _glob_of(paths: Sequence[Path], store: Path) -> str | None:
    """Return the shortest glob that matches exactly these files, in one folder or sister folders;
    None if there is none, or it could match outputs."""
    suffixes = {_suffix(path.name) for path in paths}
    above = {path.parent.parent for path in paths}
    if len(paths) < 2 or len(above) > 1 or len(suffixes) > 1 or "" in suffixes:
        return None
    if not all(path.is_file() for path in paths):
        return None
    folders, names = {path.parent.name for path in paths}, [path.name for path in paths]
    for prefix in ("", os.path.commonprefix(names).rstrip("0123456789")):  # noqa: RUF071 (of characters)
        folder = escaped(*folders) if len(folders) == 1 else "*"
        glob = os.path.normpath(
            f"{escaped(str(*above))}/{folder}/{escaped(prefix)}*{escaped(*suffixes)}"
        )
        listed = list_raw(RawConfig(files=(glob,)), base=paths[0].parent)
        if {source.url for source in listed.sources.values()} == set(map(str, paths)):
            return None if _is_in(glob, store) else glob
    return None


def _suffix(name: str) -> str:
    """Return the suffix of a file name, such as `.jsonl.gz`, in its own case."""
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 (text, not a path)
    is_compressed = suffix.lower() in COMPRESSED_SUFFIXES
    return os.path.splitext(stem)[1] + suffix if is_compressed else suffix  # noqa: PTH122
