#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""place.py REPOSITORY TREE: copies rrxe into the kernel tree TREE, or updates the copy.

All crates go below drivers/infiniband/sw/rrxe, because kbuild links one module from one directory
and the directories below it. make compares times of modification, so a file is written only if its
content changes. Files that the repository no longer has are removed. Documentation/upstream.rst
lists the places and their reasons.
"""
import os
import re
import sys
from pathlib import Path

HOME = Path("drivers/infiniband/sw/rrxe")
DOCUMENTS = Path("Documentation/infiniband/rrxe")
HEADERS = (Path("include/trace/events/rrxe.h"), Path("include/uapi/rdma/rrxe-abi.h"))
CRATES = ("roce", "rdma", "bindings", "helpers")
PLACES = (
    *((Path("rust", crate), HOME / crate) for crate in CRATES),
    (HOME, HOME),
    (Path("tests/kunit"), HOME / "tests"),
    (Path("Kconfig"), HOME / "Kconfig"),
    (Path("Kbuild"), HOME / "Makefile"),
    (Path("include"), Path("include")),
    (Path("Documentation"), DOCUMENTS),
)


# Names of files that stay in the repository: only cargo reads Cargo.toml, version.c is for the external
# module, upstream.rst describes the placement, and only README shows demo.svg.
NOT_PLACED = ("Cargo.toml", "version.c", "upstream.rst", "demo.svg")


def makefile(text):
    """Returns the Makefile of the driver, made from the text of the repository's Kbuild file."""
    text = re.sub(r"ifdef KBUILD_EXTMOD\n.*?endif\n", "", text, flags=re.S)
    text = re.sub(r"^rrxe-driver := .*\n+", "", text, flags=re.M)
    text = text.replace("$(rrxe-driver)/", "").replace("tests/kunit/", "tests/")
    text = re.sub(r"^CFLAGS_rust/helpers/trace\.o .*\n+", "", text, flags=re.M)
    text = re.sub(rf"(?<![a-z])rust/({'|'.join(CRATES)})\b", r"\1", text)
    text = text.replace("drivers/…/rrxe  the driver", "this directory  the driver")
    return re.sub(r"^# Works as an external module.*\n", "", text, flags=re.M)


def adapted(source, text):
    """Returns the text of a file of the repository, with the paths of the kernel tree."""
    if source.name == "Kbuild":
        return makefile(text)
    if source.name == "Makefile.bindgen":
        return re.sub(r"(?<![a-z])rust/(bindings|helpers)\b", r"\1", text).replace("root Kbuild", "driver's Makefile")
    if source.name == "Kconfig":
        return re.sub(r"^# For a kernel tree .*\n\n", "", text, flags=re.M)
    text = re.sub(r'"\.\./\.\./include/uapi/(rdma/.*?)"', r"<\1>", text)
    text = text.replace("tests/kunit/", f"{HOME}/tests/")
    # Comments name a file by its crate. Documents are not below the driver, and name whole paths.
    home = f"{HOME}/" if source.suffix == ".rst" else ""
    if source.name == "index.rst":
        text = re.sub(r"^(\* :doc:`upstream`.*|   upstream)\n", "", text, flags=re.M)
        text = re.sub(r"^These are the documents of rrxe .*\n\n", "", text, flags=re.M)
    return re.sub(rf"\brust/({'|'.join(CRATES)})\b", rf"{home}\1", text)


def write(path, text):
    """Writes a file, unless it has this content.

    The new file replaces the old one. Other hard links to the old file keep its content.
    """
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    os.replace(new, path)


def edit(path, change):
    """Writes change(text) to a file of the kernel's own, whose text it reads."""
    write(path, change(path.read_text()))


def files(repository):
    """Yields (source, place) of each file, relative to the repository and to the tree."""
    for source, place in PLACES:
        if (repository / source).is_file():
            yield source, place
        for path in sorted((repository / source).rglob("*")):
            if path.is_file() and path.name not in NOT_PLACED:
                yield path.relative_to(repository), place / path.relative_to(repository / source)


def entry(repository):
    """Returns the driver's entry for MAINTAINERS, with the paths of the kernel tree."""
    paths = (f"{HOME}/", f"{DOCUMENTS}/", *map(str, HEADERS))
    text = (repository / "MAINTAINERS").read_text().split("\n\n", 1)[1]
    text = re.sub(r"^F:\t.*\n", "", text, flags=re.M)
    return text.rstrip() + "\n" + "".join(f"F:\t{path}\n" for path in sorted(paths)) + "\n"


def list_maintainers(tree, repository):
    """Puts the driver's entry into the alphabetical list of MAINTAINERS, or replaces it there."""
    own = entry(repository)
    title = own.splitlines()[0]

    def change(text):
        head, _, entries = text.partition("Maintainers List\n")
        entries = re.sub(rf"^{re.escape(title)}\n.*?\n\n", "", entries, flags=re.M | re.S)
        later = re.search(r"^(?:RS|RT|RU|S[A-Z])[^\n]*\n[MLSW]:\t", entries, re.M)
        at = later.start() if later else len(entries)
        return f"{head}Maintainers List\n{entries[:at]}{own}{entries[at:]}"

    edit(tree / "MAINTAINERS", change)


def connect(tree):
    """Adds the driver to the kernel's own Makefile and Kconfig files."""
    line = "obj-$(CONFIG_RDMA_RRXE)\t\t+= rrxe/\n"
    edit(tree / "drivers/infiniband/sw/Makefile", lambda text: text if line in text else text + line)
    source = f'source "{HOME}/Kconfig"\n'
    before = 'source "drivers/infiniband/sw/rxe/Kconfig"\n'
    edit(
        tree / "drivers/infiniband/Kconfig",
        lambda text: text if source in text else text.replace(before, before + source),
    )


def document(tree):
    """Adds the driver's documents to an index of the kernel's documentation."""
    line, before = "   rrxe/index\n", "   sysfs\n"
    edit(
        tree / "Documentation/infiniband/index.rst",
        lambda text: text if line in text else text.replace(before, line + before),
    )


def keep_large_bss(tree):
    """Puts clang's section .lbss into the .bss of User-Mode Linux.

    In the large code model, clang names the section .lbss instead of .bss. Lockdep regards a lock
    as static if its address is in .bss, and turns itself off when it finds a static lock elsewhere.
    """
    edit(
        tree / "arch/um/kernel/dyn.lds.S",
        lambda text: text if ".lbss" in text else text.replace("*(.bss .bss.* ", "*(.bss .bss.* .lbss .lbss.* "),
    )


def place(repository, tree, wanted=lambda path: True):
    """Copies the files whose places in the tree `wanted` selects.

    Removes files of the driver that the repository no longer has.
    """
    placed = {path: source for source, path in files(repository)}
    for path, source in placed.items():
        if wanted(path):
            write(tree / path, adapted(source, (repository / source).read_text()))
    for folder in (HOME, DOCUMENTS):
        for path in (tree / folder).rglob("*"):
            if path.is_file() and path.relative_to(tree) not in placed:
                path.unlink()


def main():
    repository, tree = (Path(argument).resolve() for argument in sys.argv[1:3])
    keep_large_bss(tree)
    place(repository, tree)
    connect(tree)
    document(tree)
    list_maintainers(tree, repository)


if __name__ == "__main__":
    main()
