"""How many examples Hypothesis tries: few in an ordinary run, EXAMPLES times as many in a long one."""

import os

from hypothesis import settings

TIMES = os.environ.get("EXAMPLES")


def examples(few: int, steps: int = 50) -> settings:
    """Return the settings of a test that tries a few examples, of at most this many steps if it has steps.

    An ordinary run tries the same ones each time, so that it covers the same lines.
    """
    return settings(
        max_examples=few * int(TIMES or 1), stateful_step_count=steps, deadline=None, derandomize=TIMES is None
    )
