"""Secure aggregation: the server learns the sum of the clients' replies, and nothing else of them.

The protocol is that of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving
Machine Learning" (2017), for a server that follows it. docs/secure-aggregation.md explains it.
"""
