"""Contrast of the texts of a page, by the formula of WCAG 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

LEAST = 4.5
_MEASURE = """
() => {
  const channels = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const luminance = (colour) => {
    const linear = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = channels(colour).slice(0, 3).map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0.99) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const words = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    if (!words.length || !element.checkVisibility() || element.matches("option, script, :disabled")) continue;
    const pair = [luminance(getComputedStyle(element).color), luminance(ground(element))];
    const [light, dark] = pair.sort((one, other) => other - one);
    found.push([words[0].data.trim().slice(0, 40), (light + 0.05) / (dark + 0.05)]);
  }
  return found;
}
"""


def faint_texts(page: Page) -> list[tuple[str, float]]:
    """Return the visible texts whose contrast with what is behind them is below `LEAST`. Fails without any text."""
    found = page.evaluate(_MEASURE)
    assert found
    return [(words, ratio) for words, ratio in found if ratio < LEAST]
