#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of the gates (gates.py): each gate reports violations, and nothing else.

Each case of CASES makes a small repository, which breaks no rule except by the files of the case,
and names the gates that must report it. All other gates that run must report nothing. OBJECTS tests
panics.py with object files, MESSAGES tests history.py with messages of commits, and VERSIONED and
RELEASES test versions.py with files that state a version.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gates
import history
import panics
import versions

SPDX = "// SPDX-License-Identifier: GPL-2.0\n\n"
ROOT = "//! Words.\n#![no_std]\n#![forbid(unsafe_code)]\n"
MEMBER = '[package]\nname = "roce"\nversion = "0.1.0"\nedition = "2021"\n[lib]\npath = "lib.rs"\n'
OBJECT_SOURCE = (
    "extern crate roce;\n\n#[inline(never)]\n"
    "pub fn handle_packet() {\n    roce::handle_packet()\n}\n"
)
TABLE = ".. SPDX-License-Identifier: GPL-2.0\n\n.. list-table::\n\n"
GOOD = {
    "LICENSES/GPL-2.0-only.txt": "Words.\n",
    "REUSE.toml": 'version = 1\n[[annotations]]\npath = ["*/**", "*.md", "Cargo.*"]\nprecedence = "override"\n'
                  'SPDX-FileCopyrightText = "2026 A"\nSPDX-License-Identifier = "GPL-2.0-only"\n'
                  '[[annotations]]\npath = "librrxe/**"\nprecedence = "override"\n'
                  'SPDX-FileCopyrightText = "2026 A"\nSPDX-License-Identifier = "GPL-2.0-only OR Linux-OpenIB"\n',
    "Documentation/conformance.rst": TABLE + "   * - a\n     - works\n     - ``30-sim``\n",
    "tests/suites.d/30-sim": "#!/bin/sh\n# SPDX-License-Identifier: GPL-2.0\necho\n",
    "Cargo.toml": "# SPDX-License-Identifier: GPL-2.0\n[workspace]\nmembers = ['rust/roce']\nresolver = '2'\n",
    "rust/roce/Cargo.toml": "# SPDX-License-Identifier: GPL-2.0\n" + MEMBER,
    "rust/roce/lib.rs": SPDX + ROOT + "\n/// Words.\npub fn handle_packet() {}\n",
    "drivers/infiniband/sw/rrxe/lib.rs": SPDX + ROOT,
    "rust/rdma/lib.rs": SPDX + "//! Words.\n",
    "tests/gates/engine_object.rs": SPDX + OBJECT_SOURCE,
    "tests/run.sh": "#!/bin/sh\n# SPDX-License-Identifier: GPL-2.0\necho\n",
}

ENGINE, DRIVER, RDMA = "rust/roce/lib.rs", "drivers/infiniband/sw/rrxe/lib.rs", "rust/rdma/lib.rs"


def engine(text):
    return {ENGINE: SPDX + ROOT + "\n/// Words.\npub fn handle_packet() {}\n" + text}


def rdma(text):
    return {RDMA: SPDX + "//! Words.\n\n" + text}


def index(*names):
    """Returns an index.rst that names these documents."""
    lines = "".join(f"* :doc:`{name}`\n" for name in names)
    contents = "".join(f"   {name}\n" for name in names)
    return f".. SPDX-License-Identifier: GPL-2.0\n\n{lines}\n.. toctree::\n\n{contents}"


def table(state, tests):
    return {"Documentation/conformance.rst": TABLE + f"   * - a\n     - {state}\n     - {tests}\n"}


def mutant(text, *tests):
    """Returns a mutants.py with one mutant, which replaces this text of the engine."""
    script = f"# SPDX-License-Identifier: GPL-2.0\nMUTANTS = [{('a', 'lib.rs', text, 'b', *tests)!r}]\n"
    return {"tests/sim/mutants.py": script}


SAFETY = (
    ".. SPDX-License-Identifier: GPL-2.0\n\nGuarantees of others\n====================\n\n.. list-table::\n\n"
    '   * - "{}"\n     - ``f()``\n\nMore\n====\n'
)


def unsafe_block(comment, claim=None):
    """Returns a source with an unsafe block below this comment, and a table with this claim."""
    text = rdma(f"fn f() {{\n    // {comment}\n    unsafe {{ g() }}\n}}\n")
    return text | ({"Documentation/safety.rst": SAFETY.format(claim)} if claim else {})


CHECK = {"tests/verbs/src/bin/rrxe-check/a.rs": SPDX + '//! Words.\n\nconst A: &str = "{kind}: success after RNR";\n'}

