"""Routers that open a port for a node behind them: PCP (RFC 6887), NAT-PMP (RFC 6886) and UPnP.

Of py-libp2p its UPnP is not used. Its C library reads whatever a device on the network names, from whatever address,
without a bound, and in this process; here nobody is asked but the default gateway.
"""
