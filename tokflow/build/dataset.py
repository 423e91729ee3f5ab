"""A dataset: everything that one YAML file declares, checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError
from tokflow.exports.config import ExportConfig, check_exports, source_names, with_names
from tokflow.exports.format import Declared, SourceNames
from tokflow.raw import RawConfig
from tokflow.sequences.config import PackingConfig
from tokflow.split.rule import SplitConfig
from tokflow.split.shuffle import ShuffleConfig
from tokflow.store.atomic import check_name
from tokflow.store.config import Config, Listed
from tokflow.store.config_errors import check_keys
from tokflow.tokenizers.tokenizer import TokenizerConfig


def _asset_key(name: str) -> str:
    check_name(name, where="", becomes="a folder and an asset key", marks="_")
    return name


_STORE = Path("data/store")


def _local_folder(store: object) -> Path:
    store = store or _STORE
    if isinstance(store, Path) or (isinstance(store, str) and "://" not in store):
        return Path(store)
    raise ConfigError(
        where="",
        expected="a local folder",
        found=repr(store),
        remedy="write its path, such as data/store; what another place is to have, copy there "
        "with its own tool",
    )


def _or_none(exports: object) -> object:
    return exports or ()  # `exports:` with nothing behind it is null


class Dataset(Config):
    """One dataset: where its raw files are, and what each stage makes of them."""

    name: Annotated[str, pydantic.AfterValidator(_asset_key)]
    """Names its assets, its folder in the store and its partition set."""
    raw: RawConfig
    """The raw files: their source and their names."""
    documents: DocumentsConfig = DocumentsConfig()
    """The reading of documents from a raw file."""
    tokenizer: TokenizerConfig
    """The tokenizer that makes the tokens."""
    split: SplitConfig = SplitConfig()
    """The parts (train, validation and so on) and the text of each; default: all to train."""
    packing: PackingConfig = PackingConfig()
    """The packing of tokens into sequences."""
    shuffle: ShuffleConfig = ShuffleConfig()
    """The order of documents and of sequences; default: that of the files."""
    exports: Annotated[Listed[ExportConfig], pydantic.BeforeValidator(_or_none)] = ()
    """The formats to write."""
    owners: Listed[str] = ("team:data",)
    """Owners of the dataset, as the web UI shows them: `team:name` or a mail address."""
    store: Annotated[Path, pydantic.BeforeValidator(_local_folder)] = _STORE
    """Folder that holds all outputs, `<store>/<name>/...`."""

    _base: Path = pydantic.PrivateAttr(default_factory=Path)

    @property
    def base(self) -> Path:
        """Folder that relative paths start from."""
        return self._base

    @property
    def folder(self) -> Path:
        """Folder of all outputs of the dataset."""
        return self.store / self.name

    @property
    def names(self) -> SourceNames:
        """Names that exports have for the raw files, the columns read and the tokenizer."""
        return source_names(self.name, self.raw, self.documents, self.tokenizer)

    def check(self) -> None:
        """Refuse sections that do not go together; give exports the names left to the dataset."""
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

    def at(self, base: Path, *, store: Path | None = None, where: str) -> Self:
        """Return the dataset with its relative paths at `base`, and `store` in place of its own.

        A chat template in a file is read, for its text is what decides the tokens.

        Raises: ConfigError where the template cannot be read.
        """
        own = base / self.store.expanduser()
        changed: dict[str, Any] = {"store": (store or own).resolve()}
        if self.documents.chat_template is not None:
            text = _template_text(self.documents.chat_template, base, where=where)
            changed["documents"] = self.documents.model_copy(update={"chat_template": text})
        moved = self.model_copy(update=changed)
        moved._base = base
        return moved


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


def load_dataset(path: Path, *, base: Path | None = None, store: Path | None = None) -> Dataset:
    """Return the dataset that a YAML file declares.

    Relative paths in it start at `base`, by default the file's own folder. `store` takes the
    place of the one in the file.

    Raises: ConfigError with the line of a syntax error, or the key that is wrong and the
    nearest that exists.
    """
    from tokflow.build.yaml_file import (
        COMPONENT_TYPE,
        read_yaml,
    )  # 0.02 s that workers need not pay

    fields = read_yaml(path)
    if "type" in fields or "attributes" in fields:
        check_keys(fields, ("type", "attributes"), where=str(path))
        if fields.get("type") != COMPONENT_TYPE:
            raise ConfigError(
                where=f"{path}: type",
                expected=COMPONENT_TYPE,
                found=repr(fields.get("type")),
                remedy="correct it",
            )
        fields = fields.get("attributes") or {}
    return make_dataset(fields, base=base or path.resolve().parent, store=store, where=str(path))


def make_dataset(
    attributes: Mapping[str, Any], *, base: Path, store: Path | None = None, where: str
) -> Dataset:
    """Return the dataset that plain values declare, as YAML gives them.

    `where` is what messages call the place they came from; for the others see `Dataset.at`.

    Raises: ConfigError.
    """
    return Dataset.read(attributes, where=where).at(base, store=store, where=where)
