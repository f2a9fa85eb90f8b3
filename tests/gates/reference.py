# SPDX-License-Identifier: GPL-2.0
"""Compares the tables of Documentation/reference.rst, and the man page rrxe(7), with the source.

The tables list the counters, tracepoints, module parameters and work queues of the driver. The
first cell of a row is a name in double backquotes. Each table must have the names that the source
defines, and no others. The second cell of a module parameter must be its default. The man page must
have the same names in bold, and the defaults.
"""
import re
from pathlib import Path

DOCUMENT = Path("Documentation/reference.rst")
PAGE = Path("cli/rrxe.7")
DRIVER = Path("drivers/infiniband/sw/rrxe")
EVENTS = Path("include/trace/events/rrxe.h")
TABLE = re.compile(r"^\.\. list-table:: (\S.*?)\n(.*?)(?=^\S|\Z)", re.M | re.S)
ROW = re.compile(r"^   \* - ``(\w+)``\n     - (\S+)", re.M)


def tables(text):
    """Returns the rows of all tables as {first word of the title: {name: second cell}}.

    The second cell is cut after its first word. Tables whose titles begin with the same word are
    merged.
    """
    found = {}
    for title, body in TABLE.findall(text):
        found.setdefault(title.split()[0], {}).update(ROW.findall(body))
    return found


def read(top, path):
    """Returns the text of a file, or an empty text if there is no such file."""
    return (top / path).read_text() if (top / path).is_file() else ""


def defined(top):
    """Returns the names that the source defines, in the form that `tables` returns.

    The second cell is None where it is free text.
    """
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


def of_page(text):
    """Returns the names in bold that have an underscore or a default, as {name: default or None}.

    Bold names are arguments of the macros .B and .BR.
    """
    lines = re.findall(r"^\.BR? (.*)", text, re.M)
    names = {name: None for line in lines for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", re.sub(r'"[^"]*"', " ", line))}
    return names | dict(re.findall(r'^\.BR (\w+) " \(default (\d+)\)"', text, re.M))


def complaints_of_page(top):
    """Returns a message for each name that the man page lacks, and each wrong default."""
    known = {name: value for names in defined(top).values() for name, value in names.items()}
    written = of_page(read(top, PAGE))
    kinds = re.compile(r"(?:drop|sent|rcvd|rrxe|early|retry)_")
    found = [f"{PAGE}: no {name}" for name in known if name not in written]
    found += [f"{PAGE}: the source has no {name}" for name in written if kinds.match(name) and name not in known]
    return found + [
        f"{PAGE}: {name}: {written[name]} is not the default {value.strip('`')}"
        for name, value in known.items() if value and name in written and written[name] != value.strip("`")
    ]


def complaints(top):
    """Returns a message for each missing row, each superfluous row and each wrong default."""
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
    return found + complaints_of_page(top)
