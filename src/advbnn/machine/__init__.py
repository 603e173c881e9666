"""What a process takes from its machine: threads, memory, time, folders for compiled code, and other processes.

`caches` and `memory` import no torch: the command line calls them first.
"""
