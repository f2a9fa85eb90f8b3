# SPDX-License-Identifier: GPL-2.0
"""The messages of commits: subject, body, sign-off."""
import re
import subprocess

# Older commits are as they are.
BASE = "57ae254419c822b319f7485597846e07b6db083c"
PARTS = "roce|rdma|rrxe|librrxe|tests|tools|docs|ci"
SUBJECT = re.compile(rf"(?:{PARTS})(?:, (?:{PARTS}))*: (?:[a-z_]+(?:, [a-z_]+)*: ){{0,2}}[A-Z].*[^.]")


def faults(message):
    """What is wrong with the message of a commit."""
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
    """What git prints, or None where it fails."""
    result = subprocess.run(
        ["git", "-c", "safe.directory=*", *arguments], cwd=top, text=True, capture_output=True, check=False)
    return result.stdout if result.returncode == 0 else None


def complaints(top):
    """What is wrong with the commits since `BASE`; with the newest one where a clone is too shallow to have that."""
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
