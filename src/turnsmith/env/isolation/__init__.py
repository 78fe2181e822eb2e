"""Where environments run when not in this process: worker processes, Ray actors, or a server elsewhere.

    settings    what `environment.isolation` says
    messages    what the two sides say to each other
    frames      where a message ends, and how long it may be
    channel     messages over a socket, on an event loop
    keeper      the process around a worker, which leaves nothing behind
    worker      the other side: hosts many environments
    crew        its threads, which read the connection themselves
    marks       which environment is doing something, should the process end by it
    shipping    how the user's classes and functions get there
    launching   how a worker is started or reached
    link        one worker, as seen from here
    pool        the workers of one event loop
    remote      the face that episodes see: a host like any other
    server      workers for whoever connects

Importing this package loads none of them.
"""
