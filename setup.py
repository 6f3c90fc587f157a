import re
from pathlib import Path

from setuptools import setup

# An index of packages shows the README without the files beside it: a link to one becomes its name.
readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
setup(long_description=re.sub(r"\[([^\]]*)\]\((?!https://)([^)]*)\)", r"\1 (\2)", readme))
