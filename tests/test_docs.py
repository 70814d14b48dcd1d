"""The manual names only what exists: links, headings, paths of the repository, importable names."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "rlsys/**/*.md")
PAGES = sorted({page for folder in FOLDERS for page in ROOT.glob(folder)})
ROOMS = "rlsys|actors|learner|configs|benchmarks|docs|tests|requirements|cluster|examples"
LINK = re.compile(r"\]\((?!\w+:)([^)\s]*[./#][^)\s]*)\)")
PATH = re.compile(rf"`((?:{ROOMS})/[\w./-]*)`|(?<![\w./-])((?:configs|benchmarks)/[\w/-]+\.\w+)")
NAME = re.compile(r"(?:`|^::: )(rlsys\.[\w.]+)(?:`|$)", re.MULTILINE)
IMPORT = re.compile(r"^from (rlsys[\w.]*) import ([\w, ]+)", re.MULTILINE)


def test_what_the_manual_names_exists() -> None:
    assert [f"{page.relative_to(ROOT)}: {fault}" for page in PAGES for fault in faults(page)] == []


def faults(page: Path) -> Iterator[str]:
    """Every link, path and name on a page that leads to nothing."""
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(text):
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            yield f"link {target}"
    if page.name == "CHANGELOG.md":  # it also names modules that are gone
        return
    yield from (f"path {a or b}" for a, b in PATH.findall(text) if not (ROOT / (a or b)).exists())
    names = [f"{module}.{n.strip()}" for module, ns in IMPORT.findall(text) for n in ns.split(",")]
    yield from (f"name {n}" for n in [*NAME.findall(text), *names] if not importable(n))


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub and MkDocs give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def importable(name: str) -> bool:
    """Whether a dotted name is a package, a module, or a word in the source of a module."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if source.is_file():
            text = source.read_text(encoding="utf-8")
            return all(re.search(rf"\b{word}\b", text) for word in parts[end : end + 1])
    return False
