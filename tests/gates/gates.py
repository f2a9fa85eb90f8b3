#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Static checks ("gates") of the source tree. The code is not run.

Each gate is a function that takes the root of the repository and returns a list of messages, one
for each violation. The first line of its docstring is its name in the output. The program prints
`ok - gate: NAME` or `not ok - gate: NAME` for each gate. The text gates read only the sources and
the commit messages; the tool gates call compilers and linters. `selftest.py` shows that each gate
can fail.
"""
import os
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import conformance
import documents
import guarantees
import history
import reference
import sources
import versions

TOP = Path(__file__).resolve().parents[2]
PANICS = r"\.(?:unwrap|expect)\(|\b(?:panic|unreachable|todo|unimplemented|assert|assert_eq|assert_ne)!"
PANIC_SYMBOL = r"panick|_fail(?:ed)?(?:\b|$)|mismatch"
MAX_LINES = 640
MAX_COLUMNS = 100
# Beginnings of the lines of comments, by the suffix of the file.
COMMENT_STARTS = {".rs": ("//",), ".c": ("//", "/*", "*"), ".h": ("//", "/*", "*")}


def run(top, command, **environment):
    """Runs a tool; returns its status and the last 60 lines of its output if it fails, and no line
    otherwise."""
    try:
        result = subprocess.run(
            command, cwd=top, env=os.environ | environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )
    except FileNotFoundError as missing:
        return [str(missing)]
    if result.returncode == 0:
        return []
    return [f"{command[0]} exits with status {result.returncode}", *result.stdout.splitlines()[-60:]]


def formatting(top):
    """rustfmt would change no file"""
    paths = [str(path) for path in sources.rust(top)]
    return run(top, ["rustfmt", "--check", "-l", "--edition", "2021", *paths])


def lints(top):
    """clippy reports nothing in the cargo workspace and the users' command"""
    command = ["cargo", "clippy", "-q", "--workspace", "--all-targets", "--message-format=short"]
    manifests = [path for path in ("Cargo.toml", "cli/Cargo.toml") if (top / path).exists()]
    return [
        complaint for manifest in manifests
        for complaint in run(top, [*command, "--manifest-path", manifest, "--", "-D", "warnings"])
    ]


