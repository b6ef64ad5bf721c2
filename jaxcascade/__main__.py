"""``python -m jaxcascade``: the command line."""

from jaxcascade.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
