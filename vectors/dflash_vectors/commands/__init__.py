"""Commands for people; each module has `main(argv=None) -> int`."""