REFERENCE = ".. SPDX-License-Identifier: GPL-2.0\n\n.. list-table:: Counters of a device\n\n"
COUNTER = {"drivers/infiniband/sw/rrxe/device/stats.rs": SPDX + '//! Words.\nstatic A: CounterName = CounterName::new(c"sent_pkts");\n'}
PARAMETER = {
    DRIVER: SPDX + ROOT
    + "module! {\n    params: {\n        pollers: u32 {\n            default: 3,\n        },\n    },\n}\n",
}


def reference(*rows, title="Counters of a device", page=".B sent_pkts\n"):
    """Returns a reference.rst whose table has these rows, each a name and a text, and a man page."""
    lines = "".join(f"   * - ``{name}``\n     - {text}\n" for name, text in rows)
    return {"Documentation/reference.rst": REFERENCE.replace("Counters of a device", title) + lines, "cli/rrxe.7": page}


INDEX = "\n/// Words.\n#[inline(never)]\npub fn f(bytes: &[u8], at: usize) -> u8 {\n    bytes[at]\n}\n"
BLOCK = "fn f() {\n    unsafe { g() }\n}\n"
TEST = "\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {\n        super::handle_packet();\n    }\n}\n"
TESTS = "\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {\n        assert!(true);\n        None::<u8>.unwrap();\n    }\n}\n"

