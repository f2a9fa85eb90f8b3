# SPDX-License-Identifier: GPL-2.0
"""Checks the messages of commits: subject, body and sign-off."""
import re
import subprocess

# The parent of the first commit that is checked. Older commits do not follow the rules.
BASE = "57ae254419c822b319f7485597846e07b6db083c"
PARTS = "roce|rdma|rrxe|librrxe|tests|tools|docs|ci"
SUBJECT = re.compile(rf"(?:{PARTS})(?:, (?:{PARTS}))*: (?:[a-z_]+(?:, [a-z_]+)*: ){{0,2}}[A-Z].*[^.]")


def faults(message):
    """Yields a text for each rule that the message of a commit breaks."""
    subject, _, body = message.partition("\n")
    prose = re.sub(r"^[A-Z][\w-]+: .*$", "", body, flags=re.M).strip()
    if len(subject) > 72 or not SUBJECT.fullmatch(subject):
        yield "the subject is not `part: Imperative` in 72 columns"
    if not prose:
        yield "the body does not say why"
    if any(len(line) > 76 and " " in line for line in prose.splitlines()):
        yield "a line of the body is longer than 76 columns"
    if not re.search(r"^Signed-off-by: .+ <.+@.+>$", body, re.M):
        yield "there is no Signed-off-by"


def git(top, *arguments):
    """Returns the output of git, or None if git fails."""
    result = subprocess.run(
        ["git", "-c", "safe.directory=*", *arguments], cwd=top, text=True, capture_output=True, check=False)
    return result.stdout if result.returncode == 0 else None


def complaints(top):
    """Returns a message for each broken rule of the commits since `BASE`, except merges.

    If the clone is too shallow to have `BASE`, only the newest commit is checked.
    """
    if not (top / ".git").exists():
        return []
    known = git(top, "merge-base", "--is-ancestor", BASE, "HEAD") is not None
    log = git(top, "log", "--no-merges", "--format=%h%n%B%x00", f"{BASE}..HEAD" if known else "-1")
    found = []
    if log is None:
        return ["git log fails"]
    for commit in filter(str.strip, log.split("\0")):
        name, _, message = commit.strip().partition("\n")
        found += [f"{name}: {fault}: {message.splitlines()[0]}" for fault in faults(message)]
    return found
