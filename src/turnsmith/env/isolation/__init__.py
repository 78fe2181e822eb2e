"""Environments in worker processes on this machine.

    settings            `environment.isolation*`
    remote_host         what an episode uses: a host like `EnvironmentHost`, whose environment is in a worker
    pool                the workers of one event loop, and which environment goes where
    connection          one worker: calls, replies, and what happens when it is lost
    launch              starting a worker process
    wire                messages over a socket
    messages            the protocol
    serialization       sending the user's classes and functions, and trajectories
    usage               when a worker is used up, and is replaced
    worker              the process that hosts the environments

Importing this package loads none of them.
"""
