"""Run any method on a federation of Flower nodes, with the same bits as in the simulator.

    config.py       configuration of the run and of a node
    messages.py     messages and replies as Flower records
    node.py         a node's client: its rows, random numbers and client state
    client_app.py   the ClientApp
    engine.py       rounds over Flower's Grid
    server_app.py   the Strategy and the ServerApp
    deploy/         keys, checks before a deployment, a federation on this machine

It needs an extra: pip install 'fedpage[flower]'.
"""
