"""Waiting, threads and processes: what keeps hundreds of episodes out of each other's way in one process.

clocks               time limits that count work alone: while work waits its turn, they stand still
threads              threads for code that may block, shared by all episodes
environment_threads  threads that environments live in
generators           each environment's own global random generators
loop_thread          an event loop in its own thread, for synchronous callers
supervisor           the process around a worker or an agent's program, which leaves nothing behind
"""
