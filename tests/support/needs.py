"""Skip tests on machines that lack a program or a permission; each reason names what is missing."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers as another user")
_IMPORTED_FROM = (Path(__file__), Path(sys.prefix))
needs_folders_open_to_all = pytest.mark.skipif(
    not all(folder.stat().st_mode & 0o001 for path in _IMPORTED_FROM for folder in path.parents),
    reason="another user cannot enter the folder of the checkout, or of the virtual environment",
)
needs_psycopg = pytest.mark.skipif(not find_spec("psycopg"), reason="not installed: psycopg")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromedriver") and any(map(shutil.which, _BROWSERS))),
    reason="not installed: Chromium and chromedriver",
)


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
