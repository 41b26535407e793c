"""Run any method on a federation of Flower nodes, with the same bits as in the simulator.

    config.py       configuration of the run and of a node
    messages.py     messages and replies as Flower records
    schema.py, agreement.py   what sites agree on: columns, classes, statistics
    gathering.py, nodes.py    find the nodes before round 0, and refuse those that do not fit
    node_data.py, site_files.py   a node's client: its rows, read by the agreement
    client_app.py   the ClientApp
    engine.py       rounds over Flower's Grid
    server_app.py   the Strategy and the ServerApp
    deploy/         keys, checks before a deployment, a federation on this machine

It needs an extra: pip install 'fedpage[flower]'.
"""
