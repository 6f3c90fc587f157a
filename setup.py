"""The parts of the build that setup.cfg cannot declare: long description, build directory, compiled modules."""

import os
import re
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup

here = Path(__file__).parent
# A compiled class should have neither an interpreted subclass nor a base class from another library. So two modules of
# the server are not compiled: hooks.py, because a service has a subclass of Hooks, and worker.py, because the base
# class of Worker is Gunicorn's.
SERVER = ("calls", "config", "connection", "exchange", "loop", "poll", "request", "response", "state", "tls")
OTHER = ("hosting/hooks", "json_body", "fast_path")
COMPILED = [f"plants/{name}.py" for name in (*OTHER, *(f"server/{name}" for name in SERVER))]


def compiled_modules(scratch: str) -> list[Extension]:
    """Return the extension modules that mypyc builds; their C code and its cache go to ``scratch``."""
    from mypyc.build import mypycify

    # Ignore the mypy configuration in setup.cfg, which is for checking the whole repository.
    options = ["--config-file=", f"--cache-dir={scratch}/cache", "--follow-imports=silent", "--ignore-missing-imports"]
    return mypycify([*options, *COMPILED], target_dir=scratch, group_name="plants.server.compiled", debug_level="0")


# A package index shows the README, but not the other files. So replace each link to a file with the link's text and
# the file's path.
readme = (here / "README.md").read_text(encoding="utf-8")
compiling = os.environ.get("PLANTS_COMPILE") == "1"
with tempfile.TemporaryDirectory() as scratch:
    setup(
        long_description=re.sub(r"\[([^\]]*)\]\((?!https://)([^)]*)\)", r"\1 (\2)", readme),
        # A build directory that stays would bring deleted modules back. Metadata that stays would belong to the user of
        # the first installation, whose successor could not replace it. A checkout may be read-only.
        options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
        setup_requires=["mypy[mypyc]>=2.4,<3"] if compiling else [],
        # Compile only into a wheel, because a compiled module in a checkout would hide changes of its source.
        ext_modules=compiled_modules(scratch) if compiling and "bdist_wheel" in sys.argv else [],
    )
