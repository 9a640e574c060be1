"""Every special-purpose block of IANA's registries, and each way of writing an IPv4 address in IPv6."""

from __future__ import annotations

import ipaddress

import pytest

from darkroom.worker.guard.safe_address import AddressGuard, AddressRefused
from darkroom.worker.guard.special_addresses import is_public

SPECIAL_BLOCKS = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.0.0/29",
    "192.0.0.170/31",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.175.48.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "255.255.255.255/32",
    "::/128",
    "::1/128",
    "::/96",  # IPv4 in its first form
    "::ffff:0:0:0/96",  # IPv4 translated
    "64:ff9b:1::/48",  # NAT64 of one's own network
    "100::/64",
    "100:0:0:1::/64",
    "2001::/23",
    "2001::/32",  # Teredo
    "2001:2::/48",
    "2001:10::/28",
    "2001:20::/28",
    "2001:db8::/32",
    "2620:4f:8000::/48",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
]
PRIVATE_IPV4 = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.88.99.1", "100.100.100.200", "0.0.0.0"]
PUBLIC = [
    "1.1.1.1",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.88.98.255",
    "192.88.100.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "168.63.129.15",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450:4001::1",
    "64:ff9b::1.1.1.1",
    "2002:101:101::1",
    "::ffff:1.1.1.1",
]


def carrying(text: str) -> list[str]:
    """The IPv6 addresses that stand for an IPv4 one."""
    number = int(ipaddress.IPv4Address(text))
    high, low = f"{number >> 16:x}", f"{number & 0xFFFF:x}"
    turned = number ^ 0xFFFFFFFF
    return [
        f"::ffff:{text}",
        f"::{text}",
        f"::ffff:0:{text}",
        f"64:ff9b::{text}",
        f"64:ff9b:1::{text}",
        f"2002:{high}:{low}::1",
        f"2001:0:4136:e378:8000:63bf:{turned >> 16:x}:{turned & 0xFFFF:x}",
        f"fe80::5efe:{text}",
    ]


@pytest.mark.parametrize("block", SPECIAL_BLOCKS)
def test_the_ends_and_the_middle_of_a_special_block_are_refused(block: str) -> None:
    network = ipaddress.ip_network(block)
    for index in (0, network.num_addresses // 2, network.num_addresses - 1):
        assert not is_public(network[index]), network[index]


@pytest.mark.parametrize("text", PRIVATE_IPV4)
def test_an_ipv6_address_that_stands_for_a_private_one_is_refused(text: str) -> None:
    for written in carrying(text):
        assert not is_public(ipaddress.ip_address(written)), written


@pytest.mark.parametrize("text", PUBLIC)
def test_addresses_beside_the_special_blocks_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("host", ["192.88.99.1", "[2002:c058:6301::]", "[64:ff9b::c058:6301]", "[::ffff:192.88.99.1]"])
def test_a_url_of_a_withdrawn_relay_is_refused_at_once(host: str) -> None:
    with pytest.raises(AddressRefused):
        AddressGuard().check_form(f"http://{host}/x.png")


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0X7F.1",
        "017700000001",
        "0177.0.0.1",
        "0x7f.0.0.0x1",
        "127.1",
        "127.0.1",
        "10.1",
        "0",
        "0x0",
        "127.0.0.1.",
        "127.1.",
        "169.254.43518",
        "0xa9fea9fe",
        "2852039166",
        "0251.0376.0251.0376",
        "\uff11\uff12\uff17.0.0.1",
        "127\u30020\u30020\u30021",
        "\u2460\u2461\u2466.0.0.1",
        "[::1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:ffff:127.0.0.1]",
        "[fe80::1%25eth0]",
        "[::ffff:127.0.0.1%25eth0]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[2001:0:1::1]",
    ],
)
async def test_a_private_address_is_refused_in_every_notation_before_any_name_is_resolved(host: str) -> None:
    async def resolve(name: str, _port: int) -> list[str]:
        raise AssertionError(f"{name} was resolved")

    guard = AddressGuard(resolve=resolve)
    for url in (f"http://{host}/x.png", f"http://{host}:80/x.png", f"http://user@{host}/"):
        with pytest.raises(AddressRefused):
            guard.check_form(url)
        with pytest.raises(AddressRefused):
            await guard.pin(url)


@pytest.mark.parametrize(("host", "address"), [("16843009", "1.1.1.1"), ("0x01010101", "1.1.1.1"), ("1.1", "1.0.0.1")])
async def test_a_public_address_in_another_notation_is_pinned_as_what_it_is(host: str, address: str) -> None:
    assert (await AddressGuard().pin(f"http://{host}/")).addresses == (address,)


async def test_an_exception_holds_for_an_address_in_any_notation() -> None:
    assert (await AddressGuard(["127.0.0.1"]).pin("http://2130706433/")).addresses == ("127.0.0.1",)
