"""A folder with a system of its own, in which commands run as in a container.

They have their own processes, mounts and name, and this machine's network unless given one.
Needs the superuser, unshare, chroot, debootstrap and iproute2 (Debian and Ubuntu have them).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What containers have, too.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: In the root $1, named $2: mounts proc, sys, dev and the pairs up to "--", becomes the rest.
_ENTER = """
root=$1; shift
[ -z "$1" ] || echo "$1" >/proc/sys/kernel/hostname; shift
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do
  mount --bind "$1" "$root$2"; shift 2
done
shift
exec chroot "$@"
"""


def suite_of(image: str) -> str:
    """The release of Debian that an image is, "" if it is none. Pure."""
    found = re.fullmatch(r"debian:([a-z]+)(-\d{8})?(-slim)?", image)
    return found[1] if found else ""


def bootstrap(suite: str, root: Path) -> None:
    """Make ``root`` a minimal Debian, if it is not there yet. Takes a minute."""
    if (root / "etc/debian_version").exists():
        return
    unfinished = root.with_name(root.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    mirror = "http://deb.debian.org/debian"
    command = ["debootstrap", "--variant=minbase", suite, str(unfinished), mirror]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    # As in Docker's images: packages start no daemons.
    policy = unfinished / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    unfinished.rename(root)


def copy(base: Path, root: Path) -> None:
    """Make ``root`` a copy of ``base``, with owners and modes."""
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(root)], check=True)


def command_line(
    root: Path,
    command: Sequence[str],
    *,
    user: str = "root",
    workdir: str = "/",
    environment: Mapping[str, str] | None = None,
    binds: Sequence[tuple[Path, str]] = (),
    network: str = "",
    hostname: str = "",
) -> list[str]:
    """What runs a command in ``root``, and with it ends everything that it has started there.

    Args:
        root: The system.
        command: Program and arguments, as that system knows them.
        user: Who runs it, by a name of that system.
        workdir: Folder to run it in.
        environment: All variables that it gets, PATH and HOME aside, which have defaults.
        binds: Files and folders of this machine, and where they appear.
        network: A network namespace of `ip netns`; "": this machine's.
        hostname: What it thinks that its host is called; "": as this machine.
    """
    pairs: list[str] = []
    for path, place in binds:
        inside = root / place.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            inside.mkdir(exist_ok=True)
        else:
            inside.touch()
        pairs += [str(path), place]
    variables = {
        "PATH": PATH,
        "HOME": "/root" if user == "root" else f"/home/{user}",
        **(environment or {}),
    }
    return [
        *(("ip", "netns", "exec", network) if network else ()),
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts"),
        *("sh", "-ec", _ENTER, "sh", str(root), hostname, *pairs, "--"),
        *(f"--userspec={user}:{user}", f"--groups={user}", str(root)),
        *("/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())),
        *("/bin/sh", "-c", 'cd "$0" && exec "$@"', workdir, *command),
    ]
