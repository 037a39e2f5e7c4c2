"""Builds the native path where that is possible; forge works without it, only slower.

`FORGE_REQUIRE_EXT=1` makes a failed build fatal. Everything else is in pyproject.toml.
"""

import glob
import os

# Plain Extensions with Cython's build_ext, because cythonize() drops `optional`.
from Cython.Distutils import build_ext
from setuptools import Extension, setup

required = os.environ.get("FORGE_REQUIRE_EXT", "") not in ("", "0")
# Without this, ARM compilers fuse a multiplication and an addition, and a curve differs from its twin in the last bit.
flags = ["-ffp-contract=off"] if os.name == "posix" else []

native = Extension(
    "forge._fastpath",
    ["forge/_fastpath.pyx"],
    depends=sorted(glob.glob("forge/_native/*.pxi")),  # what it includes
    extra_compile_args=flags,
    optional=not required,
)

setup(
    ext_modules=[native],
    cmdclass={"build_ext": build_ext},
)
