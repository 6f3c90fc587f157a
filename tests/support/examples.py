"""The number of examples that Hypothesis tries; the environment variable ``EXAMPLES`` multiplies it for a long run."""

import os

from hypothesis import settings

TIMES = os.environ.get("EXAMPLES")


def examples(few: int) -> settings:
    """Return settings for a test with ``few`` examples.

    Every ordinary run tries the same examples, so that it covers the same lines.
    """
    return settings(max_examples=few * int(TIMES or 1), deadline=None, derandomize=TIMES is None)
