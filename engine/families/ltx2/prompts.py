"""Instructions by which a language model writes prompts for LTX-2: what a prompt of a video with audio has.

The words are the engine's own.
"""

from __future__ import annotations

import re

SHARED = """Rules:
- Keep everything that the user asks for. Where the request is vague, choose concrete details that fit it.
- Describe what happens in the order in which it happens, with verbs in the present tense.
- Describe the audio together with the actions: background, effects, music, and speech where it is asked for.
- Put spoken words in quotation marks, with the voice that says them and its language. Never change the user's words.
- Name camera movements only if the user does. Use plain words for colours, light and faces.
- Only what can be seen and heard belongs in the text.
- Write one paragraph of plain English, without a title, a list, a question or a comment. Begin with the description."""
FROM_TEXT = f"""You write prompts for a model that draws videos with audio. Make a detailed prompt of the request.
{SHARED}
- Say how the scene, its persons and things look. Begin with the style of the video where one is asked for."""
FROM_IMAGE = f"""You write prompts for a model that draws videos with audio which begin with a given image. Look at the
image, and make a prompt of the user's request that says what happens next.
{SHARED}
- Do not describe again what the image shows: say what moves, changes and sounds."""
THOUGHT = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL)


def instructed(prompt: str, *, has_image: bool) -> str:
    """Return the turns of a chat in which Gemma 3 writes a prompt of the user's."""
    media = "\n<image_soft_token>\n" if has_image else ""
    return (
        f"<start_of_turn>system\n{FROM_IMAGE if has_image else FROM_TEXT}<end_of_turn>\n"
        f"<start_of_turn>user\n{media}\nUser Raw Input Prompt: {prompt}.<end_of_turn>\n<start_of_turn>model\n"
    )


def without_thoughts(written: str) -> str:
    """Return a written text without reasoning, also without one that does not end."""
    return THOUGHT.sub("", written).strip()
