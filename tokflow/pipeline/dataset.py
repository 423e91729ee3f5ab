"""A dataset: everything that one YAML file declares, checked."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast
from urllib.parse import unquote

import pydantic

from tokflow.attributes.config import AttributeConfig, DeclaredAttributes
from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError
from tokflow.exclusion.stage import ExcludeConfig, as_exclude
from tokflow.exports.config import DeclaredExports, ExportConfig, check_exports, with_names
from tokflow.exports.format import SourceNames
from tokflow.formatting import redact
from tokflow.near_duplicates.stage import NearDuplicatesConfig
from tokflow.pipeline.fields import (
    CardConfig,
    Cron,
    KeyPrefix,
    Name,
    Owners,
    PoolName,
    Scan,
    Tags,
    Timezone,
)
from tokflow.pipeline.stages import STAGES, for_mixtures
from tokflow.raw import RawConfig
from tokflow.selection.stage import SelectConfig, as_select
from tokflow.sequences import PackingConfig
from tokflow.split.mixture import MixtureConfig
from tokflow.split.permutation import ShuffleConfig
from tokflow.split.rule import PartConfig, Share, SplitConfig, with_parts
from tokflow.split.stage import MIXED_SPLIT
from tokflow.stage import Stage, stages_giving
from tokflow.store.config import Config, Listed, expanded, relocated, relocating, within
from tokflow.store.store import Store
from tokflow.store.stored_outputs import open_store
from tokflow.store.urls import hub_url, is_url
from tokflow.strata.stage import StrataConfig, as_strata, divided
from tokflow.tokenizers.tokenizer import TokenizerConfig, with_kind

T = TypeVar("T")

DEFAULT_STORE = Path("data/store")
"""Folder of all outputs where none is set."""


def _store(store: object) -> Store:
    if isinstance(store := store or DEFAULT_STORE, Store):
        return store
    if not isinstance(store, Path | str):
        expected, remedy = "a folder, or the URL of one", "write data/store or s3://bucket/prefix"
        raise ConfigError(where="", expected=expected, found=repr(store), remedy=remedy)
    try:
        return open_store(store)
    except ConfigError as error:
        raise relocated(error, "") from None


class Dataset(Config):
    """One dataset: where its raw files are, and what each stage makes of them."""

    name: Name
    """Names its assets, its folder in the store and its partition set."""
    raw: Annotated[RawConfig, pydantic.Field(examples=[{"files": "data/raw/*.jsonl"}])]
    """The raw files: their source and their names."""
    documents: DocumentsConfig = DocumentsConfig()
    """The reading of documents from a raw file."""
    tokenizer: Annotated[
        TokenizerConfig,
        pydantic.BeforeValidator(with_kind, json_schema_input_type=TokenizerConfig | str),
        pydantic.Field(examples=["gpt2"]),
    ]
    """The tokenizer that makes the tokens: its fields, or a name alone: `gpt2` or another encoding
    of tiktoken, `org/name` of the hub, a folder, a path that ends in .json or .model, `bytes`,
    `trained`."""
    attributes: dict[str, AttributeConfig] = pydantic.Field(default_factory=dict)
    """Columns that somebody else has made, or a model, beside each document, for `select`:
    `{scores: {files: scores/*.parquet, key: id, columns: {quality: number}}}`."""
    near_duplicates: NearDuplicatesConfig = NearDuplicatesConfig()
    """Texts that are nearly the same: `{threshold: 0.7}` finds them, and `select: not
    near_duplicate` leaves out all but one."""
    exclude: Annotated[
        ExcludeConfig,
        pydantic.BeforeValidator(
            as_exclude, json_schema_input_type=ExcludeConfig | str | list[str]
        ),
        pydantic.Field(examples=["lists/removal_requests.csv"]),
    ] = ExcludeConfig()
    """Documents to take out of every part and export, as lists name them: a path or pattern, or
    `{path: requests.csv, by: url, copies: true}`; default: none. Another list makes no token
    again."""
    select: Annotated[
        SelectConfig,
        pydantic.BeforeValidator(as_select, json_schema_input_type=SelectConfig | str),
        pydantic.Field(examples=["num_tokens >= 20"]),
    ] = SelectConfig()
    """The documents to keep, by an expression over what is known of each: `num_tokens >= 20 and
    language == 'en'`; default: all. Another expression makes no token again."""
    strata: Annotated[
        StrataConfig,
        pydantic.BeforeValidator(
            as_strata, json_schema_input_type=StrataConfig | dict[str, str | bool]
        ),
        pydantic.Field(examples=[{"long": "num_tokens >= 2048", "rest": True}]),
    ] = StrataConfig()
    """Named subsets of the documents by expressions as those of `select`, which divide each part:
    with `{hq: number(score) >= 3, rest: true}` train becomes train.hq and train.rest. Others make
    no token again."""
    split: Annotated[
        SplitConfig,
        pydantic.BeforeValidator(
            with_parts, json_schema_input_type=SplitConfig | dict[str, Share | int]
        ),
    ] = SplitConfig()
    """The parts (train, validation and so on) and the text of each; default: all to train. Shares
    of documents may stand here by themselves: `{train: 0.9, validation: 0.1}`."""
    mixture: MixtureConfig | None = None
    """Other datasets of the same tokenizer that this one is made of, in place of `raw`,
    `documents`, `tokenizer` and `split`."""
    packing: PackingConfig = PackingConfig()
    """The packing of tokens into sequences, for the exports that have them."""
    shuffle: ShuffleConfig = ShuffleConfig()
    """The order of documents and of sequences; default: that of the files."""
    exports: Annotated[
        Listed[ExportConfig],
        pydantic.BeforeValidator(lambda exports: exports or ()),  # with nothing behind it null
    ] = ()
    """The formats to write."""
    card: CardConfig = CardConfig()
    """What only a person knows of the dataset, such as licence and languages, for the card beside
    each export; another card makes no export again."""
    keep: Literal["all", "exports"] = "all"
    """`exports`: the tokens go once all exports stand, which halves the disk of a `bin`. Their
    manifests and document tables stay; whatever needs them again is made of the raw files again,
    with the same bytes. Tokens of a mixture are those of its sources, whose `keep` counts."""
    automation: bool = False
    """True: Dagster builds the dataset when raw files, this file or the code change, and what is
    deleted from the store."""
    report: bool = True
    """False: Dagster has no `report` asset, and no build draws pictures; `tokflow report` still
    does."""
    schedule: Cron | None = None
    """Times at which Dagster builds the dataset, as a cron string: `0 3 * * *` is every night at
    three; default: none."""
    timezone: Timezone = "UTC"
    """The timezone of `schedule` and of a cron string in `scan`, such as Europe/Berlin."""
    scan: Scan = "minutely"
    """Times at which Dagster looks for new, changed and removed raw files: `minutely`, `hourly` or
    a cron string. Listing a bucket costs money. A look that comes while the dataset is built, or a
    file written, waits for the end of that."""
    store: Annotated[
        pydantic.InstanceOf[Store],
        pydantic.BeforeValidator(_store),
        pydantic.PlainSerializer(lambda store: store.name, return_type=str),
        pydantic.WithJsonSchema(
            {"type": "string", "format": "path", "default": str(DEFAULT_STORE)}
        ),
    ] = pydantic.Field(default_factory=lambda: Store(DEFAULT_STORE))
    """Folder that holds all outputs, `<store>/<name>/...`, or the URL of one: s3://bucket/prefix."""

    owners: Owners = ("team:data",)
    """Owners of the dataset, as the web UI shows them: `team:name` or a mail address."""
    tags: Tags = pydantic.Field(default_factory=dict)
    """Tags of its assets, its jobs and their runs, as `{domain: code}`."""
    key_prefix: KeyPrefix = ()
    """What its asset keys begin with, before its name: `warehouse/raw` or `[warehouse, raw]`."""
    translator: str | None = None
    """Class that gives its assets in Dagster other keys, groups, tags and descriptions, as
    `package.module:Class`: a subclass of `tokflow.components.Translator`. Default: none."""
    pool: PoolName = "tokflow"
    """Dagster's pool of builds, which take the whole machine; its limit is the instance's."""
    executor: Literal["in_process", "multiprocess"] | None = None
    """How Dagster runs the steps where assets are materialized: all in the process of the run, or
    each in one of its own, which takes seconds to start. It holds for the whole code location, for
    Dagster has one for all assets. Default: whatever the code location has. The job that builds
    everything is one step, and starts processes of its own."""

    known_stages: ClassVar[tuple[Stage, ...]] = STAGES
    """Stages of a dataset that is no mixture; see `dataset_type`."""
    _base: Path = pydantic.PrivateAttr(default_factory=Path)
    _sources: tuple["Dataset", ...] = pydantic.PrivateAttr(default=())

    @property
    def base(self) -> Path:
        """Folder that relative paths start from."""
        return self._base

    @property
    def sources(self) -> tuple["Dataset", ...]:
        """The datasets that a mixture is made of; none of others."""
        return self._sources

    @property
    def folder(self) -> Path:
        """Folder of all outputs of the dataset on this disk, or of their copies."""
        return self.store.root / self.name

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the dataset, parents first: a mixture's splits are made of its sources',
        and what comes after a split is the same."""
        known = self.known_stages
        return known if self.mixture is None else (MIXED_SPLIT, *known[len(for_mixtures(known)) :])

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts of its splits, divided by strata, in order."""
        return divided(self.split.parts, self.strata.expressions)

    def of(self, section: type[T]) -> T:
        """Return the section of this type, or what several decide together: `Packings`,
        `DeclaredExports`, `DeclaredAttributes`."""
        for value in self.__dict__.values():
            if type(value) is section:
                return value
        if section is DeclaredAttributes:
            return cast(T, DeclaredAttributes(self.attributes))
        exports = DeclaredExports(
            configs=self.exports,
            packing=self.packing,
            parts=self.parts,
            is_in_one_order=self.shuffle.documents == "dataset",
        )
        for value in (exports, exports.packings):
            if type(value) is section:
                return value
        raise LookupError(f"{self.name} has no section of type {section.__name__}")

    @property
    def names(self) -> SourceNames:
        """Names that exports have for the raw files, the columns read and the tokenizer, and how
        documents were drawn for validation."""
        first, *others = self.raw.files
        more = f" and {len(others):,} more" if others else ""
        scheme, _, rest = first.partition("://")
        is_remote = is_url(first) and scheme.lower() not in {"file", "local"}
        path = f"/{unquote(rest.partition('/')[2])}" if is_url(first) else first
        is_bytes = self.tokenizer.kind == "bytes"
        name = self.tokenizer.name or ("bytes" if is_bytes else f"trained ({self.name})")
        part = self.split.parts.get("validation", PartConfig())
        fraction = part.fraction or part.hash_fraction
        seed = self.split.seed
        drawn: dict[str, Any] = {"drawn_fraction": fraction, "is_drawn": True, "seed": seed}
        return SourceNames(
            source=(redact(first) if is_remote else _path_from(self.base, path)) + more,
            columns=self.documents.columns,
            tokenizer=_path_from(self.base, name),
            config_name=self.raw.config if self.raw.config and hub_url(first) else None,
            **(drawn if fraction else {}),
        )

    def check(self) -> None:
        """Refuse sections that do not go together."""
        if self.documents.is_chat:
            _check_chats(self.documents, self.split, self.tokenizer)
        if self.attributes:
            with relocating("attributes", within):
                self.of(DeclaredAttributes).check(self.documents)
        self.exclude.check_over(self.documents)
        if self.select.expression.strip():
            with relocating("select"):
                self.select.over(self)
        with relocating("strata", within):
            self.strata.over(self)
        selecting = [of.name for of in stages_giving(self, "selection")]
        if self.split.scope == "dataset" and len(selecting) > 1:
            raise ConfigError(
                where="split.scope",
                expected="file, for several stages select documents",
                found=f"dataset, with {' and '.join(selecting)}",
                remedy="set split.scope: file, or leave one of them out",
            )
        with relocating("packing", within):
            object.__setattr__(self, "packing", self.packing.for_parts(self.parts))
        check_exports(
            self.of(DeclaredExports),
            has_eos=self.tokenizer.eos == "last",
            has_bos=self.tokenizer.bos == "first",
        )
        if self.documents.limit.scope == "dataset":
            _check_limit(self.raw, self.tokenizer)

    def at(self, base: Path, *, store: Store | Path | str | None = None, where: str) -> Self:
        """Return the dataset with its relative paths at `base`, and `store` in place of its own.

        A chat template in a file is read, and the module of a transform, for their text is what
        decides the tokens. Exports get the names left to the dataset.

        Raises: ConfigError where one cannot be read, or a name is none that a format can hold.
        """
        own = self.store.at(base) if store is None else _store(store).at(Path.cwd())
        documents, template = self.documents.at(base, where=where), self.documents.chat_template
        if template is not None and template.endswith(".jinja") and "\n" not in template:
            try:
                template = (base / expanded(template)).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    where=f"{where}: documents.chat_template",
                    expected="Jinja text, or the path of a file of it",
                    found=f"{template!r}: {getattr(error, 'strerror', None) or error}",
                    remedy="correct the path; a relative one starts where the raw files' paths do",
                ) from error
            documents = documents.model_copy(update={"chat_template": template})
        moved = self.model_copy(update={"store": own, "documents": documents})
        moved._base = base
        with relocating(where):
            named = tuple(with_names(export, moved.names) for export in self.exports)
        object.__setattr__(moved, "exports", named)
        return moved


