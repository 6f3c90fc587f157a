"""Skip tests on machines that lack a program or a permission; each reason names what is missing."""

import os
import shutil
from importlib.util import find_spec

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers as another user")
needs_psycopg = pytest.mark.skipif(not find_spec("psycopg"), reason="not installed: psycopg")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromedriver") and any(map(shutil.which, _BROWSERS))),
    reason="not installed: Chromium and chromedriver",
)


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
