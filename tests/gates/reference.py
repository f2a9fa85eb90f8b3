# SPDX-License-Identifier: GPL-2.0
"""The tables of Documentation/reference.rst, against the source.

The first cell of a row is a name in double backquotes. Each table names exactly what the source defines; the second cell of a
module parameter is its default.
"""
import re
from pathlib import Path

DOCUMENT = Path("Documentation/reference.rst")
DRIVER = Path("drivers/infiniband/sw/rrxe")
EVENTS = Path("include/trace/events/rrxe.h")
TABLE = re.compile(r"^\.\. list-table:: (\S.*?)\n(.*?)(?=^\S|\Z)", re.M | re.S)
ROW = re.compile(r"^   \* - ``(\w+)``\n     - (\S+)", re.M)


def tables(text):
    """The rows of the tables whose titles begin alike: the first word of the title, then {name: second cell's first word}."""
    found = {}
    for title, body in TABLE.findall(text):
        found.setdefault(title.split()[0], {}).update(ROW.findall(body))
    return found


def read(top, path):
    """The text of a file, or none."""
    return (top / path).read_text() if (top / path).is_file() else ""


def defined(top):
    """What the source defines, as `tables` returns it; None where the second cell is free text."""
    counters = re.findall(r'CounterName::new\(c"(\w+)"\)', read(top, DRIVER / "device/stats.rs"))
    events = re.findall(r"^(?:TRACE_EVENT\(|DEFINE_EVENT\(\w+, )(\w+)", read(top, EVENTS), re.M)
    parameters = re.findall(r"^ {8}(\w+): u32 \{\s+default: (\d+),", read(top, DRIVER / "lib.rs"), re.M)
    workqueues = "".join(read(top, path.relative_to(top)) for path in (top / DRIVER).rglob("*.rs"))
    workqueues = re.findall(r'(?:OwnedQueue::new_unbound|Owners::new)\(c"(\w+)"', workqueues)
    return {
        "Counters": dict.fromkeys(counters),
        "Tracepoints": dict.fromkeys(events),
        "Module": {name: f"``{default}``" for name, default in parameters},
        "Work": dict.fromkeys(workqueues),
    }


def complaints(top):
    """What a table lacks, has too much, or has wrong."""
    written = tables(read(top, DOCUMENT))
    found = []
    for kind, names in defined(top).items():
        rows = written.get(kind, {})
        found += [f"{DOCUMENT}: no row for {name}" for name in names if name not in rows]
        found += [f"{DOCUMENT}: the source has no {name}" for name in rows if name not in names]
        found += [
            f"{DOCUMENT}: {name}: {rows[name]} is not the default {value}"
            for name, value in names.items() if value is not None and rows.get(name, value) != value
        ]
    return found
