"""The command ``plants``, which is also ``python -m plants``."""

from plants.hosting import exit_on_signals


def main() -> None:
    """Run the command that ``sys.argv`` names."""
    exit_on_signals()  # before the imports
    from plants.hosting import cli

    cli.main()


if __name__ == "__main__":
    main()
