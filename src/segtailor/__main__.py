"""`python -m segtailor`, e.g. under `torchrun -m segtailor train ...`: the same as the command `segtailor`."""

from segtailor.verbs.main import main

main()
