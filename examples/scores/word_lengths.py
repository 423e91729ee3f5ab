"""The mean length of the words of each document, by an asset of one's own with pandas."""

from pathlib import Path

import dagster as dg  # noqa: TID251
import pandas as pd


@dg.asset
def word_lengths() -> dg.MaterializeResult:
    """Characters of the words of each document, on average."""
    files = sorted(Path("data/raw/scored").glob("*.jsonl"))
    rows = pd.concat(pd.read_json(path, lines=True, dtype={"id": str}) for path in files)
    rows["word_chars"] = rows.text.str.findall(r"\w+").map(
        lambda of: pd.Series(of).str.len().mean()
    )
    table = Path("data/scores/lengths.parquet")
    table.parent.mkdir(parents=True, exist_ok=True)
    rows[["id", "word_chars"]].to_parquet(table, index=False)
    return dg.MaterializeResult(metadata={"num_documents": len(rows)})
