"""The manual names only what exists: links, headings, paths of the repository, importable names."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "rlsys/**/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"  # also names what is gone
)
ROOMS = "rlsys|actors|learner|configs|benchmarks|docs|tests|requirements|cluster|examples"
LINK = re.compile(r"\]\(([^)\s]*[./#][^)\s]*)\)")
PATH = re.compile(rf"`((?:{ROOMS})/[\w./-]*)`|(?<![\w./-])((?:configs|benchmarks)/[\w/-]+\.\w+)")
NAME = re.compile(r"`(rlsys\.[\w.]+)`")
IMPORT = re.compile(r"^from (rlsys[\w.]*) import ([\w, ]+)", re.MULTILINE)


def test_what_the_manual_names_exists() -> None:
    assert [f"{page.relative_to(ROOT)}: {fault}" for page in PAGES for fault in faults(page)] == []


def faults(page: Path) -> Iterator[str]:
    """Every link, path and name on the page behind which there is nothing."""
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(text):
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        if "://" in target or target.startswith("mailto:"):
            continue
        if not place.exists():
            yield f"link {target}"
        elif anchor and anchor not in anchors(place):
            yield f"heading {target}"
    yield from (f"path {a or b}" for a, b in PATH.findall(text) if not (ROOT / (a or b)).exists())
    yield from (f"name {name}" for name in NAME.findall(text) if not importable(name))
    for module, names in IMPORT.findall(text):
        for name in names.split(","):
            if not importable(f"{module}.{name.strip()}"):
                yield f"import {module}.{name.strip()}"


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub and MkDocs give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def importable(name: str) -> bool:
    """Whether a dotted name is a package, a module, or a word in the module it begins with."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if source.is_file():
            rest = parts[end : end + 1]
            return all(
                re.search(rf"\b{word}\b", source.read_text(encoding="utf-8")) for word in rest
            )
    return False
