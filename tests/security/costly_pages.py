"""Pages that are small to send and were dear to read, by what they consist of; each made larger by a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def node(node_id: object, kind: str, values: Any = (), **more: Any) -> Json:
    return {"id": node_id, "type": kind, "widgets_values": values, **more}


def page(*nodes: Json, links: Any = (), **more: Any) -> Json:
    return {"nodes": list(nodes), "links": list(links), **more}


def slot(name: str, link: int | None = None, kind: str = "IMAGE", **more: Any) -> Json:
    return {"name": name, "type": kind, "link": link, **more}


def sub_graph(nodes: list[Json], links: list[Any], inputs: list[Json], outputs: list[Json] | None = None) -> Json:
    definition = {"id": "sub", "nodes": nodes, "links": links, "inputs": inputs, "outputs": outputs or []}
    return {"definitions": {"subgraphs": [definition]}}


def with_text(text: str) -> Json:
    return page(node(1, "Text", [text]))


def with_wide_host(num: int) -> Json:
    inputs = [slot(f"i{index}", widget={"name": "text"}) for index in range(num)]
    links = [[index, -10, index, 9, 0, "*"] for index in range(num)]
    host = node(1, "sub", ["v"] * (num + 1), inputs=inputs)
    return page(host, **sub_graph([node(9, "Text", ["x"], inputs=[slot("text", 0)])], links, inputs))


def with_wide_host_of_linked_nodes(num: int) -> Json:
    inputs = [slot(f"i{index}", index) for index in range(num)]
    inner = [node(index, "Pass", inputs=[slot("image", index)]) for index in range(num)]
    links = [[index, -10, num - 1 - index, index, 0, "*"] for index in range(num)]
    outer = [[index, 2, 0, 1, index, "*"] for index in range(num)]
    definition = sub_graph(inner, links, [slot(f"i{index}") for index in range(num)])
    return page(node(1, "sub", inputs=inputs), node(2, "Make", [1, 1]), links=outer, **definition)


def with_inputs_of_one_name(num: int) -> Json:
    inputs = [slot("same", widget={"name": "text"}) for _ in range(num)]
    links = [[index, -10, 0, 99, 0, "*"] for index in range(num)]
    return page(node(1, "sub", ["v"] * (num + 1), inputs=inputs), **sub_graph([], links, inputs))


def group(num_nodes: int, num_links: int, kind: str = "Pass") -> Json:
    inner = [
        {"index": index, "type": kind, "inputs": [slot("image")], "outputs": [slot("image")]}
        for index in range(num_nodes)
    ]
    links = [[index % num_nodes, 0, (index + 1) % num_nodes, 0, None, "IMAGE"] for index in range(num_links)]
    return {"extra": {"groupNodes": {"g": {"nodes": inner, "links": links, "external": []}}}}


def with_large_group(num: int) -> Json:
    return page(node(1, "workflow>g", list(range(num))), **group(num, num))


def with_group_of_reroutes(num: int) -> Json:
    return page(node(1, "workflow>g"), **group(num, num, "Reroute"))


def with_reroute_of_many_inputs(num: int) -> Json:
    reroute = {"index": 0, "type": "Reroute", "inputs": [slot("", kind="*")] * num, "outputs": [slot("")]}
    end = {"index": 1, "type": "Pass", "inputs": [slot("image", kind="*")]}
    definition = {"nodes": [reroute, end], "links": [[0, 0, 1, 0, None, "*"]] * num, "external": []}
    return page(node(1, "workflow>g"), extra={"groupNodes": {"g": definition}})


def with_many_uses(num: int) -> Json:
    return page(*(node(index, "workflow>g") for index in range(num)), **group(1, num))


def with_reroutes(num: int) -> Json:
    """Inputs of as many types as there are reroutes before them."""
    chain = [node(index, "Reroute", inputs=[slot("", index)]) for index in range(num)]
    links = [[index, index - 1 if index else "make", 0, index, 0, "*"] for index in range(num)]
    ends = [node(f"e{index}", "Pass", inputs=[slot("image", num + index, f"T{index}")]) for index in range(num)]
    links += [[num + index, num - 1, 0, f"e{index}", 0, "*"] for index in range(num)]
    return page(node("make", "Make", [1, 1]), *chain, *ends, links=links)


def with_bypassed(num: int) -> Json:
    inputs = [slot(f"i{index}", index, f"T{index}") for index in range(num)]
    links = [[index, "make", 0, "by", index, "*"] for index in range(num)]
    ends = [node(f"e{index}", "Pass", inputs=[slot("image", num + index, f"T{num - index}")]) for index in range(num)]
    links += [[num + index, "by", index, f"e{index}", 0, "*"] for index in range(num)]
    outputs = [slot(f"o{index}", None, f"T{num - index}") for index in range(num)]
    by = node("by", "Pass", mode=4, inputs=inputs, outputs=outputs)
    return page(node("make", "Make", [1, 1]), by, *ends, links=links)


def with_setters(num: int) -> Json:
    value = ["name"]
    getters = [node(index, "GetNode", [value], outputs=[slot("o")]) for index in range(num)]
    setter = node("set", "SetNode", [value], inputs=[slot("i", num + 1)])
    ends = [node(f"e{index}", "Pass", inputs=[slot("image", index, f"T{index}")]) for index in range(num)]
    links = [[index, index, 0, f"e{index}", 0, "*"] for index in range(num)]
    links.append([num + 1, "make", 0, "set", 0, "*"])
    return page(node("make", "Make", [1, 1]), setter, *getters, *ends, links=links)


def with_values(num: int) -> Json:
    slots = [slot(f"w{index}", widget={"name": f"w{index}"}) for index in range(num)]
    return page(node(1, "Seed", list(range(num)), inputs=slots))


def with_names(num: int) -> Json:
    return page(node(1, "Text", ["x" * num], title="T"), node(2, "Save", ["%T.text%" * (num // 8)], inputs=[]))


def with_saves(num: int) -> Json:
    saves = [node(f"s{index}", "Save", ["%T.text%"]) for index in range(num)]
    return page(node(1, "Text", ["x" * num], title="T"), *saves)


def with_chosen(num: int) -> Json:
    chosen = [[1, f"i{index}"] for index in range(num)]
    return {**with_wide_host(num), "extra": {"linearData": {"inputs": chosen, "outputs": [1] * num}}}


def with_proxies(num: int) -> Json:
    proxies = [["9", f"p{index}"] for index in range(num)]
    host = node(1, "sub", ["v"] * num, properties={"proxyWidgets": proxies})
    chosen = {"linearData": {"inputs": [[1, f"p{index}"] for index in range(num)]}}
    return page(host, extra=chosen, **sub_graph([node(9, "Text", ["x"])], [], []))


def with_chosen_of_one_name(num: int) -> Json:
    chosen = {"linearData": {"inputs": [[index, "text"] for index in range(num)]}}
    return page(*(node(index, "Text", ["x"]) for index in range(num)), extra=chosen)


PAGES: dict[str, tuple[Callable[[int], Json], int]] = {
    "a plain text": (lambda num: with_text("a" * num), 400_000),
    "blocks of comments that do not end": (lambda num: with_text("/*a" * num), 60_000),
    "comments": (lambda num: with_text("/*a*/b" * num), 20_000),
    "slashes": (lambda num: with_text("/" * num), 100_000),
    "alternatives": (lambda num: with_text("{a|b}" * num), 2_000),
    "nested alternatives": (lambda num: with_text("{a" * num + "}" * num), 4_000),
    "alternatives that do not end": (lambda num: with_text("{a|" * num), 4_000),
    "a host with many inputs": (with_wide_host, 500),
    "a host with many links": (with_wide_host_of_linked_nodes, 200),
    "inputs of one name": (with_inputs_of_one_name, 500),
    "a large group": (with_large_group, 200),
    "a group of reroutes": (with_group_of_reroutes, 200),
    "a reroute of many inputs in a group": (with_reroute_of_many_inputs, 1500),
    "many uses of a group": (with_many_uses, 100),
    "reroutes": (with_reroutes, 200),
    "bypassed nodes": (with_bypassed, 200),
    "getters": (with_setters, 300),
    "values": (with_values, 2_000),
    "marks in a name": (with_names, 20_000),
    "many names": (with_saves, 300),
    "an app mode of a host": (with_chosen, 300),
    "an app mode of shown widgets": (with_proxies, 500),
    "an app mode of many nodes": (with_chosen_of_one_name, 500),
}
