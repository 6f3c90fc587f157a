"""How many examples Hypothesis tries: few in an ordinary run, EXAMPLES times as many in a long one."""

import os

from hypothesis import settings


def examples(few: int, steps: int = 50) -> settings:
    """Give the settings of a test that tries a few examples, of at most this many steps if it has steps."""
    return settings(max_examples=few * int(os.environ.get("EXAMPLES", "1")), stateful_step_count=steps, deadline=None)
