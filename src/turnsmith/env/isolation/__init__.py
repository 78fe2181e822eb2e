"""Environments in other processes: workers on this machine, or an environment server elsewhere.

    settings            `environment.isolation*`
    remote_host         what an episode uses: a host like `EnvironmentHost`, whose environment is in a worker
    remote_environment  stands for the user's object, which is elsewhere
    pool                the workers of one event loop, and which environment goes where
    connection          one worker: calls, replies, and what happens when it is lost
    handshake           the token of an environment server
    launch              starting a worker process, or connecting to a server
    wire                messages over a socket
    messages            the protocol
    serialization       sending the user's classes and functions
    codec               sending a trajectory
    usage               when a worker is used up, and is replaced
    worker              the process that hosts the environments
    server              `turnsmith serve-env`

Importing this package loads none of them.
"""
