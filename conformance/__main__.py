"""``python -m conformance``: the command ``conformance`` without a script on PATH."""

from conformance.cli.main import program

if __name__ == "__main__":
    program()
