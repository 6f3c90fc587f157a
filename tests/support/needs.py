"""Skip tests on machines that lack a program or a permission; each reason names what is missing."""

import shutil

import pytest


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
