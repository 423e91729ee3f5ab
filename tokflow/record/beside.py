"""Card and Croissant description beside an export: written where they are not those of now.

What writes them is imported where one is to be written.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping

from tokflow.errors import CorruptOutputError
from tokflow.pipeline.card import CardConfig
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.output import Output
from tokflow.store.listed_files import CARD_NAME, CROISSANT_NAME, is_as_written, with_digest
from tokflow.store.store import StoredOutput

CARDS_VERSION = 1
"""Raised when the same facts would give other text."""


def cards_of(dataset: Dataset) -> dict[str, CardConfig]:
    """Return the cards of a dataset and, of a mixture, of its sources, by their names."""
    return {of.name: of.card for of in (dataset, *dataset.sources)}


def write_cards(dataset: Dataset, outputs: Iterable[Output]) -> int:
    """Write card and Croissant description beside each export among outputs, unless those of now
    are there; return how many exports got others.

    Each file is written whole or not at all, the card last, which says what both were made from;
    where they are up to date nothing else is read.
    """
    cards = cards_of(dataset)
    exports = [of for of in outputs if of.step.has_latest and of.is_made]
    due = [of for of in exports if not _is_up_to_date(of, _made_from(of, cards))]
    if due:
        from tokflow.audit.ancestry import Ancestry
        from tokflow.record.card import card_text
        from tokflow.record.croissant import croissant_json
        from tokflow.record.facts import facts_of

        ancestry = Ancestry()
        for output in due:
            facts = facts_of(output.stored, cards, ancestry)
            text = f"{card_text(facts)}\n\n{_made_from(output, cards)}"
            write = dataset.store.write_beside
            write(output.folder / CROISSANT_NAME, croissant_json(facts))
            write(output.folder / CARD_NAME, with_digest(text))
    return len(due)


def _made_from(export: Output, cards: Mapping[str, CardConfig]) -> str:
    """Return a comment that is another where the text would be."""
    said = {name: card.model_dump(mode="json") for name, card in cards.items()}
    decides = [CARDS_VERSION, export.fingerprint, said]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode())
    return f"<!-- made from {digest.hexdigest()} -->"


def _is_up_to_date(export: Output, mark: str) -> bool:
    read = export.graph.store.read_beside
    found = {name: read(export.folder, name) for name in (CARD_NAME, CROISSANT_NAME)}
    are_whole = all(data is not None and is_as_written(name, data) for name, data in found.items())
    return are_whole and mark.encode() in (found[CARD_NAME] or b"")


def read_card(export: StoredOutput) -> str:
    """Return the card that stands beside an export; of one without, what its manifests say.

    Raises: CorruptOutputError where it is not as it was written.
    """
    from tokflow.record.card import card_text
    from tokflow.record.facts import facts_of

    data = export.store.read_beside(export.folder, CARD_NAME)
    if data is None:
        return card_text(facts_of(export, {}))
    if not is_as_written(CARD_NAME, data):
        raise CorruptOutputError(
            where=export.folder / CARD_NAME,
            expected="the sha256 of its other lines in the last one, as it was written",
            found="other bytes",
            remedy="remove it, and `tokflow run` writes it again",
        )
    return data.decode()
