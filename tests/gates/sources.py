# SPDX-License-Identifier: GPL-2.0
"""Lists the source files of the project, and removes comments, strings and tests from Rust text."""
import re
from pathlib import Path

PLACES = ("rust", "drivers", "include", "librrxe", "cli", "packaging", "tests", "tools", ".ci")
TOP_FILES = ("Kbuild", "Kconfig", "Makefile", "Cargo.toml", "rustfmt.toml", ".clippy.toml")
SUFFIXES = {".rs", ".c", ".h", ".py", ".sh", ".toml", ".yml", ".config"}
NAMES = {"Kbuild", "Kconfig", "Makefile"}
SKIP = {"target", "__pycache__", ".kunit"}

KERNEL_CRATES = ("rust/roce", "rust/bindings", "rust/rdma", "drivers")
UNSAFE_CRATES = ("rust/rdma/", "rust/bindings/")

TOKEN = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)'
    r'|(?P<text>\bb?r(?P<fence>#*)".*?"(?P=fence)|\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*")'
    r"|(?P<char>b?'(?:\\[^']+|\\'|[^'\\\n])')",
    re.S,
)


def files(top):
    """Returns all source files, relative to `top`.

    These are files with known names, files with known suffixes, and files that begin with `#!`.
    """
    found = [Path(name) for name in TOP_FILES if (top / name).is_file()]
    for place in PLACES:
        for path in sorted((top / place).rglob("*")):
            relative = path.relative_to(top)
            if SKIP.intersection(relative.parts) or not path.is_file():
                continue
            if path.suffix in SUFFIXES or path.name in NAMES or is_script(path):
                found.append(relative)
    return found


def is_script(path):
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def rust(top):
    return [path for path in files(top) if path.suffix == ".rs"]


def kernel_rust(top):
    """Returns the Rust files of the kernel module, without the files that only tests compile."""
    return [path for path in rust(top) if in_kernel(path) and not is_test(top, path)]


def in_kernel(path):
    return str(path).startswith(KERNEL_CRATES)


def is_test(top, path):
    """Returns whether a parent module declares this file, or a folder above it, for tests only."""
    parts = path.with_suffix("").parts
    for depth in range(1, len(parts)):
        folder, name = top.joinpath(*parts[:depth]), parts[depth]
        for parent in (folder / "mod.rs", folder / "lib.rs", folder.with_suffix(".rs")):
            if parent.is_file() and declared_for_tests(parent.read_text(), name):
                return True
    return False


def declared_for_tests(text, name):
    attribute = r"#\[(?:cfg\((?:test|CONFIG_\w*KUNIT\w*)\)|kunit_tests\([^)]*\))\]"
    return re.search(rf"{attribute}\s*(?:pub(?:\([a-z]+\))? )?mod {name}\s*;", text) is not None


def blank(match):
    """Returns blanks in place of a match, so that the text after it keeps its columns."""
    return re.sub(r"[^\n]", " ", match[0])


def code(text):
    """Returns Rust text with comments, strings and character literals replaced by blanks."""
    return TOKEN.sub(blank, text)


def kernel_code(text):
    """Returns the code of a file that runs in the kernel.

    This is `code` without tests, `const` blocks and assertions at compile time.
    """
    text = code(text)
    for start in (
        r"#\[cfg\((?:test|CONFIG_\w*KUNIT\w*)\)\][^{;]*\{",
        r"#\[kunit_tests\([^)]*\)\][^{;]*\{",
        r"\bconst\s*\{",
        r"\bconst _: \(\) = \{",
    ):
        text = without_blocks(text, start)
    return re.sub(r"\bconst _: \(\) = assert!\([^;]*;", blank, text)


def without_blocks(text, start):
    """Replaces each block whose beginning matches `start`, up to its closing brace, by blanks."""
    at = 0
    while match := re.compile(start, re.S).search(text, at):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: match.start()] + re.sub(r"[^\n]", " ", text[match.start() : end]) + text[end:]
        at = end
    return text


def places(path, text, pattern):
    """Returns `file:line: text` for each match of a pattern."""
    return [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match[0].strip()}"
        for match in re.finditer(pattern, text)
    ]
