# SPDX-License-Identifier: GPL-2.0
"""Compares the table "Guarantees of others" of Documentation/safety.rst with the source comments.

Comments of rust/rdma and of the driver, and Documentation/locking.rst, rely on guarantees of
ib_core and of other kernel code. The table says which kernel code upholds each guarantee. The first
cell of a row has claims in double quotes, in the words of the comments; `*` stands for any words.
Each sentence that relies on other code must contain a claim of the table, and each claim must occur
in a sentence.
"""
import re
from pathlib import Path

import sources

TABLE = Path("Documentation/safety.rst")
HEADING = "Guarantees of others"
RST = (Path("Documentation/locking.rst"),)
# Names of other code. A sentence of a SAFETY or INVARIANT comment with such a name relies on that
# code.
OTHERS = re.compile(
    r"\b(?:ib_core|[Tt]he core|uverbs|HMM|[Nn]otifier|[Nn]etwork stack|[Tt]he stack|UDP (?:calls|layer)|IP and UDP layers"
    r"|netlink|nldev|RTNL|RCU keeps|vfree|vhost_task_\w+|[Nn]amespace lives|[Cc]onsumer|[Ee]xporter|sysfs)\b"
)
# Subjects and verbs of promises about locks and lifetimes. A sentence of any other comment relies
# on other code only if it contains such a promise.
PROMISES = re.compile(
    r"\b(?:ib_core|uverbs|[Tt]he core|HMM|nldev|[Nn]etlink(?: dump)?|[Nn]etwork stack)(?: \w+)?"
    r" (?:excludes?|holds?|keeps?|waits?|locks?|destroys|stops|counts|frees|tells|lets|asks|calls (?:no|all)"
    r"|may call|doesn't (?:call|allocate|initialise))\b"
)


def claims(top):
    """Returns the claims of the table, without their double quotes."""
    if not (top / TABLE).is_file():
        return []
    text = (top / TABLE).read_text()
    section = text.split(HEADING, 1)[-1]
    section = re.split(r"\n[^\n]+\n==+\n", section)[0]
    cells = re.findall(r"^   \* - (.*?)(?=^     - )", section, re.M | re.S)
    return [" ".join(claim.split()) for cell in cells for claim in re.findall(r'"([^"]+)"', cell)]


def pattern(claim):
    """Returns the regular expression for a claim, in which `*` matches any words."""
    words = [r".+?" if word == "*" else re.escape(word) for word in re.split(r"(\*)", claim)]
    return re.compile("".join(words))


def comments(text):
    """Yields the number of the first line and the text of each block of comment lines."""
    lines, start, block = text.splitlines(), 0, []
    for number, line in enumerate([*lines, ""], 1):
        if match := re.match(r"\s*//[/!]?\s?(.*)", line):
            start = start if block else number
            block.append(match[1])
        elif block:
            yield start, "\n".join(block)
            block = []


def sentences(text):
    """Yields the parts of a text between full stops, colons, semicolons and empty lines."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.;:])\s", " ".join(paragraph.split())):
            yield sentence.strip()


def relying_sentences(top):
    """Yields (path and line, sentence) for each sentence that relies on other code."""
    for path in sources.kernel_rust(top):
        if not str(path).startswith(("rust/rdma", "drivers")):
            continue
        for line, block in comments((top / path).read_text()):
            needle = OTHERS if re.search(r"\b(?:SAFETY|INVARIANT):", block) else PROMISES
            for sentence in sentences(block):
                if needle.search(sentence):
                    yield f"{path}:{line}", re.sub(r"^(?:SAFETY|INVARIANT):\s*", "", sentence)
    for path in RST:
        if (top / path).is_file():
            for sentence in sentences((top / path).read_text()):
                if PROMISES.search(sentence):
                    yield str(path), sentence


def complaints(top):
    """Returns a message for each sentence without a claim and each claim without a sentence."""
    patterns = {claim: pattern(claim) for claim in claims(top)}
    used, found = set(), []
    for place, sentence in relying_sentences(top):
        matched = [claim for claim, matches in patterns.items() if matches.search(sentence)]
        used.update(matched)
        if not matched:
            found.append(f"{place}: {TABLE} has no guarantee for this sentence: {sentence}")
    unused = [claim for claim in patterns if claim not in used]
    return found + [f"{TABLE}: no comment relies on this: {claim}" for claim in unused]
