"""Makes what the tests of agent/ share (anywhere.py) importable from the folders below, too."""
