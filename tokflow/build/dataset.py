"""A dataset: everything that one YAML file declares, checked."""

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from tokflow.build.yaml_file import COMPONENT_TYPE, read_yaml
from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError, nearest
from tokflow.exports import FORMATS, Declared, ExportConfig, check_exports, check_format, with_names
from tokflow.exports.source_names import SourceNames, source_names
from tokflow.raw import RawConfig
from tokflow.sequences.packing import PackingConfig
from tokflow.split.rule import SplitConfig
from tokflow.store.atomic import check_name
from tokflow.tokenizers.tokenizer import TokenizerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """One dataset: where its raw files are, and what each stage makes of them."""

    name: str
    """Names its assets, its folder in the store and its partition set."""
    raw: RawConfig
    """Where the raw files are."""
    documents: DocumentsConfig = field(default_factory=DocumentsConfig)
    """How documents are read from a raw file."""
    tokenizer: TokenizerConfig
    """Which tokenizer makes the tokens."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """Which text belongs to train, validation and so on; default: all to train."""
    packing: PackingConfig = field(default_factory=PackingConfig)
    """How tokens become sequences."""
    exports: tuple[ExportConfig, ...] = ()
    """The formats to write."""
    owners: tuple[str, ...] = ("team:data",)
    """Who looks after the dataset, as the web UI shows it: `team:name` or a mail address."""
    store: Path = Path("data/store")
    """Folder that holds all outputs, `<store>/<name>/...`."""
    base: Path = field(default_factory=Path)
    """Folder that relative paths start from."""

    def __post_init__(self) -> None:
        check_name(self.name, where="name", becomes="a folder and an asset key", marks="_")
        _check_chat(self.documents, self.tokenizer, self.split)
        declared = Declared(
            parts=tuple(self.split.parts),
            has_eos=self.tokenizer.eos == "last",
            has_bos=self.tokenizer.bos == "first",
            packing=self.packing,
        )
        check_exports(self.exports, declared)
        exports = tuple(with_names(export, self.names) for export in self.exports)
        object.__setattr__(self, "exports", exports)

    @property
    def folder(self) -> Path:
        """Where all outputs of the dataset are."""
        return self.store / self.name

    @property
    def names(self) -> SourceNames:
        """Names that exports have for the raw files, the columns read and the tokenizer."""
        return source_names(self.name, self.raw, self.documents, self.tokenizer)


def _check_chat(documents: DocumentsConfig, tokenizer: TokenizerConfig, split: SplitConfig) -> None:
    if documents.is_chat and split.boundary == "character":
        raise ConfigError(
            where="split.boundary",
            expected="document, for documents are chats",
            found="'character', which would cut a conversation",
            remedy="set split.boundary: document",
        )
    needs_template = documents.messages is not None and not documents.chat_template
    if needs_template and tokenizer.kind == "trained":
        raise ConfigError(
            where="documents.chat_template",
            expected="a chat template, for the tokenizer is trained on what it writes",
            found="none",
            remedy="set it to Jinja text or to the path of a .jinja file",
        )


def load_dataset(path: Path, *, base: Path | None = None, store: Path | None = None) -> Dataset:
    """Return the dataset that a YAML file declares.

    Relative paths in it start at `base`, by default the file's own folder. `store` takes the
    place of the one in the file.

    Raises: ConfigError with the line of a syntax error, or the key that is wrong and the
    nearest that exists.
    """
    fields = read_yaml(path)
    if "type" not in fields and "attributes" not in fields:
        attributes = fields
    else:
        _check_keys(fields, ("type", "attributes"), where=str(path))
        attributes = fields.get("attributes") or {}
        if fields.get("type") != COMPONENT_TYPE:
            raise ConfigError(
                where=f"{path}: type",
                expected=COMPONENT_TYPE,
                found=repr(fields.get("type")),
                remedy="correct it",
            )
    return make_dataset(
        attributes, base=base or path.resolve().parent, store=store, where=str(path)
    )


def make_dataset(
    attributes: Mapping[str, Any],
    *,
    base: Path,
    store: Path | None = None,
    where: str,
    reads_files: bool = True,
) -> Dataset:
    """Return the dataset that plain values declare, as YAML gives them.

    `where` is what messages call the place they came from. A chat template in a file is read, so
    that its text is what decides the tokens; without `reads_files`, to check values of which the
    base is not known, it is not.

    Raises: ConfigError.
    """
    known = [f.name for f in dataclasses.fields(Dataset) if f.name != "base"]
    if not isinstance(attributes, Mapping):
        raise ConfigError(
            where=where,
            expected=f"a mapping with keys such as {', '.join(known[:4])}",
            found=repr(attributes),
            remedy="correct it",
        )
    _check_keys(attributes, known, where=where)
    values = dict(attributes)
    entries = values.pop("exports", None) or ()
    if not isinstance(entries, list | tuple):
        raise ConfigError(
            where=f"{where}: exports",
            expected="a list of formats",
            found=repr(entries),
            remedy="put `- ` before each",
        )
    exports = tuple(
        make_export_config(entry, where=f"{where}: exports[{index}]")
        for index, entry in enumerate(entries)
    )
    declared_store = values.pop("store", None) or "data/store"
    if not isinstance(declared_store, str) or "://" in declared_store:
        raise ConfigError(
            where=f"{where}: store",
            expected="a local folder",
            found=repr(declared_store),
            remedy="name a folder; copy finished exports elsewhere with the tool of the place",
        )
    hints = typing.get_type_hints(Dataset)
    made = {
        name: _convert(hints[name], value, where=f"{where}: {name}")
        for name, value in values.items()
    }
    documents = made.get("documents")
    if reads_files and documents is not None and documents.chat_template is not None:
        template = _template_text(documents.chat_template, base, where=where)
        made["documents"] = dataclasses.replace(documents, chat_template=template)
    for name in ("name", "raw", "tokenizer"):
        if name not in made:
            raise ConfigError(where=where, expected=f"`{name}:`", found="none", remedy="add it")
    return Dataset(
        **made,
        exports=exports,
        store=store.resolve() if store else (base / Path(declared_store).expanduser()).resolve(),
        base=base,
    )


def _template_text(template: str, base: Path, *, where: str) -> str:
    """Return the text of a chat template: what is given, or what the file holds that it names."""
    if not template.endswith(".jinja") or "\n" in template:
        return template
    path = base / Path(template).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            where=f"{where}: documents.chat_template",
            expected="Jinja text, or the path of a file of it",
            found=f"{template!r}: {getattr(error, 'strerror', None) or error}",
            remedy="correct the path; a relative one starts where the raw files' paths do",
        ) from error


def make_packing_config(fields: Mapping[str, Any], *, where: str) -> PackingConfig:
    """Return the packing that a mapping declares; unknown keys and wrong types are refused."""
    packing: PackingConfig = _convert(PackingConfig, fields, where=where)
    return packing


def make_export_config(entry: object, *, where: str) -> ExportConfig:
    """Return the export that a format's name or a mapping with its options declares.

    Raises: ConfigError.
    """
    fields = {"format": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, Mapping) or not isinstance(fields.get("format"), str):
        raise ConfigError(
            where=where,
            expected="a format's name, or a mapping with `format:` and its options",
            found=repr(entry),
            remedy=f"name one of {', '.join(sorted(FORMATS))}",
        )
    options = dict(fields)
    name = options.pop("format")
    format_ = check_format(name, where=where)
    if format_.extra is not None:
        format_.extra.check(where=f"{where}: {name}")
    called = options.pop("name", name)
    check_name(called, where=f"{where}: name", becomes="a folder", marks="-_")
    known = [f.name for f in dataclasses.fields(format_.options)]
    _check_keys(options, [*known, "name", "format"], where=where)
    return ExportConfig(
        format=name, name=called, options=_convert(format_.options, options, where=where)
    )


def _convert(type_: Any, value: object, *, where: str) -> Any:
    """Return `value` as `type_`: unknown keys are refused, and no value changes its type."""
    if type_ is RawConfig and isinstance(value, Mapping) and isinstance(value.get("files"), str):
        value = {**value, "files": [value["files"]]}
    _check_nested_keys(type_, value, where=where)
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            cause = error.__cause__.fields()
            raise ConfigError(**{**cause, "where": f"{where}: {cause['where']}"}) from None
        problem, _, path = str(error).partition(" - at `$")
        if "missing required field" in problem:
            lacking = problem.split("`")[-2]
            raise ConfigError(
                where=where, expected=f"`{lacking}:`", found="none", remedy="add it"
            ) from None
        expected = problem.partition(", got ")[0].removeprefix("Expected ").replace("`", "")
        path = path.rstrip("`")
        raise ConfigError(
            where=where + path,
            expected=" or ".join(_JSON_WORDS.get(word, word) for word in expected.split(" | ")),
            found=repr(found := _value_at(path, value)),
            remedy=_as_written(found) or "correct it",
        ) from None


def _as_written(value: object) -> str | None:
    """Return what to write for a number that YAML takes for text, such as 1.5e6."""
    try:
        number = float(value) if isinstance(value, str) else float("nan")
    except ValueError:
        return None
    return f"write {int(number):_}" if number.is_integer() else None


_JSON_WORDS = {"array": "a list", "object": "a mapping", "str": "text", "int": "a whole number",
               "float": "a number", "bool": "true or false", "null": "nothing"}  # fmt: skip


def _value_at(path: str, value: Any) -> object:
    """Return what stands at a path such as `.limit.characters` or `.text[1]`."""
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[key] if key else value[int(index)]
    return value


def _check_nested_keys(type_: Any, value: object, *, where: str) -> None:
    """Refuse unknown keys of every mapping in `value`, and words that are none of the choices."""
    arguments = typing.get_args(type_)
    if typing.get_origin(type_) is Literal and value not in arguments:
        raise ConfigError(
            where=where,
            expected=f"one of {', '.join(map(str, arguments))}",
            found=repr(value),
            remedy=nearest(value, arguments) or "name one of them",
        )
    if not isinstance(value, Mapping):
        return
    if dataclasses.is_dataclass(type_):
        hints = typing.get_type_hints(type_)
        _check_keys(value, list(hints), where=where)
        for key, inner in value.items():
            _check_nested_keys(hints[key], inner, where=f"{where}.{key}")
    elif typing.get_origin(type_) is Mapping:
        for key, inner in value.items():
            # Converted here as well, since only here the message can name the key.
            _convert(arguments[1], inner, where=f"{where}.{key}")


def _check_keys(fields: Mapping[str, Any], known: Sequence[str], *, where: str) -> None:
    for key in fields:
        if key not in known:
            raise ConfigError(
                where=where,
                expected=f"one of the keys {', '.join(known)}",
                found=repr(key),
                remedy=nearest(key, known) or "remove it",
            )
