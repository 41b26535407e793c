"""Any method on a federation of Flower's: the same `call`, `client` and `server`, the same draws, the same bits.

    wire.py       messages and replies as Flower's records, decoded without trusting a byte
    site.py       what a node knows: its own rows, its number, its memory
    client.py     the ClientApp
    engine.py     rounds over Flower's Grid
    server.py     the Strategy and the ServerApp
    keys.py       certificates and keys
    check.py      what is missing before a round is run
    loopback.py   a whole federation on this machine, for trying and for tests

It needs the extra: pip install 'fedpage[flower]'.
"""
