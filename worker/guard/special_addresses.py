"""Addresses that are not on the public internet: IANA's special-purpose registries, and those of clouds. Pure.

The list is explicit because `ipaddress.is_global` differs between versions of Python. IPv6 addresses are public only
within the allocated block, so every IPv6 form of an IPv4 address outside of it is refused. Addresses that the network
itself translates (NAT64, 6to4) are checked by the IPv4 address they contain.

https://www.iana.org/assignments/iana-ipv4-special-registry, https://www.iana.org/assignments/iana-ipv6-special-registry
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
GIVEN_OUT = ipaddress.IPv6Network("2000::/3")

SPECIAL_IPV4 = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carriers' NAT; metadata at Alibaba
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure: the host's own services; looks public
        "169.254.0.0/16",  # link-local; metadata nearly everywhere
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; metadata at Oracle
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112: answers for private names
        "192.52.193.0/24",  # relays of multicast
        "192.88.99.0/24",  # 6to4 relay anycast, withdrawn
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks of network devices
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
SPECIAL_IPV6 = tuple(
    ipaddress.IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def is_public(address: Address) -> bool:
    """Return True if an address is on the public internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in block for block in SPECIAL_IPV4)
    carried = _carried(address)
    if carried is not None:
        return is_public(carried)
    return address in GIVEN_OUT and not any(address in block for block in SPECIAL_IPV6)


def _carried(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which the network translates an IPv6 address; None if it is not translated."""
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
