"""Commands for people: `main` of each module parses, calls and prints."""
