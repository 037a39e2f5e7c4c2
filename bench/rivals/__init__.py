"""forge and its peers under the same load: what `bench/peers.py` is made of.

The modules named after a queue run in that queue's own environment, where forge is not installed; they and `board`,
`payloads` and `producing` therefore import nothing of forge and nothing of the bench but each other.
"""
