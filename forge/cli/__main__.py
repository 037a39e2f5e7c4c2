"""`python -m forge.cli` is `forge`."""

import sys

from forge.cli import main

sys.exit(main())
