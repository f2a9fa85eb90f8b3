# SPDX-License-Identifier: GPL-2.0
"""Checks that documents name each other, and that the files which they name exist.

Documentation/index.rst must have each document in its text and in its list of contents (toctree).
The targets of :doc: and of the relative links of Markdown must exist.
"""
import re
from pathlib import Path

FOLDER = Path("Documentation")
INDEX = FOLDER / "index.rst"
DOCUMENT = re.compile(r":doc:`(\w+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def complaints(top):
    """Returns a message for each document that the index lacks, and for each missing target."""
    pages = sorted(path.relative_to(top) for path in (top / FOLDER).glob("*.rst"))
    index = (top / INDEX).read_text() if (top / INDEX).is_file() else ""
    contents = re.findall(r"^   (\w+)$", index, re.M)
    found = []
    for name in (page.stem for page in pages if page != INDEX):
        if name not in DOCUMENT.findall(index):
            found.append(f"{INDEX}: the text does not name {name}")
        if name not in contents:
            found.append(f"{INDEX}: the toctree does not have {name}")
    for page in pages:
        targets = DOCUMENT.findall((top / page).read_text())
        found += [f"{page}: there is no document {name}" for name in targets if FOLDER / f"{name}.rst" not in pages]
    for page in sorted(top.glob("*.md")):
        targets = LINK.findall(page.read_text())
        found += [f"{page.name}: there is no {target}" for target in targets if not (top / target).exists()]
    return found
