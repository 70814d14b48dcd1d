"""Let pages link to files of the repository; the website holds only what is below docs/."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#]*)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Replace every link that leaves docs/ by its text and its path in the repository.

    A link to a file that does not exist stays as it is, so that `mkdocs build --strict` reports it.
    """
    folder = (DOCS / PurePosixPath(page.file.src_uri)).parent

    def replace(match: re.Match[str]) -> str:
        text, target = match[1], (folder / match[2]).resolve()
        if target.is_relative_to(DOCS) or not target.exists():
            return match[0]
        path = target.relative_to(ROOT).as_posix()
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return LINK.sub(replace, markdown)
