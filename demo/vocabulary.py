"""The words the model knows: things, colours, counts, sizes. Pure data.

A thing is named by its CLDR label (which finds its image) and by the word people say. Colours of things come from
emoji that exist in that colour, or from turning the hue of the one that exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Rgb = tuple[int, int, int]

BACKGROUNDS: dict[str, Rgb] = {
    "white": (255, 255, 255),
    "black": (16, 16, 16),
    "gray": (128, 128, 128),
    "red": (214, 40, 40),
    "orange": (250, 140, 20),
    "yellow": (250, 215, 50),
    "green": (50, 165, 75),
    "blue": (45, 95, 215),
    "purple": (130, 60, 180),
    "pink": (250, 155, 195),
}
HUES: dict[str, float] = {  # of coloured things, in turns
    "red": 0.0,
    "orange": 0.08,
    "yellow": 0.145,
    "green": 0.34,
    "blue": 0.60,
    "purple": 0.77,
    "pink": 0.91,
}
COUNTS: dict[int, str] = {2: "two", 3: "three", 4: "four"}


@dataclass(frozen=True, slots=True)
class Thing:
    """`colours`: colour -> CLDR label of an emoji that has it; `own_colour`: the colour of `label` itself, when it has
    one word; `is_dyed`: the hues of `HUES` that no emoji has come from turning the hue of `label`."""

    name: str
    label: str
    plural: str
    own_colour: str = ""
    is_dyed: bool = False
    colours: tuple[tuple[str, str], ...] = ()


def _thing(
    name: str,
    label: str = "",
    plural: str = "",
    own: str = "",
    dyed: bool = False,
    colours: Mapping[str, str] | None = None,
) -> Thing:
    return Thing(name, label or name, plural or name + "s", own, dyed, tuple((colours or {}).items()))


def _all_of(shape: str, *colours: str) -> dict[str, str]:
    return {colour: f"{colour} {shape}" for colour in colours}


_EMOJI_COLOURS = ("orange", "yellow", "green", "blue", "purple", "brown", "black", "white")

_HEARTS = {**_all_of("heart", *_EMOJI_COLOURS), "pink": "pink heart", "gray": "grey heart"}

# The most common first: a short training is given only the first so many.
THINGS: tuple[Thing, ...] = (
    _thing("apple", "red apple", own="red", dyed=True, colours={"green": "green apple"}),
    _thing("heart", "red heart", own="red", colours=_HEARTS),
    _thing("cat", "cat face"), _thing("dog", "dog face"), _thing("star", own="yellow", dyed=True),
    _thing("car", "automobile", own="red", dyed=True), _thing("sun"), _thing("tree", "deciduous tree"),
    _thing("house"), _thing("circle", "red circle", own="red", colours=_all_of("circle", *_EMOJI_COLOURS)),
    _thing("balloon", own="red", dyed=True), _thing("fish", plural="fish", dyed=True), _thing("banana"),
    _thing("lemon"), _thing("strawberry", plural="strawberries"), _thing("panda"), _thing("pig", "pig face"),
    _thing("frog"), _thing("fox", plural="foxes"), _thing("pumpkin", "jack-o-lantern"),
    _thing("smiley", "grinning face"), _thing("moon", "crescent moon"), _thing("rocket"), _thing("sunflower"),
    _thing("mushroom"), _thing("pizza"), _thing("hamburger"), _thing("donut", "doughnut"), _thing("watermelon"),
    _thing("skull"), _thing("ghost"), _thing("robot"), _thing("penguin"), _thing("butterfly", plural="butterflies"),
    _thing("book", "closed book", own="red", colours=_all_of("book", "green", "blue", "orange")),
    _thing("rose", own="red", dyed=True), _thing("cactus", plural="cactuses"), _thing("gift", "wrapped gift"),
    _thing("ice cream", "soft ice cream"), _thing("football", "soccer ball"),
    # animals
    _thing("lion"), _thing("tiger", "tiger face"), _thing("unicorn"), _thing("cow", "cow face"),
    _thing("mouse", "mouse face", "mice"), _thing("rabbit", "rabbit face"), _thing("bear"), _thing("koala"),
    _thing("monkey", "monkey face"), _thing("chicken"), _thing("owl"), _thing("duck"), _thing("turtle"),
    _thing("snake"), _thing("whale", "spouting whale"), _thing("dolphin"), _thing("octopus", plural="octopuses"),
    _thing("crab"), _thing("snail"), _thing("ladybug", "lady beetle"), _thing("bee", "honeybee"), _thing("elephant"),
    _thing("spider"),
    # plants
    _thing("tulip"), _thing("palm tree"), _thing("clover", "four leaf clover"),
    # food
    _thing("pineapple"), _thing("pear"), _thing("peach", plural="peaches"), _thing("cherry", "cherries", "cherries"),
    _thing("tomato", plural="tomatoes"), _thing("avocado"), _thing("carrot"), _thing("cheese", "cheese wedge"),
    _thing("bread", plural="breads"), _thing("cookie"), _thing("cake", "birthday cake"), _thing("lollipop"),
    _thing("grapes", plural="grapes"),
    # travel, sky
    _thing("bus", plural="buses"), _thing("taxi"), _thing("tractor"), _thing("bicycle"), _thing("airplane"),
    _thing("boat", "sailboat"), _thing("tent"), _thing("cloud"), _thing("rainbow"), _thing("snowflake"),
    _thing("fire"), _thing("umbrella", own="purple"),
    # objects
    _thing("basketball"), _thing("guitar"), _thing("drum"), _thing("bell", own="yellow", dyed=True), _thing("key"),
    _thing("clock", "alarm clock"), _thing("camera"), _thing("phone", "mobile phone"), _thing("light bulb"),
    _thing("scissors", plural="scissors"), _thing("hammer"), _thing("diamond", "gem stone"), _thing("crown"),
    _thing("dress", plural="dresses", dyed=True), _thing("shirt", "t-shirt"), _thing("glasses", plural="glasses"),
    _thing("trophy", plural="trophies"), _thing("alien"),
)  # fmt: skip