CASES = {
    "a tree without violations": ({}, ()),
    "a SAFETY comment whose guarantee is not in the table": (
        unsafe_block("SAFETY: ib_core holds the QP."), ("listed_guarantees",)),
    "a SAFETY comment whose guarantee is in the table": (
        unsafe_block("SAFETY: Valid, for ib_core holds the QP.", "ib_core holds the *"), ()),
    "a SAFETY comment with another guarantee than the table's": (
        unsafe_block("SAFETY: ib_core holds the QP.", "ib_core locks the *"),
        ("listed_guarantees",)),
    "a guarantee of the table that no comment relies on": (
        unsafe_block("SAFETY: Words.", "ib_core holds the *"), ("listed_guarantees",)),
    "a documentation comment whose guarantee is not in the table": (
        rdma("/// Words. Meanwhile ib_core holds the QP.\nfn f() {}\n"), ("listed_guarantees",)),
    "a comment about ib_core without a promise": (
        rdma("/// What ib_core passes.\nfn f() {}\n"), ()),
    "a file without an SPDX line": ({"rust/rdma/a.rs": "//! Words.\n"}, ("licenses",)),
    "a file of librrxe with the license of the module": (
        {"librrxe/rings/src/a.rs": SPDX + "//! Words.\n"}, ("licenses",)),
    "a crate whose field license is not that of its header": (
        {"rust/roce/Cargo.toml": GOOD["rust/roce/Cargo.toml"] + "license = \"MIT\"\n"}, ("licenses",)),
    "a file of no annotation": ({"words.txt": "Words.\n"}, ("reuse",)),
    "a script without an SPDX line": ({"tools/script": "#!/bin/sh\necho\n"}, ("licenses",)),
    "a driver that doesn't forbid unsafe code": (
        {DRIVER: SPDX + "//! Words.\n#![no_std]\n"}, ("forbidden_unsafe",)),
    "unsafe code in the driver": (
        {DRIVER: SPDX + ROOT + "// SAFETY: Words.\n" + "unsafe impl Send for A {}\n"}, ("forbidden_unsafe",)),
    "the word unsafe in comments and strings": (
        engine('\n/// It is unsafe.\npub const A: &str = "unsafe {";\n'), ()),
    "an unsafe block without SAFETY comment": (rdma(BLOCK), ("justified_unsafe",)),
    "an unsafe block with SAFETY comment": (
        rdma("fn f() {\n    // SAFETY: Words.\n    unsafe { g() }\n}\n"), ()),
    "an unsafe block below another statement's SAFETY comment": (
        rdma("fn f() {\n    // SAFETY: Words.\n    let a = 1;\n    unsafe { g() }\n}\n"), ("justified_unsafe",)),
    "an unsafe impl without SAFETY comment": (
        rdma("unsafe impl Send for A {}\n"), ("justified_unsafe",)),
    "an unsafe function without # Safety section": (
        rdma("/// Words.\npub unsafe fn f() {}\n"), ("justified_unsafe",)),
    "an unsafe function of a trait implementation": (
        rdma("impl A for B {\n    unsafe fn f() {}\n}\n"), ()),
    "a call of unwrap": (rdma("fn f() {\n    g().unwrap();\n}\n"), ("no_panics",)),
    "an assertion": (rdma("fn f(a: bool) {\n    assert!(a);\n}\n"), ("no_panics",)),
    "the macro unreachable": (
        {DRIVER: SPDX + ROOT + "fn f() {\n    unreachable!()\n}\n"}, ("no_panics",)),
    "panics in tests": (rdma(TESTS.lstrip()), ()),
    "assertions at compile time": (rdma("const _: () = assert!(size_of::<u8>() == 1);\n"), ()),
    "a panic in code below the tests": (
        rdma(TESTS.lstrip() + "\nfn f() {\n    todo!()\n}\n"), ("no_panics",)),
    "a to-do note": (rdma("// TO" "DO: words\n"), ("no_notes_or_dead_code",)),
    "code in a comment": (rdma("// let a = f(b);\n"), ("no_notes_or_dead_code",)),
    "a long file": (rdma("// Words.\n" * 700), ("short_files",)),
    "a wide comment": (rdma("// " + "Words " * 17 + "\n"), ("narrow_comments",)),
    "a comment of C with a wide indentation": (
        {"include/a.h": SPDX + "\t" * 11 + " * Words words\n"}, ("narrow_comments",)),
    "an unformatted file": (rdma("fn f( ) {}\n"), ("formatting",)),
    "code that clippy warns about": (
        engine("\n/// Words.\npub fn f(a: bool) -> bool {\n    a == true\n}\n"), ("lints",)),
    "code of the users' command that clippy warns about": (
        {"cli/Cargo.toml": "# SPDX-License-Identifier: GPL-2.0\n[package]\nname = 'cli'\n[workspace]\n",
         "cli/src/lib.rs": SPDX + "//! Words.\n\n/// Words.\npub fn f(a: bool) -> bool {\n    a == true\n}\n"},
        ("lints",)),
    "a broken link in the documentation": (
        engine("\n/// See [`nothing`].\npub fn f() {}\n"), ("documentation",)),
    "a script that shellcheck warns about": (
        {"tests/run.sh": GOOD["tests/run.sh"] + "cd $1\nunused=1\n"}, ("shell",)),
    "a conformance row with a guest script that does not exist": (
        table("works", "``gone.sh``"), ("existing_tests",)),
    "a conformance row with an engine test that does not exist": (
        table("works", "``engine: gone``"), ("existing_tests",)),
    "a conformance row with an engine function that is no test": (
        table("works", "``engine: handle_packet``"), ("existing_tests",)),
    "a conformance row with a part of a check's name": (
        table("works", "``rrxe-check: after RNR``") | CHECK, ("existing_tests",)),
    "a conformance row with a check whose name has a placeholder": (
        table("works", "``rrxe-check: RC: success after RNR``") | CHECK, ()),
    "a conformance row that says works without a test": (
        table("works", "see there"), ("existing_tests",)),
    "a conformance row with an unknown state": (table("nearly", "``30-sim``"), ("existing_tests",)),
    "a conformance row that says missing without a test": (table("missing", "none"), ()),
    "a comment of rust/rdma that names the driver": (
        rdma("// As rrxe wants it.\n"), ("no_driver_names",)),
    "a lock of rust/rdma named after the driver": (rdma('const A: &CStr = c"rrxe_lock";\n'), ()),
    "a comment of rust/rdma/abi that names C rxe": (
        {"rust/rdma/abi/a.rs": SPDX + "//! Layouts of rxe.\n"}, ()),
    "a counter that reference.rst lists": (COUNTER | reference(("sent_pkts", "Words.")), ()),
    "a counter that reference.rst does not list": (COUNTER, ("complete_reference",)),
    "a counter of reference.rst that does not exist": (
        COUNTER | reference(("sent_pkts", "a"), ("gone", "b")), ("complete_reference",)),
    "a parameter with another default in reference.rst": (
        PARAMETER | reference(("pollers", "``0``"), title="Module parameters", page='.BR pollers " (default 3)"\n'),
        ("complete_reference",)),
    "a parameter with its default": (
        PARAMETER | reference(("pollers", "``3``"), title="Module parameters", page='.BR pollers " (default 3)"\n'), ()),
    "a parameter with another default in the man page": (
        PARAMETER | reference(("pollers", "``3``"), title="Module parameters", page='.BR pollers " (default 0)"\n'),
        ("complete_reference",)),
    "a counter that the man page lacks": (
        COUNTER | reference(("sent_pkts", "Words."), page=".B other\n"), ("complete_reference",)),
    "a counter of the man page that does not exist": (
        COUNTER | reference(("sent_pkts", "Words."), page='.BR sent_pkts ", " drop_gone\n'), ("complete_reference",)),
    "documents that the index names, and links to files that exist": (
        {"README.md": "[a](Documentation/conformance.rst) [b](https://b.example/c)\n"}, ()),
    "a link to a file that does not exist": ({"README.md": "![a](gone.svg)\n"}, ("linked_documents",)),
    "a reference to a document that does not exist": (
        {"Documentation/a.rst": TABLE + ":doc:`gone`\n"}, ("linked_documents",)),
    "a document that the index does not name": (
        {"Documentation/a.rst": TABLE, "Documentation/index.rst": index("conformance")}, ("linked_documents",)),
    "a document that the toctree lacks": (
        {"Documentation/index.rst": ".. SPDX-License-Identifier: GPL-2.0\n\n:doc:`conformance`\n"},
        ("linked_documents",)),
    "a mutant that changes one place": (mutant("pub fn", "t") | engine(TEST), ()),
    "a mutant whose text does not occur": (mutant("gone"), ("applicable_mutants",)),
    "a mutant whose text occurs twice": (mutant("Words."), ("applicable_mutants",)),
    "a mutant whose unit test does not exist": (mutant("pub fn", "gone"), ("applicable_mutants",)),
    "engine code with an index that may be out of bounds": (engine(INDEX), ("no_panic_symbols",)),
    "an object file without the engine's code": (
        {"tests/gates/engine_object.rs": SPDX + "extern crate roce;\n"}, ("no_panic_symbols",)),
    "a method of Qp without an instance in engine_object.rs": (
        {"rust/roce/qp/mod.rs": SPDX + "impl Qp {\n    pub fn gone(&self) {}\n}\n"},
        ("no_panic_symbols",)),
}


