"""`python -m ampcheck` is the command `ampcheck`."""

from ampcheck.cli import main

raise SystemExit(main())
