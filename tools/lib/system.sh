# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The programs and files of this machine, and the commands that install missing ones.

# A prefix of the paths of this system: /lib/modules, /boot, /usr/src and others. Tests set it to a
# made-up system.
readonly SYSTEM=${RRXE_SYSTEM:-}
# An ordinary user's PATH on Debian lacks depmod, chroot and others.
PATH=$PATH:$SYSTEM/usr/sbin:$SYSTEM/sbin

# Prints the distribution's family: debian, fedora, arch or other.
system_family() {
	local file=$SYSTEM/etc/os-release words
	words=$(sed -n 's/^\(ID\|ID_LIKE\)=//p' "$file" 2>/dev/null | tr -d \"\' | tr '\n' ' ') || true
	case " $words " in
	*" debian "* | *" ubuntu "*) echo debian ;;
	*" fedora "* | *" rhel "*) echo fedora ;;
	*" arch "*) echo arch ;;
	*) echo other ;;
	esac
}

# install_command DEBIAN FEDORA ARCH: prints the command that installs packages, which have these
# names in the three families. In other families the names are Debian's.
install_command() {
	case $(system_family) in
	debian) echo "apt-get install $1" ;;
	fedora) echo "dnf install $2" ;;
	arch) echo "pacman -S $3" ;;
	*) echo "install the equivalent of Debian's $1" ;;
	esac
}

# need_programs PROGRAM...: dies if a program is not installed.
need_programs() {
	local program absent=()
	for program in "$@"; do
		command -v "$program" >/dev/null || absent+=("$program")
	done
	[[ ${#absent[@]} -eq 0 ]] || die "these programs are not installed: ${absent[*]} ($(install_command "${absent[*]}" "${absent[*]}" "${absent[*]}"))"
}

# package_version PACKAGE: prints the version of an installed Debian package.
package_version() {
	dpkg-query --admindir="$SYSTEM/var/lib/dpkg" -W -f '${db:Status-Abbrev} ${Version}\n' "$1" 2>/dev/null | sed -n 's/^ii *//p' || true
}
