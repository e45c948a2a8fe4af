"""``python -m pretune.cli``: the command line of this interpreter's own pretune."""

from pretune.cli import main

main()
