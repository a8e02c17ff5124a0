"""The command line as `python -m envsdk`."""

from .cli import main

if __name__ == "__main__":
    main()