def documentation(top):
    """rustdoc reports nothing in the engine"""
    command = ["cargo", "doc", "-q", "--no-deps", "-p", "roce", "--document-private-items"]
    return run(top, command, RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links")


def shell(top):
    """shellcheck reports nothing"""
    paths = [
        str(path) for path in sources.files(top)
        if re.match(rb"#!.*\b(?:ba)?sh\b", (top / path).read_bytes()[:40])
    ]
    # SC2034 (unused variable): a script may set a variable for the library that it sources.
    command = ["shellcheck", "--severity=warning", "--exclude=SC2034", *paths]
    return run(top, command) if paths else ["no shell scripts found"]


def license_of(path, annotations):
    """Returns the license of a file: that of the last annotation of REUSE.toml that matches."""
    def matches(annotation):
        patterns = annotation["path"]
        patterns = [patterns] if isinstance(patterns, str) else patterns
        return any(fnmatch(str(path), pattern) for pattern in patterns)
    return [each["SPDX-License-Identifier"] for each in annotations if matches(each)][-1]


def licenses(top):
    """every source file has a line with the SPDX license identifier that REUSE.toml states for it"""
    complaints = []
    annotations = tomllib.loads((top / "REUSE.toml").read_text())["annotations"]
    for path in sources.files(top):
        cargo = license_of(path, annotations)
        # The kernel says GPL-2.0, and puts a choice of licenses with an exception in parentheses.
        license = cargo.replace("GPL-2.0-only", "GPL-2.0")
        if " WITH " in license:
            license = f"({license})"
        text = (top / path).read_text()
        header = rf"SPDX-License-Identifier: {re.escape(license)}(?: \*/| -->)?$"
        if not any(re.search(header, line) for line in text.splitlines()[:3]):
            complaints.append(f"{path}: no header with the license {license}")
        if path.name == "Cargo.toml" and set(re.findall(r'^license = "(.*)"$', text, re.M)) - {cargo}:
            complaints.append(f"{path}: the field license is not {cargo}")
    return complaints


def reuse(top):
    """reuse reports no file without copyright notice, license and text of the license"""
    return run(top, ["reuse", "lint", "--lines"])


def forbidden_unsafe(top):
    """the engine and the driver forbid unsafe code; in the kernel, only the abstractions have any"""
    roots = ("rust/roce/lib.rs", "drivers/infiniband/sw/rrxe/lib.rs")
    complaints = [
        f"{root}: no #![forbid(unsafe_code)]" for root in roots
        if "#![forbid(unsafe_code)]" not in (top / root).read_text().splitlines()
    ]
    for path in sources.rust(top):
        # The provider and the test programs for user space call libibverbs and make system calls,
        # which takes unsafe code.
        if not str(path).startswith((*sources.UNSAFE_CRATES, "librrxe/provider/", "tests/verbs/", "tests/fuzz/src/sys.rs", "tests/fuzz/src/stats.rs")):
            complaints += sources.places(path, sources.code((top / path).read_text()), r"\bunsafe\b")
    return complaints


def justified_unsafe(top):
    """every unsafe block, impl and function has a comment on its soundness"""
    complaints = []
    for path in sources.rust(top):
        text = (top / path).read_text()
        lines = text.splitlines()
        for number, line in enumerate(sources.code(text).splitlines()):
            for match in re.finditer(r"\bunsafe\s*(\{|impl\b|fn\b|trait\b|extern\s*(?:fn\b|\{)?)", line):
                wanted = "# Safety" if match[1] in ("fn", "trait") else "SAFETY:"
                if match[1].startswith("extern"):
                    wanted = "(# Safety|SAFETY:)"
                in_trait_impl = match[1] == "fn" and implements_trait(lines, number)
                if not in_trait_impl and not explained(lines, number, wanted):
                    complaints.append(f"{path}:{number + 1}: {line.strip()}")
    return complaints


def implements_trait(lines, number):
    """Returns whether a line lies in an `impl Trait for Type`.

    There the `# Safety` section is in the documentation of the trait.
    """
    indent = len(lines[number]) - len(lines[number].lstrip())
    for line in reversed(lines[:number]):
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            return re.search(r"\bimpl\b.*\bfor\b|^\s*for\b", line) is not None
    return False


def explained(lines, number, wanted):
    """Returns whether the comment above the statement of a line matches the pattern `wanted`.

    A comment with SAFETY at the end of the line itself counts, too.
    """
    at = number - 1
    if wanted == "SAFETY:" and re.search(r"//.*SAFETY:", lines[number]):
        return True
    while at >= 0 and not lines[at].lstrip().startswith("//"):
        above = re.sub(r"\s*//.*", "", lines[at]).rstrip()
        if not above or (above.endswith((";", "{", "}")) and not above.lstrip().startswith("#[")):
            return False
        at -= 1
    while at >= 0 and lines[at].lstrip().startswith("//"):
        if re.search(wanted, lines[at]):
            return True
        at -= 1
    return False


def no_panics(top):
    """the kernel's crates contain no panicking call or macro"""
    return [
        complaint
        for path in sources.kernel_rust(top)
        for complaint in sources.places(path, sources.kernel_code((top / path).read_text()), PANICS)
    ]


def no_notes_or_dead_code(top):
    """no comment contains a to-do note or code"""
    marks = r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"
    dead = r"^[ \t]*//[ \t](?:let |if |for |return\b|pub |fn |use )[^\n]*[;{]$"
    complaints = []
    for path in sources.files(top):
        text = (top / path).read_text()
        complaints += sources.places(path, text, marks)
        if path.suffix == ".rs":
            complaints += sources.places(path, text, re.compile(dead, re.M))
    return complaints


def short_files(top):
    """no source file is longer than 640 lines"""
    lengths = {path: len((top / path).read_text().splitlines()) for path in sources.files(top)}
    return [f"{path}: {length} lines" for path, length in lengths.items() if length > MAX_LINES]


def narrow_comments(top):
    """no comment of Rust and C code is wider than 100 columns (no formatter wraps them)"""
    complaints = []
    for path in sources.files(top):
        starts = COMMENT_STARTS.get(path.suffix)
        if starts is None:
            continue
        for number, line in enumerate((top / path).read_text().splitlines(), 1):
            # checkpatch.pl counts bytes, too.
            columns = len(line.expandtabs(8).encode())
            if line.lstrip().startswith(starts) and columns > MAX_COLUMNS:
                complaints.append(f"{path}:{number}: {columns} columns")
    return complaints


def no_panic_symbols(top):
    """the engine's object code refers to no panic"""
    qp, instances = top / "rust/roce/qp/mod.rs", top / "tests/gates/engine_object.rs"
    methods = re.findall(r"^    pub fn (\w+)", qp.read_text(), re.M) if qp.exists() else []
    instantiated = set(re.findall(r"^pub fn (\w+)", instances.read_text(), re.M))
    if missing := [name for name in methods if name not in instantiated]:
        return [f"engine_object.rs has no instance of {name}" for name in missing]
    flags = ["--edition=2021", "--crate-type=lib", "-Copt-level=2", "-Cpanic=abort",
             "-Coverflow-checks=on", "-Cdebug-assertions=off", "-Ccodegen-units=1",
             "-Csymbol-mangling-version=v0"]
    with tempfile.TemporaryDirectory() as out:
        crates = (("roce", "rust/roce/lib.rs"), ("engine_object", "tests/gates/engine_object.rs"))
        for crate, root in crates:
            emit = f"--emit=metadata={out}/lib{crate}.rmeta,obj={out}/{crate}.o"
            if complaints := run(top, ["rustc", *flags, f"--crate-name={crate}", f"-L{out}", emit, root]):
                return complaints
        symbols = {crate: subprocess.check_output(["nm", f"{out}/{crate}.o"], text=True) for crate, _ in crates}
    if "handle_packet" not in symbols["engine_object"]:
        return ["the engine's code is missing from the object"]
    return [
        f"{crate}: {line.strip()}"
        for crate, text in symbols.items()
        for line in text.splitlines()
        if re.search(rf" U .*(?:{PANIC_SYMBOL})", line)
    ]


def existing_tests(top):
    """each test that conformance.rst names exists"""
    return conformance.complaints(top)


def listed_guarantees(top):
    """safety.rst lists each guarantee of other code that a comment relies on"""
    return guarantees.complaints(top)


def no_driver_names(top):
    """rust/rdma names rrxe and C rxe only in abi and the tracepoints"""
    complaints = []
    for path in sources.kernel_rust(top):
        if not str(path).startswith("rust/rdma/") or str(path).startswith(("rust/rdma/abi", "rust/rdma/trace.rs")):
            continue
        for number, line in enumerate((top / path).read_text().splitlines(), 1):
            # String literals (names of lock classes) and names of KUnit suites may have the name
            # of the driver: they are texts for people.
            visible = re.sub(r'c?"[^"]*"|kunit_tests\(\w+\)', "", line)
            if re.search(r"r?rxe", visible, re.I):
                complaints.append(f"{path}:{number}: {line.strip()}")
    return complaints


def complete_reference(top):
    """the tables of reference.rst, and rrxe(7), have the names that the source defines"""
    return reference.complaints(top)


def linked_documents(top):
    """index.rst names each document, and the targets of links between documents exist"""
    return documents.complaints(top)


def one_version(top):
    """all files that state the version of rrxe have that of Cargo.toml"""
    return versions.complaints(top)


def commit_messages(top):
    """each commit message has a subject, a reason and a sign-off"""
    return history.complaints(top)


def applicable_mutants(top):
    """each mutant changes one place of the engine, and its unit test exists"""
    script = top / "tests/sim/mutants.py"
    if not script.exists():
        return []
    tests_of_tree, complaints = conformance.Tests(top), []
    for name, path, text, _, *tests in runpy.run_path(str(script))["MUTANTS"]:
        found = (top / "rust/roce" / path).read_text().count(text)
        if found != 1:
            complaints.append(f"{name}: the text to change occurs {found} times in {path}")
        complaints += [
            f"{name}: there is no test {test}"
            for test in tests if not tests_of_tree.exists(f"engine: {test}")
        ]
    return complaints


TEXT_GATES = (
    licenses, forbidden_unsafe, justified_unsafe, no_panics, no_notes_or_dead_code, short_files,
    narrow_comments, existing_tests, listed_guarantees, no_driver_names, complete_reference,
    linked_documents, one_version, commit_messages, applicable_mutants,
)
TOOL_GATES = (reuse, formatting, lints, documentation, shell, no_panic_symbols)


def unsafe_count(top):
    """Returns the number of unsafe blocks and impls of the kernel module."""
    return sum(
        len(re.findall(r"\bunsafe\s*(?:\{|impl\b)", sources.code((top / path).read_text())))
        for path in sources.kernel_rust(top)
    )


def main():
    failed = False
    for gate in TEXT_GATES + TOOL_GATES:
        complaints = gate(TOP)
        print(f"{'not ok' if complaints else 'ok'} - gate: {gate.__doc__.splitlines()[0]}", flush=True)
        for complaint in complaints:
            print(f"# {complaint}")
        failed |= bool(complaints)
    print(f"# the module has {unsafe_count(TOP)} unsafe blocks and impls")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
