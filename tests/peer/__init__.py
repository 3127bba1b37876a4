"""A second gateway and JoinService, written from docs/protocol.md and the .proto files alone.

It shares no code with bcd or better-compute: where the two disagree, one of them or the page is
wrong. As a library it also lies, on request, in every way a node has to survive (`faults.py`).
As a program: `python -m peer --dir DIR` (see `__main__.py`).
"""
