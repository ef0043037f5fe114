"""``python -m hespas`` is ``hespas``."""

from hespas.cli.main import main

if __name__ == "__main__":
    main()
