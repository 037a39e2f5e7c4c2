"""Where the peers are installed: bench/.peers, apart from forge's environment, with pinned versions.

Peers are not dependencies of forge. Each part is made when it is first needed and again when its pins change; a part
that cannot be made has a reason, and the contenders that need it are left out of the run with that reason.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.common import say

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS = HERE.parent / ".peers"
BIN = PEERS / "venv" / "bin"
NODE = PEERS / "node"
REDIS = PEERS / "redis"
DEBS = ("redis-tools", "redis-server", "liblzf1", "libjemalloc2")  # what of Redis a Debian may not have


class Unavailable(Exception):
    """Why a part of the environment cannot be had."""


def _run(*argv: str, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{argv[0]}: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unavailable(f"{Path(argv[0]).name} {argv[1]}: {lines[-1]}")


def _make(name: str, pins: str, folder: Path, make: Callable[[], None]) -> None:
    """Make a part unless it has been made with these pins."""
    stamp = PEERS / f"{name}.made"
    if folder.exists() and stamp.exists() and stamp.read_text() == pins:
        return
    say(f"  installing {name} for the peers (once) ...")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make()
    stamp.write_text(pins)


def python() -> None:
    """A virtual environment with the Python peers."""
    pins = HERE / "requirements.txt"

    def make() -> None:
        _run(sys.executable, "-m", "venv", str(BIN.parent))
        _run(str(BIN / "python"), "-m", "pip", "install", "--quiet", "-r", str(pins))

    _make("python", pins.read_text() + sys.version, BIN.parent, make)


def node() -> None:
    """graphile-worker from npm."""
    for program in ("node", "npm"):
        if not shutil.which(program):
            raise Unavailable(f"no {program} on this machine")
    pins = HERE / "package.json"

    def make() -> None:
        shutil.copy(pins, NODE / "package.json")
        _run("npm", "install", "--no-audit", "--no-fund", cwd=NODE)

    _make("node", pins.read_text(), NODE, make)


def redis_server() -> tuple[str, dict[str, str]]:
    """The server's program and what its environment needs."""
    if found := shutil.which("redis-server"):
        return found, {}
    return str(REDIS / "usr/bin/redis-server"), {"LD_LIBRARY_PATH": ":".join(map(str, REDIS.glob("usr/lib/*")))}


def redis() -> None:
    """The machine's Redis, or else Debian's, unpacked beside the peers without installing it."""
    if shutil.which("redis-server"):
        return
    for program in ("apt-get", "dpkg"):
        if not shutil.which(program):
            raise Unavailable("no redis-server on this machine, and no apt-get to fetch one with")

    def make() -> None:
        _run("apt-get", "download", *DEBS, cwd=REDIS)
        for package in REDIS.glob("*.deb"):
            _run("dpkg", "-x", str(package), str(REDIS))

    _make("redis", " ".join(DEBS), REDIS, make)
    program, env = redis_server()
    done = subprocess.run([program, "--version"], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"Debian's redis-server does not run here: {done.stderr.strip()}")


PARTS: dict[str, Callable[[], None]] = {"python": python, "node": node, "redis": redis}


def lacking(parts: tuple[str, ...]) -> str | None:
    """Make these parts; why not, if that fails."""
    try:
        for part in parts:
            PARTS[part]()
    except Unavailable as reason:
        return str(reason)
    return None


def versions() -> dict[str, str]:
    """Of the peers that are installed."""
    found = {}
    if BIN.exists():
        pins = (line for line in (HERE / "requirements.txt").read_text().splitlines() if "==" in line)
        found = {name.partition("[")[0]: pin for name, _, pin in (line.partition("==") for line in pins)}
    package = NODE / "node_modules" / "graphile-worker" / "package.json"
    if package.exists():
        found["graphile-worker"] = json.loads(package.read_text())["version"]
        found["node"] = _said("node", "--version").removeprefix("v")
    program, env = redis_server()
    if Path(program).exists() and (match := re.search(r"v=([\d.]+)", _said(program, "--version", env=env))):
        found["redis-server"] = match[1]
    return found


def _said(*argv: str, env: dict[str, str] | None = None) -> str:
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False).stdout.strip()
