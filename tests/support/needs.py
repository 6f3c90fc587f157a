"""Skip tests on machines that lack a program or a permission; each reason names what is missing."""

import shutil

import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromedriver") and any(map(shutil.which, _BROWSERS))),
    reason="not installed: Chromium and chromedriver",
)


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
