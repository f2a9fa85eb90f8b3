# SPDX-License-Identifier: GPL-2.0
"""Runs tools/rrxe as an ordinary user of a made-up system, with made-up programs.

The system's files (/boot, /lib/modules, /usr/src, /etc/os-release and others) are in a directory that
RRXE_SYSTEM names. Its programs are in a directory of PATH. Each program that changes a system or
downloads something is made up, and writes its command line to a log.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
USER = 65534
RELEASE = "7.3.4+deb13-amd64"
RUSTC = "rustc 1.85.1 (4eb161250 2025-03-15) (built from a source tarball)"
BINDGEN = "bindgen 0.71.1"
OPTIONS = (
    "RUST", "MODULES", "INFINIBAND", "INFINIBAND_USER_ACCESS", "INFINIBAND_USER_MEM", "INFINIBAND_ADDR_TRANS",
    "INFINIBAND_ON_DEMAND_PAGING", "INET", "IPV6", "NET_UDP_TUNNEL",
)
SYMBOLS = "rdma_restrack_begin_del", "hmm_range_fault_unlocked_timeout"
# The programs of this machine that a made-up system has. It has no compilers, no apt and no sudo.
PROGRAMS = (
    "awk basename bash cat chmod chown chroot comm cp cut date df dirname env find flock getent grep head id install "
    "ln ls mkdir mktemp mount mv nproc od paste readlink rm rmdir sed sh sha256sum sleep sort stat tail tar tee touch "
    "tr true uname unshare"
).split()
SEARCHED = "/usr/bin", "/usr/sbin", "/bin", "/sbin"
# A program that logs its command line and fails.
LOGGED = 'echo "$(basename "$0") $*" >>"$LOG"\nexit 99\n'
# A make that logs its command line and makes the module.
MAKE = """echo "make $*" >>"$LOG"
for word in "$@"; do [[ $word != KBUILD_EXTMOD_OUTPUT=* ]] || echo module >"${word#*=}/rrxe.ko"; done
"""


class System:
    """A made-up system and a made-up copy of this repository."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.root, self.bin, self.log = (self.folder / name for name in ("root", "bin", "log"))
        self.home, self.tree, self.cache = (self.folder / name for name in ("home", "tree", "cache"))
        for path in self.root, self.bin, self.home, self.root / "etc":
            path.mkdir(parents=True)
        self.log.touch()
        for name in PROGRAMS:
            (self.bin / name).symlink_to(shutil.which(name, path=os.pathsep.join(SEARCHED)))
        os.chown(self.folder, USER, USER)
        self.clone()
        self.distribution("debian")

    def clone(self):
        """Makes the copy of the repository, whose sources are older than all that is built from them."""
        shutil.copytree(TOP / "tools", self.tree / "tools")
        for name in "include", "rust", "drivers":
            (self.tree / name).mkdir()
        (self.tree / "Kbuild").touch()
        for name in "include", "rust", "drivers", "Kbuild":
            os.utime(self.tree / name, (1e9, 1e9))

    def distribution(self, name):
        (self.root / "etc/os-release").write_text(f'ID="{name}"\n')

    def file(self, path, text=""):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name, body=LOGGED):
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/bash\n{body}")
        path.chmod(0o755)
        return path

    def without(self, *names):
        for name in names:
            (self.bin / name).unlink()

    def kernel(self, release=RELEASE, options=OPTIONS, symbols=SYMBOLS, rustc=RUSTC, metadata=True, more=(),
               place="lib/modules/{}/build", config_file=".config"):
        """Installs a kernel with its build tree."""
        tree = place.format(release)
        self.file(f"{tree}/Makefile")
        config = [f"CONFIG_{option}=y" for option in options] + list(more)
        config += [f'CONFIG_RUSTC_VERSION_TEXT="{rustc}"', f'CONFIG_BINDGEN_VERSION_TEXT="{BINDGEN}"']
        config.append('CONFIG_CC_VERSION_TEXT="gcc-14 (Debian) 14.2.0"')
        self.file(f"{tree}/{config_file}", "".join(f"{line}\n" for line in config))
        self.file(f"{tree}/Module.symvers", "".join(f"0x0\t{name}\tvmlinux\tEXPORT_SYMBOL\t\n" for name in symbols))
        if metadata:
            self.file(f"{tree}/rust/libkernel.rmeta")
        for path in self.root.glob(f"{tree}/*"):
            os.utime(path, (1e9, 1e9))

    def compilers(self, rustc=RUSTC, bindgen=BINDGEN):
        """Installs the programs that build a module."""
        self.program("rustc", f'[[ $1 != --version ]] || echo "{rustc}"\n[[ $1 != --print ]] || echo "$RRXE_SYSTEM/sysroot"\n')
        self.program("bindgen", f'echo "{bindgen}"\n')
        self.program("gcc")
        self.program("make", MAKE)
        self.program("depmod", 'echo "depmod $*" >>"$LOG"\n')

    def providers(self, directory="usr/lib/x86_64-linux-gnu", abi="34", version="1.14.56.1", machine=b"\x3e\0"):
        """Installs libibverbs and the stock provider of an architecture."""
        library = self.file(f"{directory}/libibverbs/librxe-rdmav{abi}.so")
        library.write_bytes(b"\x7fELF" + bytes(14) + machine)
        self.file(f"{directory}/libibverbs.so.{version}")
        (self.root / directory / "libibverbs.so.1").symlink_to(f"libibverbs.so.{version}")
        self.file("etc/libibverbs.d/rxe.driver", "driver rxe\n")
        for path in "lib64/ld-linux-x86-64.so.2", "bin/grep":
            (self.root / path).parent.mkdir(exist_ok=True)
            (self.root / path).unlink(missing_ok=True)
            (self.root / path).symlink_to(f"/{path}")

    def library(self, name, body=""):
        """Compiles a library that runs the C statements `body` when a program loads it."""
        path = self.folder / name
        source = f"#include <stdio.h>\n#include <unistd.h>\nvoid ibv_none(void);\n" \
            f"static __attribute__((constructor)) void begin(void) {{ {body} }}\n"
        subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-o", path, "-"], input=source, text=True, check=True)
        return path

    def own(self, *paths):
        """Gives files to the user who runs the commands."""
        for path in paths:
            path.mkdir(parents=True, exist_ok=True)
            subprocess.run(["chown", "-R", f"{USER}:{USER}", path], check=True)

    def run(self, *command, program="tools/rrxe", as_root=False, **settings):
        """Runs a command; returns its status, its messages and the log of the made-up programs."""
        self.folder.chmod(0o755)
        self.log.write_text("")
        self.log.chmod(0o666)
        environment = {
            "PATH": str(self.bin), "HOME": str(self.home), "LOG": str(self.log), "RRXE_SYSTEM": str(self.root),
            "RRXE_CACHE": str(self.cache), "KVER": RELEASE, "LC_ALL": "C.UTF-8",
        }
        switch = [] if as_root else [
            "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        done = subprocess.run(
            [shutil.which("env") if not switch else shutil.which("setpriv"), *switch[1:],
             str(self.tree / program), *map(str, command)],
            env=environment | {name: str(value) for name, value in settings.items()},
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout + done.stderr, self.log.read_text()


class Made:
    """Context of a made-up system in a temporary directory."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        return System(self.folder.name)

    def __exit__(self, *_):
        self.folder.cleanup()


failed = False


def result(name, passed, seen):
    """Prints the result of one test case; on failure also the value that was seen."""
    global failed
    failed = failed or not passed
    print(f"{'ok' if passed else 'not ok'} - {name}", flush=True)
    if not passed:
        print(f"#   seen: {seen!r}")


def exit_status():
    """Returns the exit status of a suite."""
    return 1 if failed else 0


def refuses(name, system, command, text, **settings):
    """Checks that a command fails with one error that has a text, and has done nothing before."""
    seen = system.run(*command, **settings)
    errors = [line for line in seen[1].splitlines() if "error: " in line]
    result(name, seen[0] not in (0, 99) and len(errors) == 1 and text in errors[0] and not seen[2]
           and not system.cache.exists(), seen)


def works(name, system, command, text, log="", **settings):
    """Checks that a command succeeds with a message, and calls the made-up programs of a pattern only."""
    seen = system.run(*command, **settings)
    result(name, seen[0] == 0 and text in seen[1] and re.fullmatch(log, seen[2].strip(), re.S) is not None, seen)
    return seen


def files(folder):
    """Returns the names of all files and directories below a directory."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