@cache
def dataset_type(stages: tuple[Stage, ...] = STAGES) -> type[Dataset]:
    """Return the type of a dataset with these stages: each section of one that `Dataset` has not
    is a field with the stage's name."""
    if stages == STAGES:
        return Dataset
    fields: dict[str, Any] = {}
    for of in stages:
        if of.section is not None:
            described = f"Section of the stage {of.name}. {of.section.__doc__}"
            fields[of.name] = of.section, pydantic.Field(of.section(), description=described)
    made = pydantic.create_model("Dataset", __base__=Dataset, **fields)
    made.known_stages = stages
    return made


def _path_from(base: Path, path: str) -> str:
    """Return a relative path as it is, and an absolute one below `base` as one from there; of any
    other the last name, for the rest would tell of this machine alone."""
    given = expanded(path)
    if not given.is_absolute():
        return path
    for root in (base.absolute(), base.resolve()):
        if given.is_relative_to(root):
            return str(given.relative_to(root))
    return given.name


def _check_chats(
    documents: DocumentsConfig, split: SplitConfig, tokenizer: TokenizerConfig
) -> None:
    if split.boundary == "character":
        raise ConfigError(
            where="split.boundary",
            expected="document, for documents are chats",
            found="'character', which would cut a conversation",
            remedy="set split.boundary: document",
        )
    needs_template = documents.is_rendered and not documents.chat_template
    if needs_template and tokenizer.kind == "trained":
        raise ConfigError(
            where="documents.chat_template",
            expected="a chat template, for the tokenizer is trained on what it writes",
            found="none",
            remedy="set it to Jinja text or to the path of a .jinja file",
        )


def _check_limit(raw: RawConfig, tokenizer: TokenizerConfig) -> None:
    if raw.group is not None:
        raise ConfigError(
            where="raw.group",
            expected="null, for documents.limit.scope is dataset, which takes files one by one",
            found="groups of files",
            remedy="leave raw.group out, or set documents.limit.scope: file",
        )
    if tokenizer.kind == "trained" and tokenizer.files is None:
        raise ConfigError(
            where="tokenizer.files",
            expected="a pattern of the files to train on, for documents.limit.scope is dataset: "
            "the files that it takes are not known before there is a tokenizer",
            found="none",
            remedy="name them, as in `files: part-000*.parquet`",
        )
