"""Pages of the site that are not in `docs`: the reference, the examples, the changes.

mkdocs calls the functions `on_...`. Links are written as they lead in the repository.
"""

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / ".venv-docs/reference"
"""Where `make docs` puts the pages of `reference.py`."""

LINKS = {
    r"\]\(\.\./examples/?\)": "](examples/index.md)",
    r"\]\(\.\./examples/(\w+)/?\)": r"](examples/\1.md)",
    r"\]\(\.\./CHANGELOG\.md\)": "](changelog.md)",
    r"\]\(\.\./benchmarks/LOG\.md\)": "](measurements.md)",
    r"\[([^\]]+)\]\(\.\./[^)]+\)": r"\1",
}
"""Links of `docs` to files of the repository, and the pages made of those; others are none."""


REQUESTED = r'<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)="((?:https?:)?//[^"]*)"'
"""What a browser fetches from elsewhere when it shows a page."""

UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"
"""Head of a page whose words would hide those of the others."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made of other files."""
    made = {
        "changelog.md": _read("CHANGELOG.md").replace("](docs/", "]("),
        "measurements.md": f"{UNSEARCHED}{_read('benchmarks/LOG.md')}",
        "examples/index.md": _examples(),
    }
    for folder in sorted(path.parent for path in ROOT.glob("examples/*/README.md")):
        made[f"examples/{folder.name}.md"] = _example(folder)
    for page in sorted(REFERENCE.glob("*.md")):
        made[f"reference/{page.name}"] = page.read_text(encoding="utf-8")
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links of `docs` to files of the repository lead to the pages made of them."""
    if page.file.generated_by is None:
        for pattern, page_link in LINKS.items():
            markdown = re.sub(pattern, page_link, markdown)
    return markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn of what a page would request from elsewhere; `make docs` takes warnings for errors."""
    for url in re.findall(REQUESTED, output):
        logging.getLogger("mkdocs.hooks").warning("%s requests %s", page.file.src_uri, url)
    return output


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _examples() -> str:
    """Return the table of the examples, with links to their pages."""
    return _linked(re.sub(r"\]\((\w+)\)", r"](\1.md)", _read("examples/README.md")))


LANGUAGES = {"yaml": "yaml", "py": "python", "sql": "sql"}
"""Files of an example that its page shows, by their suffix."""


def _example(folder: Path) -> str:
    """Return what an example says, and then its files."""
    pages = [_linked((folder / "README.md").read_text(encoding="utf-8"))]
    for path in [of for suffix in LANGUAGES for of in sorted(folder.rglob(f"*.{suffix}"))]:
        language = LANGUAGES[path.suffix[1:]]
        code = path.read_text(encoding="utf-8").strip()
        pages.append(f"## {path.relative_to(folder)}\n\n```{language}\n{code}\n```\n")
    return "\n".join(pages)


def _linked(text: str) -> str:
    """Return the text of an example with links to pages alone."""
    text = re.sub(r"\]\((?:\.\./)+docs/", "](../", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\.(?:py|yaml|sql|csv)\)", r"\1", text)
