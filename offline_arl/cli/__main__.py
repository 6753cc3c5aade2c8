"""`python -m offline_arl.cli`: the command line where the script is not on the path."""

from offline_arl.cli.entry import main

main()
