"""`python -m ampcheck` is the command `ampcheck`."""

from ampcheck.cli.main import main

raise SystemExit(main())
