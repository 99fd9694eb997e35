"""``python -m conformance``: the command ``conformance`` without a script on PATH."""

from conformance.cli.main import program

program()