def messages_of_gates(changes, expected):
    """Returns the messages of each gate that reports something about GOOD with these changes.

    The gates that start other programs (TOOL_GATES) are slow. They run only if one of them is
    expected to report something, or if no gate is.
    """
    tools = not expected or {gate.__name__ for gate in gates.TOOL_GATES}.intersection(expected)
    selected = gates.TEXT_GATES + (gates.TOOL_GATES if tools else ())
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        files = GOOD | changes
        files.setdefault("Documentation/index.rst", index(*(Path(name).stem for name in files if name.endswith(".rst"))))
        for name, text in files.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(text)
        os.environ["CARGO_TARGET_DIR"] = str(top / "target")
        found = {gate.__name__: gate(top) for gate in selected}
    return {name: complaints for name, complaints in found.items() if complaints}


OBJECTS = {
    "an addition that may overflow": ("pub fn f(a: u32, b: u32) -> u32 {\n    a + b\n}\n", True),
    "an addition that wraps": ("pub fn f(a: u32, b: u32) -> u32 {\n    a.wrapping_add(b)\n}\n", False),
    "a copy between slices of unknown lengths": (
        "pub fn f(a: &mut [u8], b: &[u8]) {\n    a.copy_from_slice(b)\n}\n", True),
    "an inlined sum() of core that may overflow": (
        "pub fn f(a: &[u8]) -> u32 {\n    a.iter().map(|a| u32::from(*a)).sum()\n}\n", False),
}


def panics_of(text):
    """Compiles a crate named `rdma` of this text; returns the panics that panics.py finds in it."""
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "lib.rs", Path(folder) / "lib.o"
        source.write_text("#![no_std]\n#[inline(never)]\n" + text)
        subprocess.run(
            ["rustc", "--edition=2021", "--crate-type=lib", "--crate-name=rdma", "-g", "-Copt-level=2",
             "-Coverflow-checks=on", "-Cpanic=abort", "-Csymbol-mangling-version=v0",
             f"--emit=obj={built}", str(source)], check=True)
        return panics.complaints([str(built)])


SIGNED = "\n\nSigned-off-by: A B <a@b.example>\n"
MESSAGES = {
    "a subject, a reason and a sign-off": (
        "rrxe, roce: Bound the wait" + "\n\nWords say why." + SIGNED, True),
    "an unknown part in its subject": (
        "stuff: Bound the wait" + "\n\nWords say why." + SIGNED, False),
    "a long subject": ("rrxe: Bound " + "the wait " * 8 + "here" + "\n\nWords say why." + SIGNED, False),
    "a full stop at the end of its subject": (
        "rrxe: Bound the wait." + "\n\nWords say why." + SIGNED, False),
    "no reason": ("rrxe: Bound the wait" + SIGNED, False),
    "a long line in its body": ("rrxe: Bound the wait" + "\n\n" + "Words " * 20 + SIGNED, False),
    "no sign-off": ("rrxe: Bound the wait" + "\n\nWords say why.\n", False),
}

