"""The raw files that parts of a split take whole: by their keys, or by the source's own splits."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tokflow.errors import ConfigError, first_five, nearest
from tokflow.raw import LeftOut, Listing, RawSource
from tokflow.shown import redact
from tokflow.split.rule import SplitConfig, part_of_file

if TYPE_CHECKING:
    from tokflow.pipeline.graph import BuildGraph


def taken_by_parts(listing: Listing, config: SplitConfig) -> Listing:
    """Return a listing without the files of those splits of the source that no part takes.

    Raises: ConfigError for a part that takes files of which there is none.
    """
    if config.form == "files":
        _check_patterns(config, list(listing.sources))
    if config.form != "source_split":
        return listing
    of_source = {key: source.source_split for key, source in listing.sources.items()}
    wanted = {str(part.source_split): name for name, part in config.parts.items()}
    for split, name in wanted.items():
        _check_source_split(split, name, [each for each in of_source.values() if each])
    others = [
        LeftOut(path=redact(source.url), found=f"of {_named(source)}, which no part takes")
        for source in listing.sources.values()
        if source.source_split not in wanted
    ]
    taken = {key: each for key, each in listing.sources.items() if of_source[key] in wanted}
    left_out = sorted([*listing.left_out, *others], key=lambda each: each.path)
    return Listing(sources=taken, left_out=tuple(left_out))


def part_of(key: str, *, sources: Mapping[str, RawSource], config: SplitConfig) -> object:
    """Return what tells raw files apart that parts take whole: no group has files of two parts."""
    return part_of_file(key, sources[key].source_split, config)


def parts_behind_limit(graph: "BuildGraph") -> list[str]:
    """Return the parts that take whole files, of which `documents.limit` of the whole dataset takes
    none, since it is reached before them."""
    config = graph.dataset.split
    if graph.limited is None or graph.limited.is_open or not config.takes_whole_files:
        return []
    taken = {part_of(key, sources=graph.sources, config=config) for key in graph.partitions}
    return [name for number, name in enumerate(config.parts) if number not in taken]


def _named(source: RawSource) -> str:
    return f"the split {source.source_split}" if source.source_split else "no split"


def _check_source_split(split: str, part: str, known: Sequence[str]) -> None:
    if split not in known:
        names = list(dict.fromkeys(known))
        raise ConfigError(
            where=f"split.parts.{part}.source_split",
            expected=f"a split that is read: {', '.join(names)}"
            if names
            else "raw files of a source that has splits, as hf://datasets/org/name",
            found=repr(split),
            remedy=nearest(split, names) or "name one of them, or read it by raw.split"
            if names
            else "take them by {files: ...}, a pattern over their keys",
        )


def _check_patterns(config: SplitConfig, keys: Sequence[str]) -> None:
    for name, part in config.parts.items():
        if part.files is not None and not fnmatch.filter(keys, part.files):
            raise ConfigError(
                where=f"split.parts.{name}.files",
                expected="a pattern that matches the key of a raw file",
                found=f"{part.files!r}, and the raw files are {first_five(keys)}",
                remedy=nearest(part.files, keys) or "correct the pattern",
            )
