"""What a process takes from its machine: threads, memory, time, files, folders for compiled code, and other
processes.

`caches`, `files` and `memory` import no torch: the command line calls them first.
"""
