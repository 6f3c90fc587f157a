import os
import re
import tempfile
from pathlib import Path

from setuptools import setup

here = Path(__file__).parent
# An index of packages shows the README without the files beside it: a link to one becomes its name.
readme = (here / "README.md").read_text(encoding="utf-8")
with tempfile.TemporaryDirectory() as scratch:
    # A build directory that stays would bring deleted modules back, and a checkout may be read-only.
    options = {"build": {"build_base": scratch}}
    if not os.access(here, os.W_OK):
        options["egg_info"] = {"egg_base": scratch}
    setup(
        long_description=re.sub(r"\[([^\]]*)\]\((?!https://)([^)]*)\)", r"\1 (\2)", readme),
        options=options,
    )