LOCK = (
    '[[package]]\nname = "own"\nversion = "0.2.0"\n\n'
    '[[package]]\nname = "other"\nversion = "1.0.0"\nsource = "registry"\n'
)
PACKAGE = '[package]\nname = "own"\nversion = "0.2.0"\n'
CHANGES = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - {}\n\nWords.\n\n## 0.1.0 - 2026-01-01\n"
# Files that state one version.
VERSIONED = {
    "Cargo.toml": "[workspace]\n\n[workspace.package]\nversion = \"0.2.0\"\n",
    "Cargo.lock": LOCK,
    **{f"{crate}/Cargo.toml": PACKAGE for crate in ("cli", "librrxe/provider", "tests/fuzz", "tests/verbs")},
    **{f"{crate}/Cargo.lock": LOCK for crate in ("cli", "librrxe/provider", "tests/fuzz", "tests/verbs")},
    "cli/rrxe.7": '.TH RRXE 7 2026-11-30 "rrxe 0.2.0" "Words"\n',
    "cli/rrxe.8": '.TH RRXE 8 2026-11-30 "rrxe 0.2.0" "Words"\n',
    "librrxe/librrxe.7": '.TH LIBRRXE 7 2026-11-30 "rrxe 0.2.0" "Words"\n',
    "drivers/infiniband/sw/rrxe/version.c": 'MODULE_VERSION("0.2.0");\n',
    "drivers/infiniband/sw/rrxe/device.rs": (
        'const VERSION: [u16; 3] = [0, 2, 0];\nconst VERSION_TEXT: &CStr = c"rrxe 0.2.0";\n'),
    "README.md": "**State.** rrxe 0.2.0 implements:\n",
    "Documentation/index.rst": "These are the documents of rrxe 0.2.0.\n",
    "CHANGELOG.md": CHANGES.format("not released yet"),
}
# Changelogs, tags of their commits, and whether versions.py accepts them for the version 0.2.0.
RELEASES = {
    "a version without a tag and a date": (CHANGES.format("not released yet"), [], True),
    "a tag of a version with a date": (CHANGES.format("2026-12-01"), ["v0.2.0"], True),
    "a tag of a version without a date": (CHANGES.format("not released yet"), ["v0.2.0"], False),
    "a tag of another version": (CHANGES.format("2026-12-01"), ["v0.3.0"], False),
}


def version_results():
    """Yields (case, whether versions.py accepts the case, whether it should)."""
    def accepts(files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).write_text(text)
            return not versions.complaints(Path(folder))

    yield "files with one version", accepts(VERSIONED), True
    for name, text in VERSIONED.items():
        for version, other in (("0.2.0", "0.2.1"), ("0, 2, 0", "0, 2, 1")):
            if version in text:
                yield f"{other} in {name}", accepts(VERSIONED | {name: text.replace(version, other)}), False
        if name != versions.SOURCE:
            yield f"no version in {name}", accepts(VERSIONED | {name: ""}), False
    for case, (changelog, tagged, expected) in RELEASES.items():
        yield case, not list(versions.faults_of_changelog(changelog, "0.2.0", tagged)), expected


def main():
    failed = False
    for case, accepted, expected in version_results():
        verb = "accepts" if expected else "rejects"
        print(f"{'ok' if accepted == expected else 'not ok'} - versions.py {verb} {case}", flush=True)
        failed |= accepted != expected
    for case, (message, expected) in MESSAGES.items():
        found = list(history.faults(message))
        passed = (not found) == expected
        outcome = "ok" if passed else "not ok"
        verb = "accepts" if expected else "rejects"
        print(f"{outcome} - history.py {verb} a message with {case}", flush=True)
        if not passed:
            print(f"# expected {expected}, got {found}")
        failed |= not passed
    for case, (text, expected) in OBJECTS.items():
        found = panics_of(text)
        passed = bool(found) == expected
        panic = "a panic" if expected else "no panic"
        print(f"{'ok' if passed else 'not ok'} - panics.py finds {panic} in {case}", flush=True)
        if not passed:
            print(f"# expected {expected}, got {found}")
        failed |= not passed
    for case, (changes, expected) in CASES.items():
        found = messages_of_gates(changes, expected)
        passed = set(found) == set(expected)
        reporting = ", ".join(expected) or "no gate"
        print(f"{'ok' if passed else 'not ok'} - {reporting} complains about {case}", flush=True)
        if not passed:
            print(f"# expected {sorted(expected)}, got {found}")
        failed |= not passed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
